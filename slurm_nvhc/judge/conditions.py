"""Does one level of one rule hold for one reading and one change? Pure tri-state: True, False or None = no data.

Only what can be said about this moment and this window; persistence over
observations, jobs and time is added in rules.py with the memory.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Final, Mapping, NamedTuple, Optional

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.judge import expect, peers, rates
from slurm_nvhc.judge.evidence import Gathered
from slurm_nvhc.model import change as ch
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.reading import NoData, Reading, number
from slurm_nvhc.policy.compiled import Cusum, Level

_WINDOWED: Final = ("increase_above", "increase_at_least", "rate_above", "rate_at_least", "share_above", "over_limit", "poisson")


class Subject(NamedTuple):
    """What a level is asked about: one field of one GPU or link.

    readings: the GPU's other readings, for comparisons with limits
    was_up, expected_up: link states only: it was up at some time; the policy expects this link
    xids:     Xids of the GPU in the window
    learned:  what is normal for this reading here, None when nothing was learned
    normal:   what growth is normal over the window; may be left out for what did not grow
    gathered: the evidence of all looks, where there is any, by the rates that a level asks with
    standing: where the GPU stands among its job's GPUs in this reading, None when they were not compared
    in_scope: is its window judged here? See Input.in_scope; the node's parts always are
    """

    field: str
    reading: Optional[Reading]
    change: Optional[Change]
    readings: Mapping[str, Reading]
    was_up: bool = False
    expected_up: bool = False
    xids: frozenset[int] = frozenset()
    learned: Optional[expect.Expected] = None
    standing: Optional[peers.Standing] = None
    normal: Optional[rates.Normal] = None
    gathered: Mapping[Cusum, Gathered] = {}
    in_scope: bool = True


def windowed(level: Level) -> bool:
    """Does the level ask about a window (growth, rate) rather than about this moment?"""
    return _asks(level)[1]


def asks_growth(level: Level) -> bool:
    """Does the level ask for growth over the window, so that none of it is an answer?"""
    return _asks(level)[0]


MOST_ASKED: Final = 4096
_asked: dict[int, tuple[Level, tuple[bool, bool]]] = {}  # by identity: a level is asked about hundreds of links


def _asks(level: Level) -> tuple[bool, bool]:
    """(for growth over the window, for anything that only a window has)"""
    known = _asked.get(id(level))
    if known is None or known[0] is not level:
        growth = any(getattr(level, name) is not None for name in _WINDOWED)
        if len(_asked) >= MOST_ASKED:  # levels of policies that are gone
            _asked.clear()
        known = _asked[id(level)] = (level, (growth, growth or level.of_last is not None or level.peers is not None))
    return known[1]


def holds(level: Level, subject: Subject) -> Optional[bool]:
    """All conditions of the level that concern this moment and window. None when one lacks its data."""
    if subject.change is not None and subject.change.amount == 0 and _asks(level)[0]:
        return False  # nearly all counters of nearly all looks: what did not grow meets no condition on growth
    answers = [*_growth(level, subject), *_value(level, subject)]
    if level.cusum is not None:
        found = subject.gathered.get(level.cusum)
        unread = subject.reading is None or isinstance(subject.reading, NoData)
        answers.append(found.holds if found is not None else None if unread else False)
    if not answers or _excused(level, subject):
        return False
    answers += [_is_one_of(subject.readings.get(field), values) for field, values in level.only_when]
    if False in answers:
        return False
    return None if None in answers else True


def _is_one_of(reading: Optional[Reading], values: tuple[Any, ...]) -> Optional[bool]:
    return None if reading is None or isinstance(reading, NoData) else reading in values


def _excused(level: Level, subject: Subject) -> bool:
    """Something known about the same GPU speaks against the level."""
    if subject.xids & set(level.unless_xid):
        return True
    return any(subject.readings.get(field) in values for field, values in level.unless)


def _growth(level: Level, subject: Subject) -> list[Optional[bool]]:
    if not _asks(level)[0]:
        return []
    change = subject.change
    if change is None or change.kind == ch.UNKNOWN or change.amount is None:
        return [None]
    if change.seconds < level.min_window_s:
        return [False]
    answers: list[Optional[bool]] = []
    if level.increase_above is not None:
        answers.append(change.amount > level.increase_above)
    if level.increase_at_least is not None:
        answers.append(change.amount >= level.increase_at_least)
    rate = change.amount / change.seconds if change.seconds > 0 else None
    if level.rate_above is not None:
        answers.append(rate is not None and rate > level.rate_above)
    if level.rate_at_least is not None:
        answers.append(rate is not None and rate >= level.rate_at_least)
    if level.share_above is not None:
        answers.append(rate is not None and rate / 1e9 > level.share_above)
    if level.poisson is not None:
        answers.append(rates.beyond_chance(level.poisson, change, subject.normal))
    if level.over_limit is not None:
        limit = computed_limit(level.over_limit, subject.readings)
        answers.append(None if limit is None else rate is not None and rate > level.times * limit)
    return answers


def computed_limit(name: str, readings: Mapping[str, Reading]) -> Optional[float]:
    """A limit that depends on the GPU, per second. "pcie_replays": DCGM's expected replays for generation and width.

    Uses the best generation and width this GPU and slot can do: the current
    generation falls to 1 when idle, which would lower the limit between jobs.
    """
    if name != "pcie_replays":
        return None
    gen = number(readings.get("pcie_max_gen")) or number(readings.get("pcie_gen"))
    width = number(readings.get("pcie_max_width")) or number(readings.get("pcie_width"))
    if gen is None or width is None:
        return None
    per_lane = cat.PCIE_REPLAYS_PER_MINUTE_AND_LANE.get(int(gen))
    return None if per_lane is None else math.ceil(per_lane * width) / 60.0


def _value(level: Level, subject: Subject) -> list[Optional[bool]]:
    answers: list[Optional[bool]] = []
    value = number(subject.reading)
    for bound, test in (
        (level.value_above, operator.gt),
        (level.value_below, operator.lt),
        (level.value_at_least, operator.ge),
        (level.value_at_most, operator.le),
    ):
        if bound is not None:
            answers.append(None if value is None else bool(test(value, bound)))
    known = subject.reading is not None and not isinstance(subject.reading, NoData)
    if level.value_is is not None:
        answers.append(subject.reading in level.value_is if known else None)
    if level.value_is_not is not None:
        answers.append(subject.reading not in level.value_is_not if known else None)
    if level.bits_any is not None:
        answers.append(None if value is None else bool(int(value) & level.bits_any))
    if level.below_field is not None:
        other = number(subject.readings.get(level.below_field))
        answers.append(None if value is None or other is None else value < other + level.offset)
    if level.above_field is not None:
        other = number(subject.readings.get(level.above_field))
        answers.append(None if value is None or other is None else value > other + level.offset)
    if level.went_down:
        answers.append(_went_down(subject) if known else None)
    if level.peers is not None:
        answers.append(peers.stands_out(level.peers, subject.standing, subject.field))
    return [*answers, *expect.answers(level, subject.reading, subject.learned)]


def _went_down(subject: Subject) -> bool:
    """Not up, and it was before or should be. "Disabled" is an administrator's word (part of a board, a
    partitioned fabric): only a link that was up before went down by it."""
    if subject.reading == "disabled":
        return subject.was_up
    return subject.reading == "down" and (subject.was_up or subject.expected_up)
