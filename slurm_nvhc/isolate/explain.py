"""What the steps say: the fewest parts that explain everything, how sure that is, and what is left open. Pure.

Confidence has three words:

certain  it showed each time its traffic ran and could be seen, in two steps or more, in four where the command's end alone says
         so; the other GPUs' traffic went well without it; and nothing else explains the errors, not even a part that shows only
         at times
likely   it is the simplest explanation, but one of these is missing, ``why`` says which; or no counter names it, and it is more than
         one GPU: two that fail together, what all share
one of   others explain the errors as well, and traffic does not tell them apart

Nothing found means: every two GPUs moved data in a run that went well, and the counters of all their links could be read then. Less
is *unknown*. What came to no end, and counters that could not be read, are no evidence for or against anything.
"""

from __future__ import annotations

from typing import Any, Final, Iterable, Mapping, NamedTuple, Sequence

from slurm_nvhc.isolate import causes as cs
from slurm_nvhc.isolate import evidence as ev
from slurm_nvhc.isolate.board import Board
from slurm_nvhc.isolate.causes import Causes, Part
from slurm_nvhc.isolate.direction import connector, towards
from slurm_nvhc.isolate.evidence import Evidence
from slurm_nvhc.isolate.model import IDLE, TRAFFIC, Seen
from slurm_nvhc.isolate.plan import fails_alone
from slurm_nvhc.judge.wiring import device
from slurm_nvhc.model import entity
from slurm_nvhc.model.times import duration

# Explanation.outcome
FOUND: Final = "found"
NOTHING: Final = "nothing"
UNKNOWN: Final = "unknown"

# Accused.confidence
CERTAIN: Final = "certain"
LIKELY: Final = "likely"
ONE_OF: Final = "one of"
_BY_COMMAND: Final = 4  # steps in which a command must have failed, where no counter says anything: it may fail by itself

# Place.kind
LINK: Final = cs.LINK
CONNECTOR: Final = "connector"  # both directions of a wire, or all wires between two GPUs
GPU: Final = cs.GPU
PAIR: Final = cs.PAIR
SWITCH: Final = cs.SWITCH
SHARED: Final = cs.SHARED


class Place(NamedTuple):
    """A part, for people and as entities. kind: see above.

    entities: of a link its ends, the one at which the fault is believed to be first (the other as far as it is known); of a
              pair both GPUs; of what all share the switches, or "node"
    """

    kind: str
    entities: tuple[str, ...]
    name: str


class Accused(NamedTuple):
    """shown, quiet: numbers of the steps, from 1, that speak for it, and of those in which it should have shown and did not.

    others: with ONE_OF, what may be at fault in its place.
    """

    place: Place
    confidence: str
    why: str
    shown: tuple[int, ...] = ()
    quiet: tuple[int, ...] = ()
    others: tuple[Place, ...] = ()


class Covered(NamedTuple):
    """What was tried and went well. seconds: of traffic. pairs, links: of so many; links whose counters could be read meanwhile."""

    steps: int = 0
    seconds: float = 0.0
    pairs: int = 0
    of_pairs: int = 0
    links: int = 0
    of_links: int = 0


class Explanation(NamedTuple):
    """parts: together they explain all errors but the ``unexplained``. said: the outcome in one sentence.

    background: what grows while nothing runs; strays: too few errors to accuse anybody; unknown: what came to no end, or
    could not be read. One line each.
    """

    outcome: str
    said: str
    parts: tuple[Accused, ...] = ()
    unexplained: tuple[str, ...] = ()
    background: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    covered: Covered = Covered()

    @property
    def found(self) -> bool:
        return self.outcome == FOUND


def explain(board: Board, seen: Sequence[Seen]) -> Explanation:
    evidence = ev.gather(board, seen)
    useless = fails_alone(board, seen)
    found = Causes() if useless else cs.causes(board, evidence)
    parts = tuple(_accused(board, evidence, found, part) for part in found.ranked[0].parts) if found.ranked else ()
    out = Explanation(
        outcome=FOUND,
        said="",
        parts=parts,
        unexplained=tuple(f"step {c.step + 1}: {c.said}" for c in (evidence.complaints if useless else found.unexplained)),
        background=tuple(_counted(board, evidence.background)),
        strays=tuple(_counted(board, evidence.strays)),
        unknown=tuple(_unknown(board, seen)),
        covered=_covered(board, seen, evidence),
    )
    if useless:
        which = f"{useless} of {len(board.cards)} GPUs" if useless < len(board.cards) else "every GPU"
        causes = "it is the command (can several of it run at once?), or what the GPUs share"
        return out._replace(outcome=UNKNOWN, said=f"the command fails on {which} alone: {causes}")
    if parts:
        return out._replace(said=f"{' and '.join(_told(a) for a in parts)}: explains {_all(out)} errors of {_steps(seen)}")
    return _without_parts(board, seen, out)


def to_json(explanation: Explanation) -> dict[str, Any]:
    def place(one: Place) -> dict[str, Any]:
        return {**one._asdict(), "entities": list(one.entities)}

    def accused(one: Accused) -> dict[str, Any]:
        row = {**one._asdict(), **place(one.place), "shown": list(one.shown), "quiet": list(one.quiet)}
        row.pop("place")
        return {**row, "others": [place(other) for other in one.others]}

    lists = {key: list(getattr(explanation, key)) for key in ("unexplained", "background", "strays", "unknown")}
    parts = [accused(one) for one in explanation.parts]
    return {**explanation._asdict(), "parts": parts, **lists, "covered": explanation.covered._asdict()}


# -- one part -----------------------------------------------------------------------------


def _accused(board: Board, evidence: Evidence, found: Causes, part: Part) -> Accused:
    record = found.records[part]
    shown = tuple(sorted({run.step + 1 for run in record.shown}))
    quiet = tuple(sorted({run.step + 1 for run in record.quiet}))
    others = _others(found, part)
    missing = _missing(board, evidence, found, part)
    confidence = ONE_OF if others else LIKELY if missing else CERTAIN
    why = "; ".join([_why(board, evidence, found, part), *missing])
    return Accused(place_of(board, evidence, part), confidence, why, shown, quiet, tuple(place_of(board, evidence, o) for o in others))


def place_of(board: Board, evidence: Evidence, part: Part) -> Place:
    if part.kind == cs.LINK:
        near, both = towards(board, evidence.amounts, part.entities), connector(evidence.amounts, part.entities)
        ends = (near, *(e for e in part.entities if e != near))
        name = f"connector at {board.name(near)}" if both else board.name(near)
        return Place(CONNECTOR if both else LINK, ends, name)
    if part.kind == cs.PAIR:
        one, other = (board.name(e) for e in part.entities)
        bridged = bool(_wires_between(evidence, part))
        return Place(CONNECTOR, part.entities, f"bridge between {one} and {other}") if bridged else Place(
            PAIR, part.entities, f"{one} with {other}"
        )
    if part.kind == cs.SHARED:
        return Place(SHARED, part.entities, "what all GPUs share")
    name = board.name(part.entities[0])
    return Place(part.kind, part.entities, f"{name} or a link of it" if _or_its_link(board, evidence, part) else name)


def _or_its_link(board: Board, evidence: Evidence, part: Part) -> bool:
    """Is a GPU accused by traffic alone, with no counter that says which of its parts? A link to a switch stops the same traffic."""
    uuid = part.entities[0]
    if part.kind != cs.GPU or not any(_carries(board, end, frozenset({uuid, "any"})) for end in board.links.get(uuid, ())):
        return False
    if any(ev.is_alone(run) and run.ok is False and uuid in run.group for run in evidence.runs):
        return False
    named = [c.entity for c in evidence.complaints if c.kind in (ev.LINK, ev.CARD, ev.DEAD)]
    return not any(uuid in (device(what), board.far_device(what)) for what in named)


def _wires_between(evidence: Evidence, part: Part) -> list[str]:
    return [c.entity for c in evidence.complaints if c.kind == ev.LINK and device(c.entity) in part.entities]


def _others(found: Causes, part: Part) -> list[Part]:
    """Parts that may stand in for this one: the rest of the explanation stays, and it is as good."""
    first, *more = found.best
    rest = set(first.parts) - {part}
    out = []
    for cause in more:
        changed = set(cause.parts) - rest
        if rest <= set(cause.parts) and len(changed) == 1:
            out += sorted(changed)
    # Without such a one they differ in more than one part: then each differs.
    if not out and more and not any(rest <= set(cause.parts) for cause in more):
        out = sorted({p for cause in more for p in cause.parts if part not in cause.parts} - rest)
    return list(dict.fromkeys(out))


def _missing(board: Board, evidence: Evidence, found: Causes, part: Part) -> list[str]:
    """What keeps a part from being certain."""
    record = found.records[part]
    needs = [n for n in (cs.need(board, p) for p in found.ranked[0].parts) if n]
    out = []
    steps = {run.step for run in record.shown}
    if len(steps) < 2:
        out.append("it showed in one step only")
    elif len(steps) < _BY_COMMAND and all(c.kind == ev.COMMAND for c in _complaints(evidence, found, part)):
        out.append(f"a failed command alone says so, in {len(steps)} steps: it may fail by itself")
    if record.quiet:
        tried = len(record.quiet) + len(record.shown)
        out.append(f"it shows only at times: {len(record.shown)} of {tried} runs that it was in the way of")
    clear = {uuid for group, well in cs.without(board, evidence, found) if well for uuid in group}
    outside = [uuid for uuid in board.uuids if not any(uuid in n for n in needs) and uuid not in clear]
    if part.kind == cs.SHARED:
        out.append("no traffic went well that could clear it")
    elif part.kind == cs.PAIR and not _wires_between(evidence, part):
        out.append("no counter tells: one of the two that fails only at times would now and then look the same")
    elif part.kind != cs.SWITCH and (outside or not clear):
        out.append("traffic without it was not seen to go well" + (f" on {_names(board, outside)}" if outside and clear else ""))
    rivals = [c for c in found.ranked if c not in found.best and part not in c.parts]
    if rivals:
        names = " and ".join(place_of(board, evidence, p).name for p in rivals[0].parts)
        out.append(f"{names} would explain it too, though less simply")
    return out


def _complaints(evidence: Evidence, found: Causes, part: Part) -> list[ev.Complaint]:
    """In the runs in which it showed."""
    return [c for c in evidence.complaints if any((run.step, run.group) == (c.step, c.group) for run in found.records[part].shown)]


def _why(board: Board, evidence: Evidence, found: Causes, part: Part) -> str:
    mine = _complaints(evidence, found, part)
    failed = any(c.kind == ev.COMMAND for c in mine)
    if part.kind == cs.LINK:
        return _why_link(board, evidence, part)
    if part.kind == cs.SWITCH:
        gpus = {entity.gpu_of(c.entity) or entity.gpu_of(board.fars.get(c.entity, "")) for c in mine if c.kind == ev.LINK} - {""}
        return f"links of {len(gpus)} GPUs to it have errors, and it is what they share"
    if part.kind == cs.SHARED:
        what = f"{len(part.entities)} switches, fabric manager, baseboard" if board.switches else "board, driver, fabric"
        counted = any(c.kind in (ev.LINK, ev.LINKS) for c in mine)
        told = "links of most GPUs have errors" if counted else "traffic fails in every group, whichever GPUs are in it"
        return f"{told}: {what}" + ("" if counted else ", or the traffic command itself")
    if part.kind == cs.PAIR:
        if ends := _wires_between(evidence, part):
            return f"{len(set(ends))} ends of links between them have errors, and no others: the bridge or connector"
        between = "a link between them that counts nothing, or a route" if board.direct else "a route through the switches, or its settings"
        return f"traffic fails where both are in one group, and goes well with either of them alone: {between}"
    return _why_gpu(board, evidence, found, part, failed)


def _why_gpu(board: Board, evidence: Evidence, found: Causes, part: Part, failed: bool) -> str:
    uuid = part.entities[0]
    runs = found.records[part].shown
    own = [c for c in evidence.complaints if c.entity == uuid and c.kind in (ev.CARD, ev.DEAD, ev.EVENT, ev.LINKS)]
    ends = {c.entity for c in evidence.complaints if c.kind == ev.LINK and uuid in (device(c.entity), board.far_device(c.entity))}
    links = {e if device(e) == uuid else board.fars.get(e, "") for e in ends}
    out = []
    if any(ev.is_alone(run) for run in runs):
        out.append("it fails alone" if failed else "it counts errors alone")
    elif failed:
        out.append("traffic fails where it is in the group")
    if links:
        out.append(f"{len(links)} of its links have errors" + ("" if len(links) < 3 else ", too many for single ones"))
    if own:
        out.append(own[0].said)
    if _or_its_link(board, evidence, part):
        out.append("no counter tells whether it is the GPU or one of its links")
    return "; ".join(out) or "it is in every group that complains"


def _why_link(board: Board, evidence: Evidence, part: Part) -> str:
    place = place_of(board, evidence, part)
    near = place.entities[0]
    far = place.entities[1] if len(place.entities) > 1 else board.fars.get(near, "")
    beyond = board.name(far) if far else "its far end, which is not known"
    if place.kind == CONNECTOR:
        return f"errors in both directions between {board.name(near)} and {beyond}: connector, cable or bridge"
    return f"errors in one direction between {board.name(near)} and {beyond}: that end, the one beyond, or the medium"


# -- the whole ----------------------------------------------------------------------------


def _told(accused: Accused) -> str:
    if accused.others:
        return f"one of {', '.join([accused.place.name, *(o.name for o in accused.others[:4])])}{' …' if len(accused.others) > 4 else ''}"
    return f"{accused.place.name} ({accused.confidence})"


def _all(out: Explanation) -> str:
    return f"all but {len(out.unexplained)}" if out.unexplained else "all"


def _steps(seen: Sequence[Seen]) -> str:
    count = sum(one.step.kind == TRAFFIC for one in seen)
    return f"{count} traffic step{'' if count == 1 else 's'}"


def _without_parts(board: Board, seen: Sequence[Seen], out: Explanation) -> Explanation:
    covered = out.covered
    tried = f"{_steps(seen)}, {duration(covered.seconds)} of traffic, {covered.pairs} of {covered.of_pairs} pairs of GPUs"
    tried += f", {covered.links} of {covered.of_links} links" if covered.of_links else ""
    if out.unexplained:
        return out._replace(outcome=UNKNOWN, said=f"errors that no part of the search explains ({tried})")
    if out.background:
        return out._replace(said=f"counters grow while nothing runs, and traffic adds nothing to it ({tried})")
    alone = {uuid for one in seen if one.step.kind not in (IDLE, TRAFFIC) for g in one.groups if g.ok is True for uuid in g.gpus}
    whole = covered.pairs == covered.of_pairs and covered.links == covered.of_links and alone >= set(board.uuids)
    lonely = len(board.cards) == 1 and any(board.links.values())  # its links carry nothing
    if board.cards and whole and not lonely:
        return out._replace(outcome=NOTHING, said=f"nothing found in {tried}")
    return out._replace(outcome=UNKNOWN, said=f"nothing was seen, but not everything was tried to its end: {tried}")


def _counted(board: Board, rows: Mapping[str, Mapping[str, int]]) -> Iterable[str]:
    for what, fields in sorted(rows.items()):
        yield f"{board.name(what)}: " + ", ".join(f"{ev.label(field)} +{amount}" for field, amount in sorted(fields.items()))


def _unknown(board: Board, seen: Sequence[Seen]) -> Iterable[str]:
    no_end: list[set[str]] = []
    other: list[set[str]] = []
    for number, one in enumerate(seen, 1):
        for group in one.groups:
            (no_end if group.ok is None else other).append(set(group.gpus))
            if group.ok is None:
                yield f"step {number}: {_names(board, group.gpus)}: no result{': ' if group.said else ''}{group.said}"
        if one.unread:
            first = sorted(one.unread)[0]
            what = f"{board.name(first)}{'' if len(one.unread) == 1 else f' and {len(one.unread) - 1} more'}"
            yield f"step {number}: counters of {what} could not be compared: {one.unread[first]}"
    common = set.intersection(*no_end) if len(no_end) > 1 else set()
    common -= {uuid for group in other for uuid in group if len(group) > 1}
    if common:
        yield f"every group that came to no end has {_names(board, [u for u in board.uuids if u in common])}, and no other group does"


def _covered(board: Board, seen: Sequence[Seen], evidence: Evidence) -> Covered:
    uuids = board.uuids
    good = [run for run in evidence.runs if ev.passed(run) and not ev.is_alone(run)]
    pairs = {frozenset((a, b)) for run in good for a in run.group for b in run.group if a != b}
    links = {
        end
        for run in good
        for uuid in run.group
        for end in board.links.get(uuid, ())
        if end not in evidence.unread.get(run.step, frozenset()) and _carries(board, end, run.group)
    }
    return Covered(
        steps=sum(one.step.kind == TRAFFIC for one in seen),
        seconds=sum(one.seconds for one in seen if one.step.kind == TRAFFIC and any(g.ok is True for g in one.groups)),
        pairs=len(pairs),
        of_pairs=len(uuids) * (len(uuids) - 1) // 2,
        links=len(links),
        of_links=sum(_carries(board, end, frozenset(uuids)) for mine in board.links.values() for end in mine),
    )


def _carries(board: Board, end: str, group: frozenset[str]) -> bool:
    """Is a link in the way of a group's traffic, as far as is known where it leads?"""
    far = board.far_device(end)
    return len(group) > 1 and (entity.scope(far) != "gpu" or far in group)


def _names(board: Board, gpus: Iterable[str]) -> str:
    return " ".join(board.name(uuid) for uuid in gpus)
