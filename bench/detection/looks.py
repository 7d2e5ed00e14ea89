"""Which looks of the hooks are judged, and why leaving out the others changes no verdict.

A node is looked at some 290 times a day, and on nearly all looks nothing has changed. A look is
*quiet* when since the look before it no counter that a rule asks about moved, nothing happened,
every state is at rest, and no window that ends in it holds such growth. In a quiet look every
condition over growth, states and events is false; evidence carried over looks only falls with
time, by the same amount in one step as in many; what was seen so often in a row, or within so
many hours, can only become less. A quiet look can therefore repeat a verdict, never bring a new
one, and what it does to the memory is done by the next look that is judged, but for the number of
jobs, which is counted one by one (ours.py).

Judged are: every look that is not quiet; the look before each of these, so that growth falls into
the same short window as it would; the first and the last. Counters that move all the time
(plan.Flow: time at the power limit, traffic, PCIe replays) make no look loud: a rate that is
steady is the same in every window. tests/test_bench_detection.py judges random nodes both ways.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import NamedTuple, Optional

from detection.plan import Job, Plan
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK, PROLOG


class Look(NamedTuple):
    """A hook's run. judged: False where it is quiet: a prolog keeps its baseline, an epilog counts as a job, no more."""

    at: float
    hook: str
    job: Optional[Job]
    judged: bool


def looks(plan: Plan, every: bool = False) -> list[Look]:
    """All looks that matter, in order; with ``every`` all there are, and all judged."""
    loud = _loud_checks(plan)
    checks = range(1, _check(plan, plan.seconds)) if every else sorted(n for n in loud if 1 <= n < _check(plan, plan.seconds))
    out = [Look(at, HEALTH_CHECK, None, True) for n in checks if _runs(plan, at := _moment(plan, n))]
    out += [Look(at, HEALTH_CHECK, None, True) for at in plan.extra]
    happened = sorted(e.at for e in plan.effects if e.at > 0)
    for job in plan.jobs:
        out.append(Look(job.start, PROLOG, job, every or _check(plan, job.start) in loud))
        if job.finished:
            in_job = _any_in(happened, job.start, job.end) or any(a <= job.end and b >= job.start for a, b in plan.unrest)
            in_job = in_job or (plan.every_job_from is not None and job.end > plan.every_job_from) or plan.sampled
            out.append(Look(job.end, EPILOG, job, every or in_job or _check(plan, job.end) in loud))
    return sorted(out, key=lambda look: look.at)


def _loud_checks(plan: Plan) -> set[int]:
    """Health checks by number that are judged."""
    out = {1, _check(plan, plan.seconds) - 1}
    for effect in plan.effects:
        n = _check(plan, effect.at)
        out.update((_before(plan, n), n))
    for start, end in plan.unrest:
        first = _check(plan, start)
        out.update((_before(plan, first), *range(first, _check(plan, min(end, plan.seconds)) + 1)))
    for at in plan.extra:
        out.add(_before(plan, _check(plan, at)))
    return out


def _before(plan: Plan, n: int) -> int:
    """The health check before this one; none runs while the node is down."""
    n -= 1
    while n > 0 and not _runs(plan, _moment(plan, n)):
        n -= 1
    return n


def _check(plan: Plan, at: float) -> int:
    """Number of the first health check at or after a moment."""
    return math.ceil((at - plan.phase) / plan.period)


def _moment(plan: Plan, n: int) -> float:
    return plan.phase + n * plan.period


def _runs(plan: Plan, at: float) -> bool:
    return not any(start < at < end for start, end in plan.down)


def _any_in(moments: list[float], start: float, end: float) -> bool:
    return bisect_right(moments, end) > bisect_right(moments, start)
