"""What the engine's history would hold of a job: gauges of its GPUs while it ran. Sound GPUs of one job differ a little."""

from __future__ import annotations

from random import Random
from typing import Final

from detection.node import Node
from detection.params import Spread
from detection.plan import Job, Plan
from slurm_nvhc.model.history import INTERVAL_S, History, Sample

MOST: Final = 40  # samples of a series; the engine hands out up to 300, medians do not change by it
CLOCK_MHZ: Final = 1755.0
TEMP_C: Final = 66.0
WATTS: Final = 640.0
MB_PER_S: Final = 180_000.0


def history(plan: Plan, node: Node, job: Job, spread: Spread, start: float, end: float) -> History:
    """Of the job's window. The faulty GPU of a plan with a straggler runs at its share of the clock."""
    rng = Random(f"{plan.node}/{job.number}")
    series: dict[str, dict[str, tuple[Sample, ...]]] = {}
    count = int(min(MOST, (end - start) // INTERVAL_S))
    moments = [start + (i + 0.5) * (end - start) / max(1, count) for i in range(count)]
    for n in job.gpus:
        if not node.shows(n):
            continue
        slow = plan.slow[1] if plan.slow is not None and plan.slow[0] == n and plan.fault is not None and start >= plan.fault.at else 1.0
        own = {
            "sm_clock": CLOCK_MHZ * slow * rng.gauss(1, spread.clock),
            "gpu_temp": TEMP_C + rng.gauss(0, spread.temp),
            "power_usage": WATTS * (0.5 + slow / 2) * rng.gauss(1, spread.power),
        }
        if node.board.counts_4:
            own["nvlink_throughput"] = MB_PER_S * rng.gauss(1, spread.throughput)
        rows = {name: _samples(node, moments, value, rng) for name, value in own.items()}
        rows["gpu_util"] = tuple(Sample(node.wall_ns(at), 99) for at in moments[:1])
        series[node.identity(n).uuid] = rows
    return History(True, series)


def _samples(node: Node, moments: list[float], value: float, rng: Random) -> tuple[Sample, ...]:
    return tuple(Sample(node.wall_ns(at), round(value * rng.gauss(1, 0.01), 1)) for at in moments)
