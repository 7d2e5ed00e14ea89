"""Rules that others publish for NVLink errors, over the same plans. They see every minute, our hooks do not.

Each is given the best case: it polls every minute without fail, reads all links, and is asked only about
NVLink up to generation 4, the counters it is written for. Sources: docs/detection.md.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Callable, Final, Iterator, Mapping, NamedTuple, Optional

from detection.boards import Board
from detection.plan import GROW, REBOOT, RELOAD, RESET, SWAP, Effect, Plan, gpu_of, link_of

MINUTE: Final = 60.0
RETRIES: Final = ("nvlink_replay", "nvlink_recovery")
CRC: Final = ("nvlink_crc_flit", "nvlink_crc_data")
COUNTERS: Final = (*RETRIES, *CRC)
CRC_PER_S: Final = 100.0  # DCGM health: fails from here on
WINDOWS, MOST_MOVED = 30, 15  # nvidia-resiliency-ext: more than 15 of the last 30 windows of a minute

Alarms = Iterator[float]


class Minute(NamedTuple):
    """at: its end. Per (GPU, link, counter), grown: in the minute; total: after it; went_back: the total before a reset."""

    at: float
    grown: Mapping[tuple[int, int, str], int]
    total: Mapping[tuple[int, int, str], int]
    went_back: Mapping[tuple[int, int, str], int]


def minutes(plan: Plan, board: Board) -> Iterator[Minute]:
    """Minutes in which a link counter moved or was reset, and the first."""
    count: dict[tuple[int, int, str], int] = defaultdict(int)
    moved: dict[int, list[Effect]] = defaultdict(list)
    moved[0] = []
    for effect in plan.effects:
        if effect.what in (REBOOT, RELOAD, RESET, SWAP) or (effect.what == GROW and effect.field in COUNTERS):
            moved[int(effect.at // MINUTE)].append(effect)
    if not board.counts_4:
        return
    for number in sorted(moved):
        grown: dict[tuple[int, int, str], int] = defaultdict(int)
        went_back: dict[tuple[int, int, str], int] = {}
        for effect in moved[number]:
            if effect.what == GROW:
                line = link_of(effect.place)
                if effect.place.startswith("g") and line is not None:
                    key = (gpu_of(effect.place), line, effect.field)
                    count[key] += effect.value
                    if effect.at > 0:
                        grown[key] += effect.value
                continue
            for key in [k for k in count if effect.what in (REBOOT, RELOAD) or k[0] == gpu_of(effect.place)]:
                went_back[key] = went_back.get(key, 0) + count.pop(key)
        yield Minute((number + 1) * MINUTE, grown, dict(count), {k: n for k, n in went_back.items() if n})


def above_zero(plan: Plan, board: Board) -> Alarms:
    """Any error since the last reset: gcm's defaults, Google's GPU test, and DCGM 4.6 health's rule about lifetimes."""
    return (m.at for m in minutes(plan, board) if any(n > 0 for n in m.total.values()))


def at_least_five(plan: Plan, board: Board) -> Alarms:
    """Five or more since the last reset on one link (imbue)."""
    return (m.at for m in minutes(plan, board) if any(n >= 5 for n in m.total.values()))


def dcgm_windows(plan: Plan, board: Board) -> Alarms:
    """DCGM health's window of 60 s: any replay or recovery, or 100 CRC errors a second.

    It takes |start - end|, so a reset counts as errors (NVIDIA/DCGM#285).
    """
    for m in minutes(plan, board):
        retried = any(n > 0 and k[2] in RETRIES for k, n in m.grown.items()) or any(k[2] in RETRIES for k in m.went_back)
        if retried or any(n >= CRC_PER_S * MINUTE and k[2] in CRC for k, n in m.grown.items()):
            yield m.at


def dcgm_health(plan: Plan, board: Board) -> Alarms:
    """DCGM 4.6 health as a whole: the window, or any CRC error, replay or recovery since the last reset."""
    return iter(sorted({*dcgm_windows(plan, board), *above_zero(plan, board)}))


def fifteen_of_thirty(plan: Plan, board: Board) -> Alarms:
    """Replays or recoveries of one link in more than 15 of the last 30 minutes (nvidia-resiliency-ext)."""
    last: dict[tuple[int, int], list[float]] = defaultdict(list)
    for m in minutes(plan, board):
        for g, line in {(k[0], k[1]) for k, n in m.grown.items() if n > 0 and k[2] in RETRIES}:
            row = last[g, line]
            row.append(m.at)
            del row[: max(0, len(row) - WINDOWS)]
            if sum(at > m.at - WINDOWS * MINUTE for at in row) > MOST_MOVED:
                yield m.at


RULES: Final[Mapping[str, Callable[[Plan, Board], Alarms]]] = {
    "any error since reset (> 0)": above_zero,
    "DCGM 4.6 health": dcgm_health,
    "DCGM health, 60 s window only": dcgm_windows,
    ">= 5 errors since reset": at_least_five,
    "> 15 of the last 30 minutes": fifteen_of_thirty,
}


class Alarm(NamedTuple):
    """before: it stood or rang while nothing was wrong; after: the first at or after the fault's beginning."""

    before: Optional[float]
    after: Optional[float]


def alarm(plan: Plan, board: Board, rule: str) -> Alarm:
    """The first alarm before the fault, which is a false one, and the first after it, which is taken for the right one."""
    began = plan.fault.at if plan.fault is not None else plan.seconds
    before: Optional[float] = None
    for at in RULES[rule](plan, board):
        if at < began:
            before = at if before is None else before
        else:
            return Alarm(before, at)
    return Alarm(before, None)
