"""Ask the reader process for a snapshot. The hook's side: light imports, never raises.

The reader is started per call and killed with its whole process group at the deadline;
what had arrived by then is kept, so that a hung engine still yields clock, kernel log
and PCI listing: the witnesses by which a dying GPU is told from a dying engine.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, Final, Optional, Sequence

from slurm_nvhc.model.snapshot import Snapshot, Trouble
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.proc import child
from slurm_nvhc.sense import protocol, wiring
from slurm_nvhc.sense.decode import Reply, decode
from slurm_nvhc.sense.merge import ENGINE_LATE_NS, merge
from slurm_nvhc.sense.text import clean

MODULE: Final = "slurm_nvhc.sense.reader"
_SHOWN_LIES: Final = 3
# What comes after each part, and so was waited for when nothing more came.
_AWAITED: Final = dict(zip(("", *protocol.PARTS), (*protocol.PARTS, "end")))


def read_snapshot(
    node: str,
    engine: Engine,
    deadline_s: float,
    *,
    kernel_cursor: str = "",
    wait_s: float = 0.0,
    fields: Sequence[str] = protocol.ALL_FIELDS,
) -> Snapshot:
    """What the node says now, in at most ``deadline_s`` seconds (and 200 ms for the corpse).

    kernel_cursor: Snapshot.kernel_cursor of the last read; '' reads the kernel log from its
                   start. It is returned unchanged when the log could not be read, so that
                   nothing is lost.
    wait_s:        let this many seconds pass before reading; part of the deadline, except on
                   a simulated node, whose clock is moved instead.
    fields:        catalogue names; every one asked for is in the readings of every GPU that
                   answers, as no data if need be.
    Never raises: all that went wrong is in Snapshot.troubles.
    """
    if deadline_s <= 0:
        return _snapshot(node, engine, Reply(), kernel_cursor, [Trouble("MON-BUDGET", "reader", "no time was left to read the node")])
    request = protocol.Request(
        backend=engine.backend,
        node=node,
        options=options(engine),
        deadline_s=deadline_s,
        kernel_cursor=kernel_cursor,
        wait_s=wait_s,
        fields=tuple(fields),
        parent=os.getpid(),
    )
    result = ask(request)
    reply = decode(result.reply, request.fields)
    troubles = [t for t in reply.troubles if t.code != "MON-ENGINE-LIES"]
    ended = ending(result, reply, deadline_s)
    if ended:
        troubles.append(ended)
    lies = [*(t.detail for t in reply.troubles if t.code == "MON-ENGINE-LIES"), *reply.lies]
    if lies:
        shown = "; ".join(lies[:_SHOWN_LIES])
        more = f"; and {len(lies) - _SHOWN_LIES} more" if len(lies) > _SHOWN_LIES else ""
        troubles.append(Trouble("MON-ENGINE-LIES", "engine", clean(shown, 300 - len(more)) + more))
    if reply.engine is not None and reply.gpus == {} and reply.pci:
        troubles.append(Trouble("MON-ENGINE-EMPTY", "engine", f"the engine knows no GPU, the PCI bus has {len(reply.pci)}"))
    return _snapshot(node, engine, reply, kernel_cursor, troubles)


def options(engine: Engine) -> dict[str, Any]:
    """What the reader must know of the policy's engine section."""
    return {
        "world": engine.world,
        "address": engine.address,
        "timeout_s": engine.timeout_s,
        "bindings": list(engine.bindings),
        "embedded": engine.embedded,
    }


def ask(request: protocol.Request) -> child.Result:
    """Start a reader for one request and wait for it, no longer than the request's deadline."""
    return child.run([sys.executable or "python3", "-I", "-m", MODULE], request.deadline_s, request=protocol.encode(request))


def ending(result: child.Result, reply: Reply, deadline_s: float) -> Optional[Trouble]:
    """Why the reader did not come to its end, or None when it did."""
    if reply.done:
        return None
    where = f"after the {reply.last} part" if reply.last else "before any part"
    # SIGALRM is the reader's own deadline, when it came before ours.
    if result.problem == "timeout" or result.rc == -signal.SIGALRM:
        if reply.clock is None:
            return Trouble("MON-READER", "reader", f"the reader gave nothing within {deadline_s:g} s")
        awaited = _AWAITED[reply.last]
        return Trouble("MON-ENGINE-HUNG", "engine", f"no answer within {deadline_s:g} s: still waiting for the {awaited} part")
    last = clean(result.err.strip().rsplit("\n", 1)[-1], 160)
    said = f": {last}" if last else ""
    if result.problem:
        return Trouble("MON-READER", "reader", clean(result.problem))
    if result.rc is not None and result.rc < 0:
        return Trouble("MON-READER", "reader", f"the reader was ended by {_signal_name(-result.rc)} {where}{said}")
    return Trouble("MON-READER", "reader", f"the reader ended with status {result.rc} {where}{said}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _snapshot(node: str, engine: Engine, reply: Reply, kernel_cursor: str, troubles: list[Trouble]) -> Snapshot:
    wall_ns, boot_ns, boot_id = reply.clock or _real_clock()
    version, driver, loaded = reply.engine or ("", "", None)
    new, reported, cursor = reply.kernel or ((), (), kernel_cursor)
    # With the kernel log at hand, older engine events were reported by the read that made the cursor.
    before = protocol.cursor(kernel_cursor) if reply.kernel else None
    gpus, parts = wiring.join(reply.gpus, reply.parts)
    events = merge(
        new,
        reported,
        reply.events,
        {gpu.identity.pci: uuid for uuid, gpu in (gpus or {}).items() if gpu.identity.pci},
        before.wall_ns - ENGINE_LATE_NS if before and before.boot_id == boot_id else 0,
    )
    return Snapshot(
        node=node,
        source=engine.backend,
        engine=version,
        boot_id=boot_id,
        wall_ns=wall_ns,
        boot_ns=boot_ns,
        driver=driver,
        driver_loaded_ns=loaded,
        gpus=gpus,
        pci_gpus=reply.pci,
        parts=parts,
        events=events,
        events_known=reply.kernel is not None,
        kernel_cursor=cursor,
        troubles=tuple(troubles),
    )


def _real_clock() -> tuple[int, int, str]:
    """Wall clock and boot-time clock in ns, and the boot's id ('' when it can not be read)."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot_id = file.read(64).strip()
    except (OSError, ValueError):
        boot_id = ""
    return time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME), boot_id
