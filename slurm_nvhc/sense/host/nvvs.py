"""The engine's diagnostic processes on this machine, from /proc: is one running, and ending one that nobody else ended.

nv-hostengine runs a diagnostic as a child, nvvs, which has children of its own (nvbandwidth, mpirun). It goes on when whoever
asked for it dies, and can outlive the engine.
"""

from __future__ import annotations

import os
import signal
from typing import Final, NamedTuple, Optional

_ENGINE: Final = "nv-hostengine"
_NAME: Final = "nvvs"
# 4.x; 3.x and older
_PATHS: Final = ("/usr/libexec/datacenter-gpu-manager-4/nvvs", "/usr/share/nvidia-validation-suite/nvvs")
_ENDED: Final = "ZX"


class Process(NamedTuple):
    """started: clock ticks since boot; with it a number that was given out again is told from the process that had it."""

    pid: int
    name: str
    parent: int
    started: int


def running(root: str = "/", embedded: bool = False) -> Optional[list[Process]]:
    """Every diagnostic of an engine here, and all that it started; [] when there is none.

    None when that can not be told: neither an engine nor a diagnostic is seen, since it runs elsewhere (another host, a container
    with processes of its own) or only root may see it. embedded: this process is the engine.
    """
    found = _processes(root)
    engines = {p.pid for p in found.values() if p.name == _ENGINE}
    if embedded:
        engines.add(os.getpid())
    first = [p for p in found.values() if p.name == _NAME and (p.parent in engines or _path(root, p.pid) in _PATHS)]
    if not first and not engines:
        return None
    out = {p.pid: p for p in first}
    while True:
        more = {p.pid: p for p in found.values() if p.parent in out and p.pid not in out}
        if not more:
            return list(out.values())
        out.update(more)


def kill(process: Process, root: str = "/") -> bool:
    """SIGKILL to this very process. False when that is not permitted; one that is gone already is no failure."""
    if _process(root, process.pid) != process:
        return True
    try:
        os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


def _processes(root: str) -> dict[int, Process]:
    try:
        numbers = [int(name) for name in os.listdir(os.path.join(root, "proc")) if name.isdigit()]
    except OSError:
        return {}
    return {p.pid: p for p in map(lambda number: _process(root, number), numbers) if p is not None}


def _process(root: str, pid: int) -> Optional[Process]:
    """None when it has ended, also as a corpse that nobody has taken away yet."""
    try:
        with open(os.path.join(root, "proc", str(pid), "stat"), encoding="utf-8", errors="replace") as file:
            head, mark, tail = file.read(4096).rpartition(")")
    except OSError:
        return None
    fields = tail.split()
    if not mark or len(fields) < 20 or fields[0] in _ENDED or not fields[1].isdigit() or not fields[19].isdigit():
        return None
    return Process(pid, head.partition("(")[2], int(fields[1]), int(fields[19]))


def _path(root: str, pid: int) -> str:
    """Of its program; '' when only root may know. One that was replaced on disk has a mark behind its path."""
    try:
        return os.readlink(os.path.join(root, "proc", str(pid), "exe")).removesuffix(" (deleted)")
    except OSError:
        return ""
