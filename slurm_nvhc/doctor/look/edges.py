"""What the doctor needs of the world, so that tests can give it another one."""

from __future__ import annotations

import os
import threading
from typing import Callable, Mapping, NamedTuple, Sequence, TypeVar

from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.proc import child
from slurm_nvhc.sense.client import read_snapshot

T = TypeVar("T")


class Edges(NamedTuple):
    """root: the directory in which /proc and all other absolute paths are looked up.

    euid: who runs the doctor; environment: its variables (SLURM_CONF).
    run:  one command, at most so many seconds; read: a snapshot of the node, likewise.
    """

    root: str = "/"
    euid: int = 0
    environment: Mapping[str, str] = {}
    run: Callable[[Sequence[str], float], child.Result] = child.run
    read: Callable[[str, Engine, float], Snapshot] = read_snapshot

    def at(self, path: str) -> str:
        """Where an absolute path of the node is to be found."""
        return os.path.join(self.root, path.lstrip("/"))


def within(seconds: float, look: Callable[[], T], otherwise: T) -> T:
    """``look()``, or ``otherwise`` when it takes longer: a file on a dead NFS server can not be waited for.

    The thread that still waits ends with this process.
    """
    found: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(look())
        except BaseException as exc:
            failed.append(exc)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    return found[0] if found else otherwise


def beginning(path: str, most: int = 65536) -> str:
    """The beginning of a small text file of the kernel's. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(most).decode("utf-8", "replace")
