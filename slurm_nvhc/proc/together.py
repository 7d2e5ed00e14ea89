"""Several children side by side, each to its end or its deadline. Whatever ends the waiting ends them all."""

from __future__ import annotations

import threading
import time
from typing import Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.proc import child

_UNKILLABLE_S: Final = 5.0  # a command that hangs in the driver can not be killed, and is not waited for longer


class Job(NamedTuple):
    """environment: beside the clean one."""

    argv: Sequence[str]
    environment: Mapping[str, str]


def run(jobs: Sequence[Job], timeout_s: float) -> tuple[Optional[child.Result], ...]:
    """How each ended, in their order; None: it was not run."""
    ended: list[Optional[child.Result]] = [None] * len(jobs)
    begun: list[int] = []
    finished: list[int] = []
    end = threading.Semaphore(0)
    stop = threading.Event()

    def work(place: int) -> None:
        begun.append(place)
        try:
            if not stop.is_set():
                ended[place] = child.run(jobs[place].argv, timeout_s, jobs[place].environment)
        finally:
            finished.append(place)
            end.release()

    try:
        for place in range(len(jobs)):
            threading.Thread(target=work, args=(place,), daemon=True).start()
        for _ in jobs:
            end.acquire()  # not join(): a thread whose join is interrupted counts as dead from then on (bpo-45274)
    except BaseException:
        stop.set()
        until = time.monotonic() + _UNKILLABLE_S
        while len(finished) < len(begun) and time.monotonic() < until:
            child.kill_all()  # again and again: one may just be starting
            time.sleep(0.01)
        raise
    return tuple(ended)
