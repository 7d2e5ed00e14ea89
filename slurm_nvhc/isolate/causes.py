"""Which parts explain all that complained? Sets of parts, the simplest first. Pure.

A part *shows* in the runs whose group holds all GPUs that its traffic needs: both GPUs of a pair or of a direct wire, the GPU of
a wire to a switch. Simplicity is counted in bits, as in minimum description length:

- each part costs what it takes to name it, so that one part for all errors beats two, and a common one beats a rare one;
- a part that once kept quiet where it should have shown is intermittent: INTERMITTENT, and one bit for each time it had the
  chance, as for a coin.

What sets a GPU or a switch apart from its single links is judge/links.py's argument: three or more of them, not at one device.
"""

from __future__ import annotations

from typing import Final, Iterable, Mapping, NamedTuple, Sequence

from slurm_nvhc.isolate import evidence as ev
from slurm_nvhc.isolate.board import Board
from slurm_nvhc.isolate.evidence import Complaint, Evidence, Run
from slurm_nvhc.isolate.simplest import simplest
from slurm_nvhc.judge.wiring import device, wire_of
from slurm_nvhc.model import entity

# Part.kind
LINK: Final = "link"  # one wire, both its ends included
GPU: Final = "gpu"
PAIR: Final = "pair"  # what is between two GPUs: a route, a bridge, all wires that join them
SWITCH: Final = "switch"
SHARED: Final = "shared"  # what all GPUs share: switches, fabric manager, board, driver, and the traffic command itself

# Bits to name a part. A pair that fails without a counter is rare; where the wires between the two complain it is a bridge.
PRIOR: Final[Mapping[str, int]] = {LINK: 6, GPU: 6, SWITCH: 7, SHARED: 8, PAIR: 8}
BRIDGE: Final = 6
INTERMITTENT: Final = 3
# Sets so close to the best are as good as it; those within MARGIN are rivals that more steps must put down.
SAME: Final = 2
MARGIN: Final = 6
_ORDER: Final = (LINK, PAIR, GPU, SWITCH, SHARED)


class Part(NamedTuple):
    """entities: of LINK its ends as far as known; of PAIR two GPUs; of SHARED the switches, or "node"."""

    kind: str
    entities: tuple[str, ...]


class Record(NamedTuple):
    """Runs in which a part showed, and in which it kept quiet though its traffic ran and could be seen."""

    shown: tuple[Run, ...] = ()
    quiet: tuple[Run, ...] = ()


class Cause(NamedTuple):
    """A set of parts that explains everything, none of them needlessly. bits: the fewer, the simpler."""

    bits: int
    parts: tuple[Part, ...]


class Causes(NamedTuple):
    """ranked: simplest first, none more than MARGIN behind it; () when nothing complained. unexplained: by no part at all.

    explains: part -> the complaints that it explains
    """

    ranked: tuple[Cause, ...] = ()
    records: Mapping[Part, Record] = {}
    explains: Mapping[Part, frozenset[Complaint]] = {}
    unexplained: tuple[Complaint, ...] = ()

    @property
    def best(self) -> tuple[Cause, ...]:
        """Those that explain as well as the first."""
        return tuple(c for c in self.ranked if c.bits <= self.ranked[0].bits + SAME)


class _Scene(NamedTuple):
    """What complaints about links have in common. wires: complaining end -> its wire, as a part; joins: a wire's GPUs."""

    board: Board
    evidence: Evidence
    wires: Mapping[str, Part]
    joins: Mapping[Part, frozenset[str]]
    wide: frozenset[str]
    bridges: frozenset[frozenset[str]]
    switches: frozenset[str]
    everywhere: bool


def causes(board: Board, evidence: Evidence) -> Causes:
    if not evidence.complaints:
        return Causes()
    scene = _scene(board, evidence)
    parts = _parts(scene)
    explained: dict[Part, frozenset[int]] = {}
    for part in parts:
        mine = frozenset(i for i, c in enumerate(evidence.complaints) if _explains(scene, part, c))
        if mine:
            explained[part] = mine
    known: frozenset[int] = frozenset().union(*explained.values())
    records = {part: _record(scene, part, [evidence.complaints[i] for i in mine]) for part, mine in explained.items()}
    bits = {part: _bits(scene, part, records[part]) for part in explained}
    return Causes(
        ranked=tuple(Cause(*one) for one in simplest(explained, bits, _rank(board, bits), MARGIN)),
        records=records,
        explains={part: frozenset(evidence.complaints[i] for i in mine) for part, mine in explained.items()},
        unexplained=tuple(c for i, c in enumerate(evidence.complaints) if i not in known),
    )


def need(board: Board, part: Part) -> frozenset[str]:
    """The GPUs that must be in one group for the part to be in the way of its traffic."""
    if part.kind in (SWITCH, SHARED):
        return frozenset()
    return _gpus(board, part) & set(board.uuids)


def without(board: Board, evidence: Evidence, found: Causes) -> list[tuple[frozenset[str], bool]]:
    """Groups whose traffic no accused GPU, link or pair was in the way of -> whether it went well. What an accused switch explains,
    which is in everybody's way, is nobody else's fault."""
    parts = found.ranked[0].parts
    needs = [n for n in (need(board, part) for part in parts) if n]
    shared = frozenset().union(*(found.explains[part] for part in parts if not need(board, part)))
    left = {(c.step, c.group) for c in evidence.complaints if c not in shared}
    return [
        (run.group, run.ok is not None and (run.step, run.group) not in left)
        for run in evidence.runs
        if not ev.is_alone(run) and not any(n <= run.group for n in needs)
    ]


# -- what complaints have in common -------------------------------------------------------


def _scene(board: Board, evidence: Evidence) -> _Scene:
    ends = sorted({c.entity for c in evidence.complaints if c.kind == ev.LINK})
    wires = _wires(board, ends)
    joins = {part: _gpus(board, part) for part in wires.values()}
    by_gpu: dict[str, set[Part]] = {}
    for part, gpus in joins.items():
        for gpu in gpus:
            by_gpu.setdefault(gpu, set()).add(part)
    bridges = set()
    for gpu, mine in by_gpu.items():
        for peer in {p for part in mine for p in joins[part]} - {gpu}:
            if sum(peer in joins[part] for part in mine) >= 3:
                bridges.add(frozenset((gpu, peer)))
    unnamed = {c.entity for c in evidence.complaints if c.kind in (ev.LINKS, ev.REMOTE)}
    failed = {gpu for run in evidence.runs if ev.is_alone(run) and run.ok is False for gpu in run.group}
    failed |= {c.entity for c in evidence.complaints if c.kind == ev.DEAD}
    blind = {gpu for gpu, mine in by_gpu.items() if any(not _fars(board, part, gpu) for part in mine)}
    gathered = {switch: _gathered(board, switch, by_gpu) for switch in board.switches}
    switches = frozenset(s for s, gpus in gathered.items() if len(gpus) >= 3 or _alone_at(board, s, gpus, wires.values()))
    # What a bad switch explains says nothing about a GPU at it.
    apart = {gpu: {part for part in mine if not switches & _fars(board, part, gpu)} for gpu, mine in by_gpu.items()}
    # A GPU that fails alone, or died, explains what its links show, be it one or all.
    wide = frozenset(gpu for gpu, mine in apart.items() if gpu in failed or _is_wide(board, gpu, mine))
    all_switches = bool(board.switches) and all(_most(len(gpus), len(board.cards)) for gpus in gathered.values())
    return _Scene(
        board=board,
        evidence=evidence,
        wires=wires,
        joins=joins,
        wide=wide,
        bridges=frozenset(bridges),
        switches=switches,
        everywhere=all_switches or _most(len(blind | unnamed), len(board.cards)) or _most(len(wide - failed), len(board.cards)),
    )


def _wires(board: Board, ends: Sequence[str]) -> dict[str, Part]:
    """The wires that complaining ends belong to. Between two GPUs an engine names the far GPU, not its link: then the ends that
    complain on either side are taken for each other's far ends, in the order of their numbers."""
    out: dict[str, Part] = {}
    loose: dict[tuple[str, str], list[str]] = {}
    for end in ends:
        wire = wire_of(end, board.fars)
        if wire.far and len(wire.ends) == 1:
            loose.setdefault((device(end), wire.far), []).append(end)
        else:
            out[end] = Part(LINK, wire.ends)
    for (near, far), mine in sorted(loose.items()):
        theirs = sorted(loose.get((far, near), []), key=_number)
        for place, end in enumerate(sorted(mine, key=_number)):
            out[end] = Part(LINK, tuple(sorted((end, theirs[place]))) if place < len(theirs) else (end,))
    return out


def _number(end: str) -> int:
    return entity.split_link(end)[1] or 0


def _gpus(board: Board, part: Part) -> frozenset[str]:
    """The GPUs at the ends of a wire; of a pair or GPU itself."""
    return frozenset(gpu for e in part.entities for gpu in (entity.gpu_of(e), entity.gpu_of(board.fars.get(e, ""))) if gpu)


def _fars(board: Board, part: Part, gpu: str) -> set[str]:
    """The devices that a wire leads to from a GPU."""
    return {d for e in part.entities for d in (device(e), board.far_device(e)) if d and d != gpu}


def _is_wide(board: Board, gpu: str, wires: set[Part]) -> bool:
    """Too many for single links: three, to different devices; to one where the GPU has no other; a third where nobody knows."""
    if len(wires) < 3:
        return False
    fars = {d for part in wires for d in _fars(board, part, gpu)}
    if len(fars) > 1:
        return True
    mine = board.links.get(gpu, ())
    if not fars:
        return 3 * len(wires) > len(mine)
    return {board.far_device(end) for end in mine} <= fars


def _gathered(board: Board, switch: str, by_gpu: Mapping[str, set[Part]]) -> set[str]:
    """GPUs that have a third or more of their complaining links at the switch."""
    out = set()
    for gpu, mine in by_gpu.items():
        here = sum(switch in _fars(board, part, gpu) for part in mine)
        if here and 3 * here >= len(mine):
            out.add(gpu)
    return out


def _alone_at(board: Board, switch: str, gpus: set[str], wires: Iterable[Part]) -> bool:
    """Where only two GPUs are searched, both complain about three links there at least."""
    here = {part for part in wires if any(device(e) == switch or board.far_device(e) == switch for e in part.entities)}
    return len(board.cards) == 2 and len(gpus) == 2 and len(here) >= 3


def _most(some: int, of: int) -> bool:
    return some >= 3 and 2 * some > of


# -- parts and what they explain ----------------------------------------------------------


def _parts(scene: _Scene) -> list[Part]:
    board = scene.board
    uuids = board.uuids
    out = list(dict.fromkeys(scene.wires[end] for end in sorted(scene.wires)))
    out += [Part(GPU, (uuid,)) for uuid in uuids]
    out += [Part(PAIR, (one, other)) for i, one in enumerate(uuids) for other in uuids[i + 1 :]]
    out += [Part(SWITCH, (switch,)) for switch in board.switches]
    if len(uuids) > 1:
        out.append(Part(SHARED, board.switches or (entity.NODE,)))
    return out


def _explains(scene: _Scene, part: Part, c: Complaint) -> bool:
    board = scene.board
    if c.kind == ev.COMMAND:
        return _explains_failure(scene, part, c)
    if c.kind == ev.LINK:
        wire = scene.wires[c.entity]
        gpus = scene.joins[wire]
        if part.kind == LINK:
            return part == wire
        if part.kind == GPU:
            return part.entities[0] in gpus & scene.wide
        if part.kind == PAIR:
            return gpus in scene.bridges and set(part.entities) == gpus
        if part.kind == SWITCH:
            return part.entities[0] in scene.switches and any(
                part.entities[0] in (device(e), board.far_device(e)) for e in wire.entities
            )
        return scene.everywhere
    if c.kind == ev.LINKS:
        return (part.kind == GPU and part.entities[0] == c.entity) or (part.kind == SHARED and scene.everywhere) or (
            part.kind == LINK and c.entity in scene.joins[part]
        )
    if c.kind == ev.REMOTE:
        return (part.kind == GPU and part.entities[0] in c.group - {c.entity}) or part.kind == SHARED
    if part.kind == GPU:
        return part.entities[0] == c.entity
    if c.kind in (ev.CARD, ev.DEAD):
        return part.kind == SWITCH and part.entities[0] == c.entity
    if part.kind == SWITCH:
        return part.entities[0] == c.entity or (entity.scope(c.entity) == "gpu" and part.entities[0] in scene.switches)
    return part.kind in (LINK, PAIR) and c.entity in {d for e in part.entities for d in (device(e), board.far_device(e))}


def _explains_failure(scene: _Scene, part: Part, c: Complaint) -> bool:
    """A link that has been counted explains a failed command where it counted in the same run, or could not be read."""
    if part.kind == GPU:
        return part.entities[0] in c.group
    if len(c.group) < 2:
        return False
    if part.kind == SHARED:
        return True
    if part.kind == SWITCH and part.entities[0] not in scene.switches:
        return False
    if not need(scene.board, part) <= c.group:
        return False
    if part.kind == PAIR:
        return True
    grew = any(
        o.kind == ev.LINK and (o.step, o.group) == (c.step, c.group) and _explains(scene, part, o) for o in scene.evidence.complaints
    )
    return grew or not _read(scene, part, c.step)


def _read(scene: _Scene, part: Part, step: int) -> bool:
    """Could any counter that would tell of the part be read in this step?"""
    board = scene.board
    unread = scene.evidence.unread.get(step, frozenset())
    if part.kind == LINK:
        places: set[str] = set(part.entities)
    elif part.kind == SWITCH:
        places = {*part.entities, *board.ports.get(part.entities[0], ())}
    else:
        places = {p for gpu in need(board, part) or board.uuids for p in (gpu, *board.links.get(gpu, ()))}
    return not places <= unread


def _record(scene: _Scene, part: Part, complaints: Sequence[Complaint]) -> Record:
    told = {(c.step, c.group) for c in complaints}
    shown = tuple(run for run in scene.evidence.runs if (run.step, run.group) in told)
    alone = any(ev.is_alone(run) for run in shown)
    traffic = any(not ev.is_alone(run) for run in shown)
    counted = any(c.kind != ev.COMMAND for c in complaints)
    by_command = any(c.kind == ev.COMMAND for c in complaints)
    needed = need(scene.board, part)
    # Where its far end is not known, a link is only known to be in the way of groups like those in which it showed.
    vague = part.kind == LINK and not any(scene.board.fars.get(e) for e in part.entities)
    quiet = []
    for run in scene.evidence.runs:
        if (run.step, run.group) in told or not ev.passed(run) or not needed <= run.group:
            continue
        if not (alone if ev.is_alone(run) else traffic) or (ev.is_alone(run) and part.kind != GPU):
            continue
        if counted and not by_command and not _read(scene, part, run.step):
            continue
        if not vague or any(one.group <= run.group for one in shown):
            quiet.append(run)
    return Record(shown, tuple(quiet))


def _bits(scene: _Scene, part: Part, record: Record) -> int:
    bridge = part.kind == PAIR and frozenset(part.entities) in scene.bridges
    prior = BRIDGE if bridge else PRIOR[part.kind]
    return prior + (INTERMITTENT + len(record.quiet) + len(record.shown) if record.quiet else 0)


def _rank(board: Board, bits: Mapping[Part, int]) -> dict[Part, int]:
    """Parts in the order in which they are told: the cheapest first, then by kind and place."""
    order = {uuid: i for i, uuid in enumerate(board.uuids)}

    def key(part: Part) -> tuple[object, ...]:
        return bits[part], _ORDER.index(part.kind), tuple(order.get(entity.gpu_of(e), 99) for e in part.entities), part.entities

    return {part: place for place, part in enumerate(sorted(bits, key=key))}
