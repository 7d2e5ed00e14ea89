"""Signals to the daemons and tasks of a private cluster, and to nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Sequence


def pid_in(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _is_ours(pid: int) -> bool:
    """A pid file may be stale: only Slurm's and munge's daemons are signalled."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith(("slurm", "munged"))
    except OSError:
        return False


def end(pids: Sequence[int], patience_s: float = 3.0) -> None:
    """TERM, then KILL to those that are still there after ``patience_s``."""
    ours = [pid for pid in pids if pid > 1 and _is_ours(pid)]
    for number, seconds in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 20.0)):
        for pid in ours:
            send(pid, number)
        deadline = time.monotonic() + seconds
        while any(_alive(pid) for pid in ours) and time.monotonic() < deadline:
            time.sleep(0.02)
