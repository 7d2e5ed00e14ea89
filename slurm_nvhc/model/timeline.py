"""What the GPUs of a job did, minute by minute, small enough to be kept with the run. Pure.

The engine forgets after a day and thins what it hands out; an administrator asks a week later. So an epilog keeps at
most 120 values of each GPU and reading. Compressed: 33 KiB for 8 busy GPUs and two hours or
more, half of it for one hour; 230 KiB if every counter of the catalogue grew all the time, which none does.
"""

from __future__ import annotations

import math
from typing import Any, Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import series
from slurm_nvhc.model.history import History, Sample
from slurm_nvhc.model.reading import number

MOST_BUCKETS: Final = 120
SHORTEST_BUCKET_S: Final = 60
# Gauges that tell what a GPU did; limits and widths stand in the snapshots.
GAUGES: Final = (
    "sm_clock", "gpu_util", "power_usage", "gpu_temp", "memory_temp", "gpu_temp_margin", "nvlink_throughput", "clock_event_reasons",
)  # fmt: skip
COUNTERS: Final = tuple(f.name for f in cat.ALL if f.scope == cat.GPU and f.kind == cat.COUNTER)
# What is asked of the engine's history. It gives those that its watch has.
FIELDS: Final = (*GAUGES, *COUNTERS)
_BITS: Final = "clock_event_reasons"


class Timeline(NamedTuple):
    """gpus: uuid -> catalogue name -> (bucket, value), oldest first.

    A gauge's value is its median over the bucket and holds until the next entry, None is no data (clock event
    reasons: every reason there was). A counter's is how much it grew in that bucket, and 0 where there is no entry.
    """

    start_ns: int
    end_ns: int
    bucket_s: int
    gpus: Mapping[str, Mapping[str, tuple[tuple[int, Optional[float]], ...]]]

    def bucket(self, at_ns: int) -> int:
        """The number of the bucket that a moment within start and end lies in."""
        return max(0, min(at_ns, self.end_ns - 1) - self.start_ns) // (self.bucket_s * 10**9)

    def at(self, at_ns: int) -> dict[str, dict[str, Optional[float]]]:
        """What is known of each GPU around a moment: uuid -> name -> value; a counter only where it grew."""
        wanted = self.bucket(at_ns)
        out: dict[str, dict[str, Optional[float]]] = {}
        for uuid, rows in self.gpus.items():
            out[uuid] = {}
            for name, entries in rows.items():
                told = [value for b, value in entries if (b <= wanted if name in GAUGES else b == wanted)]
                if told:
                    out[uuid][name] = told[-1]
        return out


def build(history: History, uuids: Sequence[str], start_ns: int, end_ns: int) -> Optional[Timeline]:
    """None when the engine did not sample, or there is no time to speak of."""
    seconds = (end_ns - start_ns) / 1e9
    if not history.watched or seconds <= 0:
        return None
    # Whole minutes, so that a bucket can be named by the clock.
    minutes = math.ceil(seconds / MOST_BUCKETS / SHORTEST_BUCKET_S)
    bucket_s = max(1, minutes) * SHORTEST_BUCKET_S
    gpus: dict[str, dict[str, tuple[tuple[int, Optional[float]], ...]]] = {}
    for uuid in uuids:
        rows: dict[str, tuple[tuple[int, Optional[float]], ...]] = {}
        for name, samples in history.series.get(uuid, {}).items():
            entries = _gauge(name, samples, start_ns, end_ns, bucket_s) if name in GAUGES else _counter(samples, start_ns, end_ns, bucket_s)
            if entries and name in FIELDS:
                rows[name] = entries
        if rows:
            gpus[uuid] = rows
    return Timeline(start_ns, end_ns, bucket_s, gpus) if gpus else None


def _gauge(name: str, samples: Sequence[Sample], start_ns: int, end_ns: int, bucket_s: int) -> tuple[tuple[int, Optional[float]], ...]:
    width = bucket_s * 10**9
    held: dict[int, list[tuple[float, int]]] = {}
    for step in series.steps(samples, start_ns, end_ns):
        value = number(step.value)
        if value is None:
            continue
        first, last = (step.from_ns - start_ns) // width, (step.to_ns - 1 - start_ns) // width
        for bucket in range(first, last + 1):
            begin = start_ns + bucket * width
            held.setdefault(bucket, []).append((float(value), min(step.to_ns, begin + width) - max(step.from_ns, begin)))
    out: list[tuple[int, Optional[float]]] = []
    for bucket in range((end_ns - 1 - start_ns) // width + 1):
        parts = held.get(bucket)
        one = None if parts is None else _all_bits(parts) if name == _BITS else series.lasting_median(parts)
        one = None if one is None else _short(one)
        if (out and out[-1][1] != one) or (not out and one is not None):
            out.append((bucket, one))
    return tuple(out)


def _all_bits(parts: Sequence[tuple[float, int]]) -> float:
    mask = 0
    for value, _ns in parts:
        mask |= int(value)
    return float(mask)


def _counter(samples: Sequence[Sample], start_ns: int, end_ns: int, bucket_s: int) -> tuple[tuple[int, Optional[float]], ...]:
    grown: dict[int, float] = {}
    for moment in series.growth(samples, (start_ns, None), (end_ns, None)):
        bucket = (moment.to_ns - 1 - start_ns) // (bucket_s * 10**9)
        grown[bucket] = grown.get(bucket, 0.0) + moment.amount
    return tuple((bucket, _short(amount)) for bucket, amount in sorted(grown.items()))


def _short(value: float) -> float:
    """Four digits are more than a median over a minute means, and compress well. Counts of errors stay what they are."""
    if value == int(value) and abs(value) < 1e6:
        return int(value)
    short = float(f"{value:.4g}")
    return int(short) if short == int(short) else short


def to_json(timeline: Timeline) -> dict[str, Any]:
    gpus = {uuid: {name: [list(e) for e in entries] for name, entries in rows.items()} for uuid, rows in timeline.gpus.items()}
    return {**timeline._asdict(), "gpus": gpus}


def from_json(value: Mapping[str, Any]) -> Timeline:
    """ValueError, TypeError, KeyError or AttributeError for damage."""
    gpus = {
        str(uuid): {str(name): tuple((int(b), None if v is None else float(v)) for b, v in entries) for name, entries in rows.items()}
        for uuid, rows in value["gpus"].items()
    }
    timeline = Timeline(int(value["start_ns"]), int(value["end_ns"]), int(value["bucket_s"]), gpus)
    if timeline.bucket_s <= 0:
        raise ValueError("buckets without a length")
    return timeline
