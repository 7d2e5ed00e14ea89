"""What the steps of a search say: which runs went well, and what complained where. Pure.

    Board + Seen, … ─► Evidence: runs, complaints; strays and background told apart

A *run* is one group in one step. A *complaint* is one thing that went wrong in one step: a command that failed, a counter that
grew, a line of the kernel log. What grows while nothing runs is background, and a few damaged packets are nobody's fault.
"""

from __future__ import annotations

import re
from typing import Final, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import xids
from slurm_nvhc.isolate.board import Board
from slurm_nvhc.isolate.model import ALONE, IDLE, Seen
from slurm_nvhc.judge.links import FEW
from slurm_nvhc.judge.scene import LINK_XIDS
from slurm_nvhc.judge.wiring import RECEIVED, SENT, device, is_end, wire_of
from slurm_nvhc.model import entity

# Complaint.kind
COMMAND: Final = "command"  # the group's command failed
LINK: Final = "link"  # one end of a wire counted errors, or a link's Xid names it
LINKS: Final = "links"  # a GPU counted errors of its links, and does not say which
REMOTE: Final = "remote"  # packets came to a GPU that were damaged before its own links: not by that GPU
CARD: Final = "card"  # a GPU has errors of its own: memory, PCIe
EVENT: Final = "event"  # the kernel log says something of a GPU's links, or of a switch
DEAD: Final = "dead"  # the kernel log says that a GPU stopped answering
DEAD_XIDS: Final = frozenset((*xids.numbers(xids.FATAL), *xids.numbers(xids.GSP)))

_REMOTE_FIELD: Final = "nvlink5_rx_remote_errors"
_NO_ERRORS: Final = ("nvlink5_tx_packets", "nvlink5_rx_packets")
_NO_ERROR_UNITS: Final = ("bytes", "ns", "mJ")
# Corrected errors are normal in small numbers; uncorrected ones never are.
_CORRECTED: Final = ("ecc_sbe_volatile", "ecc_sbe_aggregate", "remapped_rows_correctable", "retired_pages_sbe")
_PCIE: Final = ("pcie_replay", "pcie_correctable_errors")
# A step is background when it grew no more than this many times what the idle step foretells. Our judgement.
BACKGROUND: Final = 3.0
_HARMLESS_XIDS: Final = (xids.APP, "driver", "test", "advice")
_NAMED = re.compile(r"\b(GPU-[0-9A-Za-z-]+(?:/link\d+)?|switch:[0-9A-Fa-f:.]*[0-9A-Fa-f](?:/port\d+)?)")
_XID = re.compile(r"\bXid\s+(\d+)")


class Run(NamedTuple):
    """One group in one step. ok as in model.Group; step: which one, from 0."""

    step: int
    kind: str
    group: frozenset[str]
    ok: Optional[bool]


class Complaint(NamedTuple):
    """group: whose traffic it was, empty where no group of the step has the GPU. entity: '' for a command. said: for people."""

    step: int
    group: frozenset[str]
    kind: str
    entity: str
    said: str


class Evidence(NamedTuple):
    """strays, background: entity -> field -> amount: too few to accuse, or growing by themselves.

    amounts: entity -> field -> errors of links over all steps, without the background
    unread:  step -> entities of which nothing is known in it
    """

    runs: tuple[Run, ...]
    complaints: tuple[Complaint, ...]
    amounts: Mapping[str, Mapping[str, int]]
    strays: Mapping[str, Mapping[str, int]]
    background: Mapping[str, Mapping[str, int]]
    unread: Mapping[int, frozenset[str]]


def gather(board: Board, seen: Sequence[Seen]) -> Evidence:
    idle = _idle(seen)
    grown = {number: _above(one, idle) for number, one in enumerate(seen) if one.step.kind != IDLE}
    totals: dict[str, dict[str, int]] = {}
    for fields in grown.values():
        for what, amounts in fields.items():
            for field, amount in amounts.items():
                row = totals.setdefault(what, {})
                row[field] = row.get(field, 0) + amount
    seconds = sum(one.seconds for one in seen if one.step.kind != IDLE)
    few = {what for what in totals if not _counts(board, what, totals, seconds)}
    complaints: list[Complaint] = []
    for number, one in enumerate(seen):
        if one.step.kind != IDLE:
            complaints += _of_step(board, number, one, {w: f for w, f in grown[number].items() if w not in few})
    first, first_seconds = idle
    return Evidence(
        runs=tuple(
            Run(number, one.step.kind, frozenset(group.gpus), group.ok)
            for number, one in enumerate(seen)
            for group in one.groups
            if one.step.kind != IDLE
        ),
        complaints=tuple(complaints),
        amounts={what: row for what, row in totals.items() if is_end(what) and what not in few},
        strays={what: totals[what] for what in sorted(few)},
        background={what: row for what, row in first.items() if _counts(board, what, first, first_seconds)},
        unread={number: frozenset(one.unread) for number, one in enumerate(seen)},
    )


def _idle(seen: Sequence[Seen]) -> tuple[dict[str, dict[str, int]], float]:
    """What grew while nothing ran, and in how many seconds."""
    out: dict[str, dict[str, int]] = {}
    seconds = 0.0
    for one in seen:
        if one.step.kind == IDLE:
            seconds += one.seconds
            for what, fields in one.growth.items():
                for field, amount in fields.items():
                    if amount > 0 and _is_error(field):
                        row = out.setdefault(what, {})
                        row[field] = row.get(field, 0) + amount
    return out, seconds


def _above(one: Seen, idle: tuple[dict[str, dict[str, int]], float]) -> dict[str, dict[str, int]]:
    """Growth of a step without what grows by itself. A GPU's total is the echo of its links where those are told."""
    background, seconds = idle
    told = {device(what) for what in one.growth if is_end(what)}
    share = one.seconds / seconds if seconds > 0 and one.seconds > 0 else 1.0
    out: dict[str, dict[str, int]] = {}
    for what, fields in sorted(one.growth.items()):
        for field, amount in sorted(fields.items()):
            usual = background.get(what, {}).get(field, 0) * share
            echo = what in told and _kind(what, field) == LINKS
            if amount > 0 and not echo and _is_error(field) and (not usual or amount > BACKGROUND * usual + FEW):
                out.setdefault(what, {})[field] = amount
    return out


def _is_error(field: str) -> bool:
    facts = cat.BY_NAME.get(field)
    return facts is None or (facts.unit not in _NO_ERROR_UNITS and field not in _NO_ERRORS)


def _counts(board: Board, what: str, totals: Mapping[str, Mapping[str, int]], seconds: float) -> bool:
    """Is this enough to accuse anybody? Damaged and resent packets count over both ends of their wire; a retrain always does."""
    ends = wire_of(what, board.fars).ends if is_end(what) else (what,)
    rows = [totals.get(end, {}) for end in ends]
    if any(_limit(field, seconds) <= amount for row in rows for field, amount in row.items()):
        return True
    return sum(amount for row in rows for field, amount in row.items() if field in SENT | RECEIVED) >= FEW


def _limit(field: str, seconds: float) -> float:
    facts = cat.BY_NAME.get(field)
    if field in _PCIE:
        # As many as DCGM expects of a healthy Gen5 x16 slot.
        return 1 + 16 * cat.PCIE_REPLAYS_PER_MINUTE_AND_LANE[5] * max(1.0, seconds / 60)
    links = facts is not None and cat.of_links(facts) and facts.scope == cat.GPU and "recovery" not in field
    return FEW if field in SENT | RECEIVED or field in _CORRECTED or links else 1


def _of_step(board: Board, number: int, one: Seen, grown: Mapping[str, Mapping[str, int]]) -> list[Complaint]:
    groups = [frozenset(group.gpus) for group in one.groups]

    def where(what: str) -> frozenset[str]:
        gpu = entity.gpu_of(what) or entity.gpu_of(board.fars.get(what, ""))
        return next((group for group in groups if gpu in group), frozenset())

    out = [
        Complaint(number, frozenset(g.gpus), COMMAND, "", f"the command failed on {_names(board, g.gpus)}{': ' if g.said else ''}{g.said}")
        for g in one.groups
        if g.ok is False
    ]
    for what, fields in sorted(grown.items()):
        said = f"{board.name(what)}: " + ", ".join(f"{label(field)} +{amount}" for field, amount in sorted(fields.items()))
        for kind in sorted({_kind(what, field) for field in fields}):
            out.append(Complaint(number, where(what), kind, what, said))
    if any(c.kind != REMOTE for c in out):
        out = [c for c in out if c.kind != REMOTE]
    return out + [Complaint(number, where(what), kind, what, line) for kind, what, line in _events(one.events)]


def label(field: str) -> str:
    facts = cat.BY_NAME.get(field)
    return facts.label if facts is not None else field


def _kind(what: str, field: str) -> str:
    if is_end(what):
        return LINK
    facts = cat.BY_NAME.get(field)
    if field == _REMOTE_FIELD:
        return REMOTE
    return LINKS if facts is not None and facts.scope == cat.GPU and cat.of_links(facts) else CARD


def _events(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """(kind, entity, line) of what lines accuse; nothing for Xids that programs cause. Where a GPU died, what others log is an echo."""
    told = [(line, named[1], int(number[1]) if number else None) for line in lines for named, number in [_read_event(line)] if named]
    dead = {what for _, what, number in told if number in DEAD_XIDS}
    for line, what, number in told:
        facts = xids.BY_NUMBER.get(number) if number is not None else None
        harmless = number is not None and (facts is None or facts.klass in _HARMLESS_XIDS)
        if not harmless and (not dead or what in dead):
            about_links = number is None or number in LINK_XIDS
            yield LINK if is_end(what) else DEAD if what in dead else EVENT if about_links else CARD, what, line


def _read_event(line: str) -> tuple[Optional[re.Match[str]], Optional[re.Match[str]]]:
    """(the entity that it names, the number of an Xid); no number for an SXid."""
    return _NAMED.search(line), _XID.search(line)


def _names(board: Board, gpus: Sequence[str]) -> str:
    return " ".join(board.name(uuid) for uuid in gpus)


def passed(run: Run) -> bool:
    """Did a run between GPUs, or alone, come to its end without its command failing? What ran out of time is no pass."""
    return run.ok is True


def is_alone(run: Run) -> bool:
    return run.kind == ALONE or len(run.group) < 2
