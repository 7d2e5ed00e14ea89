"""What is new since the last look of any hook, and the look that the next hook starts from.

Exactly once: of every counter, the windows from look to look join without a gap and without overlap.
* A counter without data now keeps its older count, so that growth over the gap is not lost; the window then
  begins where that count was read, so that the gap's time is not lost either.
* A count that was taken before a look that has been folded already (two hooks at once) says nothing new.
* Over a reboot, a driver reload or a reset nothing is kept: a count from before could pass for one from after.
"""

from __future__ import annotations

from typing import Iterable, Iterator, Mapping, Optional

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.compare.compare import Row, changes_of, cleared_for_all, readings_of, window_seconds
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import entity
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.look import Look
from slurm_nvhc.model.reading import number
from slurm_nvhc.model.snapshot import OK, Snapshot

_Count = tuple[str, str, float]  # entity, field, count


def since(look: Optional[Look], snapshot: Snapshot) -> tuple[Optional[tuple[Change, ...]], Optional[Look]]:
    """(changes of the counters that both know, the look to remember).

    None for changes: there was no look before. Without a listing of GPUs, and where a later look was
    folded first, there are no changes and the look stays as it is.
    """
    if snapshot.gpus is None:
        return (None if look is None else ()), look
    things = dict(_things(snapshot))
    if look is None:
        return None, _look(snapshot, things)
    if look.boot_id == snapshot.boot_id and snapshot.boot_ns < look.boot_ns:
        return (), look
    cleared = cleared_for_all(look, snapshot)
    seconds = window_seconds(look, snapshot)
    changes: list[Change] = []
    reset = set()
    for thing, rows in things.items():
        known = [(name, field, count) for name, field, _ in rows if (count := look.counts.get(name, {}).get(field)) is not None]
        both = {(name, field) for name, field, _ in known}
        found = list(changes_of(known, [row for row in rows if row[:2] in both], cleared, seconds))
        if any(c.kind == ch.AT_LEAST for c in found):
            reset.add(thing)
        changes += (_from_its_moment(c, look, snapshot) for c in found)
    return tuple(changes), _look(snapshot, things, None if cleared else look, frozenset(reset))


def _things(snapshot: Snapshot) -> Iterator[tuple[str, list[_Count]]]:
    """What is reset as a whole (a GPU with its links, a part) and the counts that it shows."""
    for uuid, gpu in (snapshot.gpus or {}).items():
        if gpu.status == OK:
            yield uuid, _counts(readings_of(gpu, uuid))
    for name, readings in snapshot.parts.items():
        yield name, _counts((name, field, value) for field, value in readings.items())


def _counts(rows: Iterable[Row]) -> list[_Count]:
    out: list[_Count] = []
    for name, field, value in rows:
        facts = cat.BY_NAME.get(field)
        if facts is not None and facts.kind == cat.COUNTER:
            count = number(value)
            if count is not None and count >= 0:
                out.append((name, field, count))
    return out


def _from_its_moment(change: Change, look: Look, snapshot: Snapshot) -> Change:
    """With the window of this counter: longer, where the count before was read at an earlier look."""
    if change.field not in look.older.get(change.entity, {}):
        return change
    wall_ns, boot_ns = look.moment(change.entity, change.field)
    return change._replace(seconds=window_seconds(look._replace(wall_ns=wall_ns, boot_ns=boot_ns), snapshot))


def _look(snapshot: Snapshot, things: Mapping[str, list[_Count]], last: Optional[Look] = None, reset: frozenset[str] = frozenset()) -> Look:
    """The look at this snapshot, with the counts of the last one that it does not show, except of what was ``reset``."""
    counts: dict[str, dict[str, float]] = {}
    older: dict[str, dict[str, tuple[int, int]]] = {}
    for rows in things.values():
        for name, field, count in rows:
            counts.setdefault(name, {})[field] = count
    loaded_ns = snapshot.driver_loaded_ns
    if last is not None:
        loaded_ns = last.driver_loaded_ns if loaded_ns is None else loaded_ns  # a kernel log that can not be read now and then
        for name, fields in last.counts.items():
            if (entity.gpu_of(name) or name) in reset:
                continue
            for field, count in fields.items():
                if field not in counts.get(name, {}):
                    counts.setdefault(name, {})[field] = count
                    older.setdefault(name, {})[field] = last.moment(name, field)
    return Look(snapshot.wall_ns, snapshot.boot_ns, snapshot.boot_id, snapshot.driver, loaded_ns, counts, older)
