"""Two snapshots in, Changes out. No clock, no file, no policy.

Rules that hold for every counter:
* never abs(), never a negative amount: a counter that went back was cleared,
  and what it shows now is a lower bound of what happened since (DCGM's own
  health module takes the absolute difference, so a reset looks like errors
  there: NVIDIA/DCGM#285);
* no data on either side makes the change unknown, not zero;
* a reboot or driver reload clears what the catalogue says it clears even when
  the counter has already passed its old value again.
"""

from __future__ import annotations

from typing import Collection, Final, Iterator, Optional, Sequence, Union

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import entity
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.look import Look
from slurm_nvhc.model.reading import NOT_SUPPORTED, NoData, Reading, number
from slurm_nvhc.model.snapshot import GpuState, Snapshot

# The moment of the driver's load comes from the kernel log's boot-time stamp and the wall clock of each
# reading: it moves with every correction of that clock. No driver is loaded twice within a minute.
SAME_LOAD_NS: Final = 60 * 10**9

_CLEARING_WORDS: Final = {
    cat.REBOOT: "node rebooted",
    cat.DRIVER_RELOAD: "driver reloaded",
    cat.GPU_RESET: "counters were reset",
}


def window_seconds(before: Union[Snapshot, Look], after: Snapshot) -> float:
    """Length of the window: by the boot-time clock within one boot, else by wall clock. Never negative."""
    if before.boot_id == after.boot_id:
        return max(0.0, (after.boot_ns - before.boot_ns) / 1e9)
    return max(0.0, (after.wall_ns - before.wall_ns) / 1e9)


def compare(before: Snapshot, after: Snapshot, uuids: Optional[Collection[str]] = None) -> tuple[Change, ...]:
    """Changes of all counters and states of the node's parts and of the GPUs in ``uuids`` (None = all) that ``after`` holds.

    A GPU or part that ``before`` does not know yields unknown changes ("not seen before");
    one that is gone yields none: its absence is judged, not computed with.
    """
    cleared = cleared_for_all(before, after)
    seconds = window_seconds(before, after)
    out: list[Change] = []
    for uuid, gpu in (after.gpus or {}).items():
        if uuids is not None and uuid not in uuids:
            continue
        old = (before.gpus or {}).get(uuid)
        out.extend(changes_of(list(readings_of(old, uuid)) if old else None, list(readings_of(gpu, uuid)), cleared, seconds))
    for name, readings in after.parts.items():
        known = before.parts.get(name)
        olds = None if known is None else [(name, field, value) for field, value in known.items()]
        out.extend(changes_of(olds, [(name, field, value) for field, value in readings.items()], cleared, seconds))
    return tuple(out)


def cleared_for_all(before: Union[Snapshot, Look], after: Snapshot) -> str:
    """The strongest thing known to have cleared counters on every GPU: REBOOT, DRIVER_RELOAD or ''."""
    if before.boot_id != after.boot_id:
        return cat.REBOOT
    first, second = before.driver_loaded_ns, after.driver_loaded_ns
    if first is not None and second is not None and abs(second - first) > SAME_LOAD_NS:
        return cat.DRIVER_RELOAD
    if before.driver and after.driver and before.driver != after.driver:
        return cat.DRIVER_RELOAD
    return ""


Row = tuple[str, str, Reading]  # entity, field, reading


def readings_of(gpu: GpuState, uuid: str) -> Iterator[Row]:
    """What a GPU and its links say."""
    for field, value in gpu.readings.items():
        yield uuid, field, value
    for link_number, readings in gpu.links.items():
        for field, value in readings.items():
            yield entity.link(uuid, link_number), field, value


def changes_of(before: Optional[Sequence[Row]], after: Sequence[Row], cleared: str, seconds: float) -> Iterator[Change]:
    """Of one thing that is reset as a whole: a GPU with its links, or a part."""
    olds = {(name, field): value for name, field, value in before or ()}
    went_back = any(_went_back(field, olds.get((name, field)), value) for name, field, value in after)
    for name, field, value in after:
        facts = cat.BY_NAME.get(field)
        if facts is None:
            continue
        previous = olds.get((name, field))
        if facts.kind == cat.COUNTER:
            yield _counter(name, facts, previous, value, cleared, went_back, seconds, seen_before=before is not None)
        elif previous is not None and previous != value:
            yield Change(name, field, previous, value, ch.EXACT, None, seconds)


def _went_back(field: str, before: Optional[Reading], after: Reading) -> bool:
    """A counter that a GPU reset clears is lower than before: the GPU (or this family) was reset."""
    facts = cat.BY_NAME.get(field)
    if facts is None or facts.kind != cat.COUNTER or facts.shrinks or cat.GPU_RESET not in facts.cleared_by:
        return False
    old, new = number(before), number(after)
    return old is not None and new is not None and new < old


def _counter(
    name: str,
    facts: cat.Field,
    before: Optional[Reading],
    after: Reading,
    cleared: str,
    went_back: bool,
    seconds: float,
    seen_before: bool,
) -> Change:
    def result(kind: str, amount: Optional[float], why: str = "") -> Change:
        return Change(name, facts.name, before, after, kind, amount, seconds, why)

    old, new = number(before), number(after)
    if new is None or new < 0:
        return result(ch.UNKNOWN, None, f"{_no_data(after)} at the end")
    if old is None or old < 0:
        return result(ch.UNKNOWN, None, f"{_no_data(before)} at the start" if seen_before else "it was not seen before")
    if cleared and cleared in facts.cleared_by:
        return result(ch.AT_LEAST, float(new), _CLEARING_WORDS[cleared])
    if new < old:
        if facts.shrinks:
            return result(ch.UNKNOWN, None, "the counter may fall by itself, and fell")
        if not facts.cleared_by:
            return result(ch.UNKNOWN, None, "the counter went back although nothing clears it")
        return result(ch.AT_LEAST, float(new), _CLEARING_WORDS[cat.GPU_RESET])
    grown = float(new - old)
    if went_back and cat.GPU_RESET in facts.cleared_by and old > 0:
        # Another counter of this GPU was reset; whether this one was too can not be seen.
        # Its growth is a lower bound either way.
        return result(ch.AT_LEAST, grown, _CLEARING_WORDS[cat.GPU_RESET])
    return result(ch.EXACT, grown)


def _no_data(reading: Optional[Reading]) -> str:
    if isinstance(reading, NoData):
        return reading.kind.replace("_", " ")
    return "no reading" if reading is None else "not a count"


def noteworthy(change: Change) -> bool:
    """Does a change say anything? Not an exact zero, not a reset of zero, not a field that the GPU does not have."""
    if change.kind == ch.UNKNOWN:
        return not any(isinstance(r, NoData) and r.kind == NOT_SUPPORTED for r in (change.before, change.after))
    if change.kind == ch.AT_LEAST:
        return change.before != change.after
    return change.amount is None or change.amount > 0
