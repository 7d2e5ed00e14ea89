"""From verdicts and truth to figures."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Final, Iterable, Mapping, NamedTuple, Optional, Sequence

from detection import theirs
from detection.boards import board
from detection.ours import Seen, judged, related
from detection.plan import MUST_ACT, Plan
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.suspect import Suspect

DAY_S: Final = 86400.0
# Warnings that state what did happen and accuse nobody: a program failed, a repair waits for a reset, somebody
# changed the configuration. All others about a sound node are false.
STATEMENTS: Final = frozenset(
    {"XID-APP", "XID-MEMORY", "MEM-REMAP-PENDING", "MEM-REMAPPED", "MEM-CORRECTED", "CONFIG-DRIFT", "CONFIG-VERSION"}
)
OURS: Final = "slurm-nvhc, every rule enforced"
PACKAGED: Final = "slurm-nvhc, only rules that act from day one"

# How a suspect fits the truth
RIGHT, COARSE, WRONG = "right", "coarse", "wrong"


class Outcome(NamedTuple):
    """One node. kind: '' for a sound one. Times in seconds since the node's beginning; None: never.

    drained, wrongly, packaged, answered: as in ours.Seen
    false_warnings, statements: episodes of warnings before the fault, see STATEMENTS
    suspects:  how each named suspect fits, in the run that answered
    rules:     published rule -> its alarms
    """

    node: str
    board: str
    kind: str
    severity: str
    nvlink: bool
    began: Optional[float]
    seconds: float
    wrongly: Optional[float]
    wrongly_by: tuple[str, ...]
    drained: Optional[float]
    answered: Optional[float]
    packaged: Optional[float]
    false_warnings: tuple[str, ...]
    statements: int
    looks: int
    suspects: tuple[str, ...]
    rules: Mapping[str, theirs.Alarm]


def outcome(plan: Plan) -> Outcome:
    """Judge one node by all rules."""
    seen = judged(plan)
    fault = plan.fault
    began = fault.at if fault is not None else None
    early = [v for v in seen.verdicts if began is None or v.at < began]
    return Outcome(
        node=plan.node,
        board=plan.board,
        kind=fault.kind if fault is not None else "",
        severity=fault.severity if fault is not None else "",
        nvlink=fault.nvlink if fault is not None else False,
        began=began,
        seconds=plan.seconds,
        wrongly=seen.wrongly,
        wrongly_by=seen.wrongly_by,
        drained=seen.drained,
        answered=seen.answered,
        packaged=seen.packaged,
        false_warnings=tuple(v.code for v in early if v.verdict == fd.WARN and v.code not in STATEMENTS),
        statements=sum(v.code in STATEMENTS for v in early),
        looks=seen.looks,
        suspects=tuple(_fits(s, plan, seen) for s in seen.suspects if s.named),
        rules={rule: theirs.alarm(plan, board(plan.board), rule) for rule in theirs.RULES},
    )


def _fits(suspect: Suspect, plan: Plan, seen: Seen) -> str:
    """RIGHT: the part, as what it is. COARSE: something that holds the part, or a part of it. WRONG: a healthy part."""
    assert plan.fault is not None
    names = tuple(filter(None, (suspect.entity, suspect.far)))
    if suspect.kind in plan.fault.kinds and any(n in seen.parts for n in names):
        return RIGHT
    return COARSE if any(related(n, p) for n in names for p in seen.parts) else WRONG


class Score(NamedTuple):
    """of: faults that the rule could see. node_days: watched without an alarm. median_s, p95_s: from the fault to its alarm."""

    rule: str
    found: int
    of: int
    false: int
    node_days: float
    median_s: Optional[float]
    p95_s: Optional[float]

    @property
    def precision(self) -> Optional[float]:
        return self.found / (self.found + self.false) if self.found + self.false else None

    @property
    def recall(self) -> Optional[float]:
        return self.found / self.of if self.of else None

    @property
    def f1(self) -> Optional[float]:
        whole = 2 * self.found + self.false + (self.of - self.found)
        return 2 * self.found / whole if whole else None

    @property
    def false_per_day(self) -> float:
        """In 10,000 nodes."""
        return self.false / self.node_days * 10_000 if self.node_days else 0.0


def score(rule: str, outcomes: Sequence[Outcome], nvlink: bool = False) -> Score:
    """Of drains, against faults that must act; with ``nvlink`` only against those that counters of links show."""
    found: list[float] = []
    of = false = 0
    days = 0.0
    for o in outcomes:
        before, after = alarms(rule, o)
        false += before is not None
        days += min(x for x in (before, o.seconds if o.began is None else o.began) if x is not None) / DAY_S
        if o.severity == MUST_ACT and o.began is not None and (o.nvlink or not nvlink):
            of += 1
            if after is not None:
                found.append(after - o.began)
    return Score(rule, len(found), of, false, days, *_spread(found))


def alarms(rule: str, o: Outcome) -> tuple[Optional[float], Optional[float]]:
    """(before the fault, at or after it)"""
    if rule == OURS:
        return o.wrongly, o.drained
    if rule == PACKAGED:
        return (o.packaged, None) if o.began is None else (None, o.packaged)
    return o.rules[rule]


class KindScore(NamedTuple):
    """Of one kind of fault. rules: published rule -> how many it found."""

    kind: str
    severity: str
    of: int
    found: int
    median_s: Optional[float]
    p95_s: Optional[float]
    rules: Mapping[str, int]
    suspects: Mapping[str, int]
    abstained: int
    nvlink: bool


def by_kind(outcomes: Iterable[Outcome]) -> list[KindScore]:
    groups: dict[str, list[Outcome]] = {}
    for o in outcomes:
        if o.kind:
            groups.setdefault(o.kind, []).append(o)
    return [_of_kind(kind, group) for kind, group in groups.items()]


def _of_kind(kind: str, group: Sequence[Outcome]) -> KindScore:
    found = [o.answered - o.began for o in group if o.answered is not None and o.began is not None]
    answered = [o for o in group if o.answered is not None]
    rules = {rule: sum(o.rules[rule].after is not None for o in group) for rule in theirs.RULES}
    fits = Counter(fit for o in answered for fit in o.suspects)
    abstained = sum(not o.suspects for o in answered)
    return KindScore(kind, group[0].severity, len(group), len(found), *_spread(found), rules, fits, abstained, group[0].nvlink)


class Suspicion(NamedTuple):
    """Of named suspects: how many are right, coarse and wrong.

    Of answered faults: how many were left without a name, and for how many a healthy part is blamed.
    """

    right: int
    coarse: int
    wrong: int
    faults: int
    abstained: int
    blaming: int


def suspicion(outcomes: Iterable[Outcome]) -> Suspicion:
    answered = [o for o in outcomes if o.kind and o.answered is not None]
    fits = Counter(fit for o in answered for fit in o.suspects)
    abstained = sum(not o.suspects for o in answered)
    return Suspicion(fits[RIGHT], fits[COARSE], fits[WRONG], len(answered), abstained, sum(WRONG in o.suspects for o in answered))


def _spread(seconds: Sequence[float]) -> tuple[Optional[float], Optional[float]]:
    if not seconds:
        return None, None
    ordered = sorted(seconds)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
