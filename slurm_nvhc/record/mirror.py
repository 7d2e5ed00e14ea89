"""The protective state's second home: a small file beside the ledger.

Also what a hook falls back on when the ledger can not be opened at all (disk full,
newer schema): the exclusions in it still hold.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple, Optional

from slurm_nvhc.errors import MonitorError
from slurm_nvhc.proc.files import write_atomic
from slurm_nvhc.record.protective import Protective, dumps, loads

FILE: Final = "protective.json"
_MAX_BYTES: Final = 4 * 1024 * 1024  # a real one has a few kB
_KEEP: Final = 3  # files set aside


class Mirror(NamedTuple):
    """What the file says. state: None when there is none or it can not be used; problem: '' or why."""

    state: Optional[Protective]
    problem: str = ""


def path_in(directory: str) -> str:
    return os.path.join(directory, FILE)


def read(directory: str) -> Mirror:
    """Never raises: a missing file is no state and no problem."""
    try:
        state, lost = loads(_content(path_in(directory)).decode("utf-8"))
    except FileNotFoundError:
        return Mirror(None)
    except OSError as exc:
        return Mirror(None, exc.strerror or str(exc))
    except ValueError as exc:
        return Mirror(None, " ".join(str(exc).split()))
    return Mirror(state, f"{lost} of its entries could not be read" if lost else "")


def _content(path: str) -> bytes:
    # Non-blocking: a FIFO in the file's place must not hang a hook.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        content = b""
        while len(content) < _MAX_BYTES and (more := os.read(fd, 65536)):
            content += more
        return content
    finally:
        os.close(fd)


def write(directory: str, state: Protective) -> None:
    """Durably replace the file. Raises MonitorError."""
    try:
        write_atomic(path_in(directory), dumps(state))
    except OSError as exc:
        raise MonitorError(path_in(directory), "", f"can not be written: {exc.strerror}", "check free space and permissions") from exc


def keep_unreadable(directory: str, suffix: str) -> str:
    """Rename a file that could not be used, so that writing a new one does not lose it. The new name, or ''.

    The newest few are kept, by their suffix, which is the moment: a disk that spoils each file must not fill up.
    """
    name = f"{FILE}.corrupt-{suffix}"
    try:
        os.rename(path_in(directory), os.path.join(directory, name))
    except OSError:
        return ""
    try:
        for old in sorted(n for n in os.listdir(directory) if n.startswith(f"{FILE}.corrupt-"))[:-_KEEP]:
            os.unlink(os.path.join(directory, old))
    except OSError:
        pass  # the next one will
    return name


def remove_leftovers(directory: str) -> None:
    """Remove what writers killed half way left behind. Call it while no other process can be writing."""
    try:
        for name in os.listdir(directory):
            if name.startswith(f".{FILE}.") and name.endswith(".new"):
                os.unlink(os.path.join(directory, name))
    except OSError:
        pass  # the next one will
