"""Rows of samples over time (model/history.py) as what they mean: values that hold, and moments of growth. Pure.

A row holds changes only, so a value holds until the next sample. Moments are integer ns UTC.
"""

from __future__ import annotations

from typing import Final, Iterable, Iterator, NamedTuple, Optional, Sequence

from slurm_nvhc.model.history import INTERVAL_S, MOST_SAMPLES, Sample
from slurm_nvhc.model.reading import Reading, number

_INTERVAL_NS: Final = int(INTERVAL_S * 1e9)


class Step(NamedTuple):
    """A value and the time it held."""

    from_ns: int
    to_ns: int
    value: Reading


class Growth(NamedTuple):
    """A counter grew by ``amount`` somewhere between two moments."""

    from_ns: int
    to_ns: int
    amount: float


def steps(samples: Sequence[Sample], start_ns: int, end_ns: int) -> Iterator[Step]:
    """The values between two moments; nothing before the first sample, the last one until the end."""
    for i, sample in enumerate(samples):
        until = samples[i + 1].at_ns if i + 1 < len(samples) else end_ns
        begin, end = max(start_ns, sample.at_ns), min(end_ns, until)
        if begin < end:
            yield Step(begin, end, sample.value)


def growth(samples: Sequence[Sample], start: tuple[int, Optional[Reading]], end: tuple[int, Optional[Reading]]) -> list[Growth]:
    """When a counter grew between two readings (moment, value), by the samples in between.

    Growth that a sample shows happened since the sample before, at most one interval of the watch ago. Where that
    one is not known (no data, a thinned row, the watch made later) it happened since the last value that is known.
    A counter that went back was cleared: what it shows then was counted since.
    """
    inside = [s for s in samples if start[0] <= s.at_ns < end[0]]
    if not inside:
        return []  # not sampled: all that is known is that it grew in the window
    thinned = len(samples) >= MOST_SAMPLES
    out: list[Growth] = []
    last_ns, last = start[0], number(start[1])
    known = False  # was the engine sampling when the value was last seen?
    for sample in (*inside, Sample(end[0], end[1] if end[1] is not None else inside[-1].value)):
        value = number(sample.value)
        if value is None:
            known = False
            continue
        amount = 0.0 if last is None else float(value - last if value >= last else value)
        if amount > 0:
            since = max(last_ns, sample.at_ns - _INTERVAL_NS) if known and not thinned else last_ns
            out.append(Growth(since, sample.at_ns, amount))
        last_ns, last, known = sample.at_ns, value, True
    return out


def merged(moments: Iterable[Growth], most: int) -> tuple[Growth, ...]:
    """Moments that touch become one; of more than ``most`` the nearest are joined, the quiet time between them included."""
    out: list[Growth] = []
    for moment in sorted(moments):
        if out and moment.from_ns <= out[-1].to_ns:
            out[-1] = _joined(out[-1], moment)
        else:
            out.append(moment)
    while len(out) > most:
        gaps = [out[i + 1].from_ns - out[i].to_ns for i in range(len(out) - 1)]
        i = gaps.index(min(gaps))
        out[i : i + 2] = [_joined(out[i], out[i + 1])]
    return tuple(out)


def _joined(one: Growth, other: Growth) -> Growth:
    return Growth(min(one.from_ns, other.from_ns), max(one.to_ns, other.to_ns), one.amount + other.amount)


def median(values: Sequence[float]) -> float:
    """The middle one, or the mean of the two middle ones. ValueError for none."""
    if not values:
        raise ValueError("the median of nothing")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return float(ordered[middle]) if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2.0


def lasting_median(held: Iterable[tuple[float, int]]) -> Optional[float]:
    """The median over time of (value, ns that it held): half of the time it was lower, half higher. None for no time."""
    ordered = sorted((value, ns) for value, ns in held if ns > 0)
    half, passed = sum(ns for _value, ns in ordered) / 2.0, 0
    for value, ns in ordered:
        passed += ns
        if passed >= half:
            return float(value)
    return None
