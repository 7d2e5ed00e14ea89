"""What happens on one node, when, and which part is at fault. Times are seconds since the node's first moment.

Places are "g3", "g3.link11", or an entity of the node's other parts ("switch:…/port5").
"""

from __future__ import annotations

import math
from random import Random
from typing import Any, Final, NamedTuple, Optional

from detection.params import Spread

DAY: Final = 86400.0
HOUR: Final = 3600.0

# Effect.what
GROW: Final = "grow"  # a counter, by ``value``; a link's growth is its GPU's total too
SET: Final = "set"  # a reading; ``value`` may be no data
XID: Final = "xid"  # the kernel logs Xid ``value``
REBOOT: Final = "reboot"  # the node is up again; counters that a reboot clears are at 0
RELOAD: Final = "reload"  # the driver was loaded anew
RESET: Final = "reset"  # one GPU was reset
SWAP: Final = "swap"  # another card sits in the slot
LOST: Final = "lost"  # the GPU answers nothing, and reads all ones on the bus
SILENT: Final = "silent"  # the engine does not answer (value True), or does again (False)
MARK: Final = "mark"  # a flow begins or ends here: the looks around it are judged
UPGRADE: Final = "upgrade"  # another driver and engine from here on

# Fault.severity
MUST_ACT: Final = "act"  # a job on this part will be hurt: it has to go out
SHOULD_WARN: Final = "warn"  # a person should look


class Effect(NamedTuple):
    at: float
    what: str
    place: str = ""
    field: str = ""
    value: Any = 0


class Flow(NamedTuple):
    """A counter that moves all the time between two moments, ``per_s`` a second. It makes no look worth judging by itself (looks.py)."""

    place: str
    field: str
    start: float
    end: float
    per_s: float


class Job(NamedTuple):
    """gpus: positions. finished: False when the node went down under it: no epilog."""

    number: int
    start: float
    end: float
    gpus: tuple[int, ...]
    uid: int
    finished: bool = True


class Fault(NamedTuple):
    """parts: places that are rightly suspected, kinds: as which kind (model/suspect.py).

    shows: places at which it shows: a drain for any of them, or for what holds them, is due to it.
    nvlink: published rules for links could see it.
    """

    kind: str
    at: float
    severity: str
    parts: tuple[str, ...]
    kinds: tuple[str, ...]
    shows: tuple[str, ...]
    nvlink: bool = False


class Plan(NamedTuple):
    """effects: sorted. unrest: spans in which the node is not at rest. down: spans in which no hook runs.

    extra: looks of the health check beside its period (slurmd runs it when the node registers).
    every_job_from: from here on every epilog is judged. sampled: the engine's history of the jobs is at hand.
    slow: GPU -> share of its siblings' clock, from the fault's start on.
    """

    node: str
    board: str
    seconds: float
    phase: float
    period: float
    jobs: tuple[Job, ...]
    effects: tuple[Effect, ...]
    flows: tuple[Flow, ...] = ()
    unrest: tuple[tuple[float, float], ...] = ()
    down: tuple[tuple[float, float], ...] = ()
    extra: tuple[float, ...] = ()
    fault: Optional[Fault] = None
    every_job_from: Optional[float] = None
    sampled: bool = False
    slow: Optional[tuple[int, float]] = None
    spread: Spread = Spread(clock=0.0, temp=0.0, power=0.0, throughput=0.0)

    def in_play(self) -> dict[int, frozenset[int]]:
        """GPUs to which something happens, and their links to which something happens."""
        shown: dict[int, set[int]] = {}
        for effect in self.effects:
            if effect.place.startswith("g"):
                row = shown.setdefault(gpu_of(effect.place), set())
                line = link_of(effect.place)
                if line is not None:
                    row.add(line)
        return {n: frozenset(links) for n, links in sorted(shown.items())} or {0: frozenset({0})}


def gpu(number: int) -> str:
    return f"g{number}"


def link(gpu_number: int, number: int) -> str:
    return f"g{gpu_number}.link{number}"


def gpu_of(place: str) -> int:
    """"g3.link11" -> 3"""
    return int(place.partition(".")[0][1:])


def link_of(place: str) -> Optional[int]:
    _, dot, name = place.partition(".link")
    return int(name) if dot else None


# Chance


def times(rng: Random, per_s: float, start: float, end: float) -> list[float]:
    """Moments of a Poisson process."""
    out: list[float] = []
    at = start
    while per_s > 0:
        at += rng.expovariate(per_s)
        if at >= end:
            break
        out.append(at)
    return out


def poisson(rng: Random, mean: float) -> int:
    """One draw. Exact below 50; above, the normal distribution is near enough for what is drawn so (errors a minute of a storm)."""
    if mean > 50:
        return max(0, round(rng.gauss(mean, math.sqrt(mean))))
    limit, product, count = math.exp(-mean), rng.random(), 0
    while product > limit:
        product *= rng.random()
        count += 1
    return count


def between(rng: Random, ends: list[float]) -> float:
    return rng.uniform(ends[0], ends[1])


def log_between(rng: Random, ends: list[float]) -> float:
    """As often between 1 and 10 as between 10 and 100."""
    return math.exp(rng.uniform(math.log(ends[0]), math.log(ends[1])))
