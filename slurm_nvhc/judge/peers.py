"""The GPUs of one job beside each other, over the job: stragglers, hot spots, a slow link without errors.

The strongest signal that is published for slow faults: GPUs of one job do the same work, so the one that differs,
lastingly, from its siblings is the odd one (Minder, C4, Greyhound). But under 2 % of jobs are ever slowed by a GPU, so
it is a warning at most, and it counts once it returns over several jobs (hits, of_last).

Only like is compared with like. GPUs of another model, in MIG mode, or that the job left idle while others worked are
no siblings (a job that uses 4 of its 8 GPUs has no stragglers by that), and of each GPU only the time counts in which
it worked: gauges by their median over it. Counters by their growth over the job; counters of time as a share of it.
"""

from __future__ import annotations

import itertools
from typing import Final, Iterable, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import figures
from slurm_nvhc.judge.context import EPILOG, Input
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import series
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.finding import Evidence
from slurm_nvhc.model.history import Sample
from slurm_nvhc.model.reading import number
from slurm_nvhc.model.snapshot import OK
from slurm_nvhc.model.times import duration
from slurm_nvhc.policy.compiled import Level, Peers, Policy

# Our judgement, all four. Of three, two that agree make an outlier of the third by chance; NVIDIA's boards have 4 or 8.
LEAST_GPUS: Final = 4
# A load is sampled twice a minute: less than two minutes of work are too few samples for a median.
LEAST_WORK_S: Final = 120.0
# How far two GPUs' share of working time may be apart, as a fraction of the job, to be called the same load.
SAME_LOAD: Final = 0.2
# Where neither utilisation nor the idle bit is known. Idle boards draw 10 to 17 % of their limit, working ones over half.
WORKING_POWER: Final = 0.25
WORKING_UTIL: Final = 10  # per cent; a GPU that waits in a collective spins, and shows 100
_IDLE_BIT: Final = 0x1  # NVML clocks event reason: nothing runs on the GPU

_LOAD: Final = ("gpu_util", "clock_event_reasons", "power_usage")


class Standing(NamedTuple):
    """Where a GPU stands among its siblings: its own figure, their median and their median absolute deviation.

    Figures are in the field's unit; of counters of time, fractions of the window. seconds: time in which this GPU worked.
    """

    own: float
    median: float
    mad: float
    gpus: int
    seconds: float


class Comparison(NamedTuple):
    """why: why nothing was compared, '' when something was or nothing was asked."""

    why: str = ""
    standings: Mapping[tuple[str, str], Standing] = {}


class _Work(NamedTuple):
    """When a GPU worked: (from, to), and for how long altogether (s)."""

    times: tuple[tuple[int, int], ...]
    seconds: float


def asked(policy: Policy) -> frozenset[str]:
    """Fields that rules compare among peers."""
    rules = (r for r in policy.rules.values() if r.mode != "off" and any(_peers_of((*r.warn, *r.fail))))
    return frozenset(field for rule in rules for field in rule.fields)


def _peers_of(levels: Sequence[Level]) -> Iterable[Peers]:
    return (level.peers for level in levels if level.peers is not None)


def compare(inp: Input, fields: Iterable[str]) -> Comparison:
    """Standings of the job's GPUs for each field: (uuid, field) -> Standing. Only a job's end has them."""
    wanted = sorted(fields)
    if inp.hook != EPILOG or inp.window.kind != "job" or not wanted:
        return Comparison()
    mine = [uuid for uuid in inp.gpus() if uuid in inp.job_uuids()]
    if len(mine) < LEAST_GPUS:
        return Comparison(f"{len(mine)} GPUs, {LEAST_GPUS} are needed")
    if inp.history is None:
        return Comparison("the engine was not asked for its samples: the job was short, or there was no time")
    if not inp.history.watched:
        said = inp.history.troubles[0].detail if inp.history.troubles else "the engine did not sample during the job"
        return Comparison(f"no samples: {said}")
    groups, why = _siblings(inp, mine)
    changes = {(c.entity, c.field): c for c in inp.changes}
    out: dict[tuple[str, str], Standing] = {}
    for group in groups:
        for field in wanted:
            out.update(_standings(inp, group, field, changes))
    return Comparison(why if not groups else "", out)


def _siblings(inp: Input, mine: Sequence[str]) -> tuple[list[dict[str, _Work]], str]:
    """Groups of GPUs of one model that did the same amount of work; and why there is none."""
    by_model: dict[str, dict[str, _Work]] = {}
    for uuid in mine:
        gpu = inp.gpus()[uuid]
        work = _work(inp, uuid)
        if gpu.status == OK and gpu.identity.mig is not True and work.seconds >= LEAST_WORK_S:
            by_model.setdefault(gpu.identity.model, {})[uuid] = work
    if not by_model:
        return [], f"no GPU worked for {duration(LEAST_WORK_S)} while the engine sampled"
    groups = []
    for works in by_model.values():
        usual = series.median([w.seconds for w in works.values()])
        alike = {u: w for u, w in works.items() if abs(w.seconds - usual) <= SAME_LOAD * inp.window.seconds}
        if len(alike) >= LEAST_GPUS:
            groups.append(alike)
    most = max(len(works) for works in by_model.values())
    return groups, f"of {len(mine)} GPUs at most {most} of one model worked, and fewer than {LEAST_GPUS} alike"


def _work(inp: Input, uuid: str) -> _Work:
    """When did the GPU work? By the first of utilisation, idle bit and power that says something at a moment."""
    rows: Mapping[str, Sequence[Sample]] = inp.history.series.get(uuid, {}) if inp.history is not None else {}
    start = inp.window.start_ns if inp.window.start_ns is not None else inp.window.end_ns
    spans = [list(series.steps(rows.get(name, ()), start, inp.window.end_ns)) for name in _LOAD]
    limit = number(inp.gpus()[uuid].readings.get("power_limit_enforced"))
    edges = sorted({ns for row in spans for step in row for ns in (step.from_ns, step.to_ns)})
    at = [0] * len(spans)
    times: list[tuple[int, int]] = []
    for begin, end in itertools.pairwise(edges):
        values: list[Optional[float]] = []
        for i, row in enumerate(spans):
            while at[i] < len(row) and row[at[i]].to_ns <= begin:
                at[i] += 1
            known = at[i] < len(row) and row[at[i]].from_ns <= begin
            values.append(number(row[at[i]].value) if known else None)
        if _works(values[0], values[1], values[2], limit):
            if times and times[-1][1] == begin:
                times[-1] = (times[-1][0], end)
            else:
                times.append((begin, end))
    return _Work(tuple(times), sum(end - begin for begin, end in times) / 1e9)


def _works(util: Optional[float], reasons: Optional[float], watts: Optional[float], limit: Optional[float]) -> bool:
    if util is not None:
        return util >= WORKING_UTIL
    if reasons is not None:
        return not int(reasons) & _IDLE_BIT
    return watts is not None and limit is not None and watts >= WORKING_POWER * limit


def _standings(
    inp: Input, group: Mapping[str, _Work], field: str, changes: Mapping[tuple[str, str], Change]
) -> dict[tuple[str, str], Standing]:
    """Of those GPUs of the group that have the figure; too few of them have no standing."""
    facts = cat.BY_NAME[field]
    figures_: dict[str, float] = {}
    for uuid, work in group.items():
        own = _growth(changes.get((uuid, field)), facts) if facts.kind == cat.COUNTER else _over_work(inp, uuid, field, work)
        if own is not None:
            figures_[uuid] = own
    if len(figures_) < LEAST_GPUS:
        return {}
    middle = series.median(list(figures_.values()))
    mad = series.median([abs(value - middle) for value in figures_.values()])
    return {(u, field): Standing(own, middle, mad, len(figures_), group[u].seconds) for u, own in figures_.items()}


def _growth(change: Optional[Change], facts: cat.Field) -> Optional[float]:
    """A counter's growth over the window; None when it was reset within, or was not to be had."""
    if change is None or change.kind != ch.EXACT or change.amount is None or change.seconds <= 0:
        return None
    return change.amount / (change.seconds * 1e9) if facts.unit == "ns" else change.amount


def _over_work(inp: Input, uuid: str, field: str, work: _Work) -> Optional[float]:
    """A gauge's median over the time in which the GPU worked. None when it was known for less than the least of it."""
    samples = inp.history.series.get(uuid, {}).get(field, ()) if inp.history is not None else ()
    if not work.times:
        return None
    held: list[tuple[float, int]] = []
    first = 0  # both are in order: one pass over the samples, not one for each span of work
    for step in series.steps(samples, work.times[0][0], work.times[-1][1]):
        value = number(step.value)
        while work.times[first][1] <= step.from_ns:
            first += 1
        for at in range(first, len(work.times)):
            begin, end = work.times[at]
            if begin >= step.to_ns:
                break
            if value is not None:
                held.append((float(value), min(step.to_ns, end) - max(step.from_ns, begin)))
    if sum(ns for _value, ns in held) < LEAST_WORK_S * 1e9:
        return None
    return series.lasting_median(held)


def stands_out(peers: Peers, standing: Optional[Standing], field: str) -> Optional[bool]:
    """Does the GPU stand out on the side that is asked? None without a comparison.

    By the amount, which is also the least that a deviation must be where siblings are as good as identical (their MAD
    is 0 then), and by ``mad`` of their deviations: siblings that differ much among themselves have no odd one.
    """
    if standing is None:
        return None
    away = standing.own - standing.median if peers.side == "above" else standing.median - standing.own
    amount = peers.amount
    if peers.relative and cat.BY_NAME[field].unit != "ns":  # a share of the median; of time counters, of the job
        amount *= abs(standing.median)
    return away >= amount and away > 0 and away >= peers.mad * standing.mad


def told(evidence: Evidence, standing: Standing) -> Evidence:
    """A gauge's reading at the end of the job is of an idle GPU: the evidence is its median, beside that of all."""
    if cat.BY_NAME[evidence.field].kind == cat.COUNTER:
        return evidence._replace(limit=standing.median)
    return evidence._replace(before=None, after=standing.own, limit=standing.median, text=f"while it worked, {duration(standing.seconds)}")


def say(field: str, standing: Standing) -> str:
    """'SM clock 1410 MHz over the job, median of its 8 GPUs 1980 MHz'."""
    facts = cat.BY_NAME[field]

    def figure(value: float) -> str:
        if facts.unit == "ns":
            return f"{value * 100:.3g} %"
        return figures.amount(value, facts) if facts.kind == cat.COUNTER else figures.value(value, facts)

    grown = "+" if facts.kind == cat.COUNTER and facts.unit != "ns" else ""
    return f"{facts.label} {grown}{figure(standing.own)} over the job, median of its {standing.gpus} GPUs {grown}{figure(standing.median)}"
