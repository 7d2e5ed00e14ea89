"""What is computed, not simulated: chances of the Poisson distribution, with the real judge saying what each count leads to."""

from __future__ import annotations

import math
from random import Random
from typing import Final, Iterable, NamedTuple, Optional

from detection.boards import Board, board
from detection.ours import judged, policy_of
from detection.plan import GROW, HOUR, Effect, Job, Plan, link, times
from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.judge import chance
from slurm_nvhc.model import finding as fd
from slurm_nvhc.policy.compiled import Level, Policy

MARIN_PER_H: Final = 8.6  # the one link of 5760 that counted errors (marin#9086)
EMBER_PER_H: Final = 0.5
NULL_PER_H: Final = 0.001
BOARD: Final = "hgx-h100-8"
PERIOD_S: Final = 300.0
JOBS_A_DAY: Final = 10
DAY_H: Final = 24.0


def one_job(field: str, count: int, hours: float = 1.0) -> str:
    """The verdict of a job of this length in which one link counted so many errors, at a node without a past."""
    seconds = hours * HOUR
    at = 600.0
    effects = tuple(Effect(at + (i + 0.5) * seconds / count, GROW, link(3, 11), field, 1) for i in range(count))
    job = Job(1, at, at + seconds, tuple(range(board(BOARD).gpus)), 1000)
    # No health check but the first and the last: the job's own window alone.
    plan = Plan("one", BOARD, at + seconds + 10.0, 0.0, at + seconds + 5.0, (job,), effects)
    return fd.worst(v.verdict for v in judged(plan, stop=False).verdicts)


def flagged_from(field: str, hours: float = 1.0, most: int = 60) -> Optional[int]:
    """The smallest count in a job that the judge warns or fails at; None up to ``most``. More errors are never judged better."""
    low, high = 0, most
    if one_job(field, most, hours) == fd.OK:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if one_job(field, middle, hours) == fd.OK else (low, middle)
    return high


def simulated(seed: int, number: int, per_h: float = MARIN_PER_H) -> bool:
    """Is a link with this rate of recoveries flagged by the end of one job of an hour, with all hooks that run meanwhile?"""
    rng = Random(f"{seed}/one/{number}")
    start = rng.uniform(600.0, 1200.0)
    place = link(rng.randrange(8), rng.randrange(18))
    effects = tuple(Effect(at, GROW, place, "nvlink_recovery", 1) for at in times(rng, per_h / HOUR, start, start + HOUR))
    job = Job(1, start, start + HOUR, tuple(range(8)), 1000)
    plan = Plan(f"one-{number}", BOARD, start + HOUR + 1.0, rng.uniform(0, PERIOD_S), PERIOD_S, (job,), effects)
    return any(v.verdict in (fd.WARN, fd.FAIL) for v in judged(plan, stop=False).verdicts)


class Power(NamedTuple):
    """Of one job: flagged from so many errors on, P(flagged) at the faulty rate, and at the null's."""

    hours: float
    errors: Optional[int]
    detected: float
    null: float


def power(field: str, per_h: float, hours: float) -> Power:
    count = flagged_from(field, hours)
    if count is None:
        return Power(hours, None, 0.0, 0.0)
    return Power(hours, count, chance.tail(count, per_h * hours), chance.tail(count, NULL_PER_H * hours))


class RuleTests(NamedTuple):
    """The statistical tests of one rule's level at one node in a day, and their false alarms.

    bound: what the policy's budget grants them; expected: the exact sum of their tails for healthy counters.
    """

    rule: str
    verdict: str
    test: str
    counters: int
    looks: float
    bound: float
    expected: float


def all_tests(name: str = BOARD) -> list[RuleTests]:
    """Of the packaged policy on one board, with health checks every PERIOD_S and JOBS_A_DAY jobs of equal length."""
    home = board(name)
    policy, _ = policy_of(name)
    out = []
    for rule in policy.rules.values():
        if rule.kind != "reading" or rule.mode == fd.OFF:
            continue
        counters = sum(_places(home, field) for field in rule.fields)
        for verdict, levels in ((fd.WARN, rule.warn), (fd.FAIL, rule.fail)):
            for level in levels:
                if counters and (level.poisson is not None or level.cusum is not None):
                    out.append(_tests(policy, rule.name, verdict, level, counters))
    return out


def _places(home: Board, field: str) -> int:
    """How many counters of this field the node has. Totals are asked only where no link explains them: not counted twice."""
    facts = cat.BY_NAME[field]
    states = list((home.snapshot.gpus or {}).values())
    if facts.scope == cat.LINK:
        return sum(1 for s in states for readings in s.links.values() if isinstance(readings.get(field), (int, float)))
    if facts.scope == cat.GPU:
        return 0 if field.endswith("_total") else sum(1 for s in states if isinstance(s.readings.get(field), (int, float)))
    return sum(1 for readings in home.snapshot.parts.values() if isinstance(readings.get(field), (int, float)))


def _tests(policy: Policy, name: str, verdict: str, level: Level, counters: int) -> RuleTests:
    alpha = policy.false_alarms.alpha
    if level.cusum is not None:
        hourly = level.cusum.normal_per_s * HOUR, level.cusum.faulty_per_s * HOUR
        hours = DAY_H * counters
        expected = chance.false_alarms(*hourly, chance.cusum_limit(*hourly, alpha)) * hours
        return RuleTests(name, verdict, "CUSUM", counters, DAY_H, alpha * hours, expected)
    assert level.poisson is not None
    watches = 86400 / PERIOD_S
    windows = [(PERIOD_S, watches), (86400 / JOBS_A_DAY, float(JOBS_A_DAY))]
    if level.of_last is not None:  # jobs only
        windows = windows[1:]
    expected = 0.0
    for seconds, number in windows:
        mean = level.poisson.per_s * seconds
        count = max(chance.critical(mean, alpha), math.ceil(level.increase_at_least or 0), math.floor(level.increase_above or 0))
        expected += number * chance.tail(count, mean)
    looks = sum(number for _, number in windows)
    return RuleTests(name, verdict, "Poisson", counters, looks, alpha * looks * counters, expected * counters)


class Worse(NamedTuple):
    """false: drains a day in 10,000 nodes if every healthy link made so many replays and recoveries an hour, instead of NULL_PER_H."""

    per_h: float
    false: float


def if_worse(per_h: float, name: str = BOARD) -> Worse:
    """What the gathered evidence then alarms for nothing: the rules that drain by it, and no others (the Poisson tests need two jobs)."""
    policy, _ = policy_of(name)
    alpha, false = policy.false_alarms.alpha, 0.0
    for rule in (policy.rules["nvl_replay"], policy.rules["nvl_recovery"]):
        for cusum in (level.cusum for level in rule.fail if level.cusum is not None):
            rates = cusum.normal_per_s * HOUR, cusum.faulty_per_s * HOUR
            limit, falls = chance.cusum_limit(*rates, alpha), chance.allowance(*rates)
            counters = sum(_places(board(name), field) for field in rule.fields)
            false += chance.false_alarms(per_h, _with_allowance(per_h, falls), limit) * DAY_H * counters * 10_000
    return Worse(per_h, false)


def _with_allowance(normal: float, falls: float) -> float:
    """The faulty rate with which a CUSUM of this normal rate has this allowance: so chance.false_alarms speaks of any true rate."""
    low, high = falls, 1e6 * falls
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if chance.allowance(normal, middle) < falls else (low, middle)
    return high


def upper_rate(alarms: int, node_days: float, confidence: float = 0.95) -> float:
    """Exact upper bound (Garwood) of alarms per node and day."""
    return chance.upper_mean(alarms, confidence) / node_days if node_days > 0 else math.inf


def false_alarms(rows: Iterable[RuleTests], verdict: str, nodes: float = 10_000.0) -> float:
    """Expected false alarms a day in so many nodes, from the exact tails."""
    return sum(row.expected for row in rows if row.verdict == verdict) * nodes
