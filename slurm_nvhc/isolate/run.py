"""Do one step of a search: counters before, the site's command for each group at the same time, counters after.

What runs is the site's own program. It sees the GPUs of its group and nothing else of our environment, and is ended with all its
children when its time is over, or when we are told to stop.
"""

from __future__ import annotations

import shutil
import time
from typing import Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc import diagnose, ground
from slurm_nvhc.context import Context
from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.isolate.counted import between
from slurm_nvhc.isolate.model import IDLE, Group, Seen, Step
from slurm_nvhc.model.snapshot import GpuIdentity, Snapshot
from slurm_nvhc.proc import child, together
from slurm_nvhc.sense.client import read_snapshot
from slurm_nvhc.sense.text import clean

SAID: Final = 160  # characters of a command's last line
_SHELLS: Final = (126, 127)  # a shell's, and env's: the command could not be run
_TOLD: Final = (-9, -15)  # killed from outside: for lack of memory, by a person


class Orders(NamedTuple):
    """traffic, alone: commands with their arguments, see placeholders(). seconds: of traffic. timeout_s: then a command is ended."""

    traffic: tuple[str, ...]
    alone: tuple[str, ...]
    seconds: float
    timeout_s: float


class Lost(MonitorError):
    """A GPU of the search is gone. ``uuids``: which."""

    uuids: tuple[str, ...] = ()


class Interrupted(BaseException):
    """We were told to stop: raised by the handler of a signal, wherever the search is."""


def placeholders(words: Sequence[str], group: Sequence[GpuIdentity], seconds: float) -> list[str]:
    """The command for a group: {gpus} their number, {seconds} how long, {uuids} and {dcgm_ids} which, joined by commas.

    CUDA programs need neither of the last two: they see the group's GPUs alone, and count them from 0.
    """
    values = {
        "{gpus}": str(len(group)),
        "{seconds}": f"{seconds:.0f}",
        "{uuids}": ",".join(row.uuid for row in group),
        "{dcgm_ids}": ",".join("?" if row.dcgm_id is None else str(row.dcgm_id) for row in group),
    }
    out = []
    for word in words:
        for name, value in values.items():
            word = word.replace(name, value)
        out.append(word)
    return out


def resolved(words: Sequence[str], key: str) -> tuple[str, ...]:
    """The command with its program's path. InputError when there is no such program."""
    path = shutil.which(words[0], path=child.CLEAN_ENVIRONMENT["PATH"]) if words else None
    if path is None:
        raise InputError(key, "", f"{words[0] if words else ''!r} is no program that can be run", "the absolute path of one")
    return (path, *words[1:])


def look(context: Context, cursor: str = "", wait_s: float = 0.0) -> Snapshot:
    """The node now, with the kernel log since ``cursor``. Raises MonitorError when no GPU can be seen."""
    snapshot = read_snapshot(
        context.node, context.policy.engine, context.policy.engine.timeout_s + wait_s, kernel_cursor=cursor, wait_s=wait_s
    )
    if snapshot.gpus is None:
        why = "; ".join(t.detail for t in snapshot.troubles) or "it gave no list"
        raise MonitorError("the engine", "", f"does not list the GPUs: {clean(why)}", "`nvhc doctor` says why")
    return snapshot


def stand(context: Context, snapshot: Snapshot, environment: Mapping[str, str], wanted: Sequence[str]) -> ground.Ground:
    """Ground for a search; raises InputError where there is none. What is left alone of it is in ``skipped``."""
    _no_diagnostic(context)
    found = ground.stand(context, snapshot, environment, wanted)
    if found.how == ground.NONE:
        raise InputError(context.node, "", found.why)
    return found


def _no_diagnostic(context: Context) -> None:
    if context.book.ask(lambda led: led.get(diagnose.MARK), ""):
        raise InputError(context.node, "", "a diagnostic is running on it", "wait for its end, or let the next hook end what is left of it")


def free(context: Context, environment: Mapping[str, str], uuids: Sequence[str], cursor: str) -> Snapshot:
    """A look at the node before a step: all these GPUs are still ours, and free. MonitorError (Lost) when they are not."""
    _no_diagnostic(context)
    snapshot, found, whys = ground.still(context, lambda: look(context, cursor), environment, uuids)
    if found.how == ground.NONE:
        raise MonitorError(context.node, "", found.why)
    if not whys:
        return snapshot
    gone = tuple(u for u, why in whys.items() if not why.startswith(("busy", "in MIG", "it can not be told", "not ours")))
    if gone:
        problem = Lost(gone[0], "", f"is {whys[gone[0]]} since the last step")
        problem.uuids = gone
        raise problem
    first = next(iter(whys))
    raise MonitorError(first, "", f"can not be used any more: {whys[first]}")


def do(context: Context, orders: Orders, step: Step, number: int, before: Snapshot, uuids: Sequence[str]) -> Seen:
    """One step. ``before``: a look taken just now; ``number``: of the step, from 1. Raises MonitorError, and Interrupted."""
    rows = {uuid: gpu.identity for uuid, gpu in (before.gpus or {}).items()}
    if step.kind == IDLE:
        groups: tuple[Group, ...] = ()
        after = look(context, before.kernel_cursor, orders.seconds)
    else:
        # The mark is of this try: an interrupted step is done again, and takes its time again.
        mark = f"{number}.{time.time_ns()}"
        jobs = [together.Job(_command(orders, group, rows), _environment(group, mark)) for group in step.groups]
        ended = together.run(jobs, orders.timeout_s)
        groups = tuple(_group(group, result, orders.timeout_s) for group, result in zip(step.groups, ended))
        after = look(context, before.kernel_cursor)
    counted = between(before, after, uuids)
    seconds = max(0.0, (after.boot_ns - before.boot_ns) / 1e9)
    return Seen(step, groups, counted.growth, counted.unread, counted.events, before.wall_ns, seconds)


def _command(orders: Orders, group: Sequence[str], rows: Mapping[str, GpuIdentity]) -> list[str]:
    words = orders.alone if len(group) == 1 and orders.alone else orders.traffic
    return placeholders(words, [rows[uuid] for uuid in group], orders.seconds)


def _environment(group: Sequence[str], mark: str) -> dict[str, str]:
    """Beside the clean one. By UUID, so that no other numbering of the node can mislead CUDA; what it numbers itself goes by the bus."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(group), "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NVHC_STEP": mark}


def _group(gpus: tuple[str, ...], result: Optional[child.Result], timeout_s: float) -> Group:
    if result is None:
        return Group(gpus, None, "it was not run")
    if result.problem:
        why = f"it did not end within {timeout_s:g} s" if result.problem == "timeout" else result.problem
        return Group(gpus, None, clean(why, SAID))
    last = child.last_line
    said = clean(last(result.out) if result.rc == 0 else last(result.err) or last(result.out), SAID)
    if result.rc == 0:
        return Group(gpus, True, said)
    if result.rc in _SHELLS or result.rc in _TOLD:
        return Group(gpus, None, said or ("it could not be run" if result.rc in _SHELLS else "it was killed"))
    return Group(gpus, False, said or f"exit status {result.rc}")
