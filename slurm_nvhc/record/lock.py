"""The directory's lock file: many may work in the ledger at once, only one may replace its file.

Shared around every transaction, exclusive for setting a damaged file aside. Without
the shared half, a hook that still has the old file open would go on writing into
what another one has just set aside, and its rows would be lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Final, Iterator

from slurm_nvhc.errors import MonitorError

_FIRST_PAUSE_S: Final = 0.001
_LAST_PAUSE_S: Final = 0.02


class DirectoryLock:
    """``flock`` on ``path``. The kernel drops it when its owner dies, so kill -9 leaves nothing behind."""

    def __init__(self, path: str) -> None:
        """Open (and make) the lock file. Raises OSError."""
        self._path = path
        # Close-on-exec: a child that held this descriptor would hold the lock with it.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def acquire(self, exclusive: bool, deadline: float) -> None:
        """Take the lock before ``deadline`` (monotonic seconds). Raises MonitorError."""
        if self._fd < 0:
            raise MonitorError(self._path, "", "was closed before")
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        pause = _FIRST_PAUSE_S
        while True:
            try:
                fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pass
            except OSError as exc:
                raise MonitorError(self._path, "", f"can not be locked: {exc.strerror}") from exc
            left = deadline - time.monotonic()
            if left <= 0:
                raise MonitorError(self._path, "", "was held by another process for the whole time allowed")
            time.sleep(min(pause, left))
            pause = min(pause * 2, _LAST_PAUSE_S)

    def release(self) -> None:
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextlib.contextmanager
def held(path: str, timeout_s: float) -> Iterator[bool]:
    """Hold ``path`` exclusively. False, and no lock, when it can not be had in time: the work must go on."""
    lock = None
    try:
        lock = DirectoryLock(path)
        lock.acquire(True, time.monotonic() + timeout_s)
        got = True
    except (OSError, MonitorError):
        got = False
    try:
        yield got
    finally:
        if lock is not None:
            lock.close()
