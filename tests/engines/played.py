"""Play an engine that runs a diagnostic: a process named nv-hostengine with a child named nvvs, for real.

    python -I played.py STATE PROC SECONDS LIMIT MANNER

It outlives whoever starts it, as an engine does. While nvvs runs, STATE says so, and links in the folder PROC lead to both
processes. nvvs ends after SECONDS, or when it is told to (MANNER "stubborn": only by SIGKILL); the engine tells it to after LIMIT.
At the end STATE.ended holds how nvvs ended: its exit status, or -N for a signal.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

MOST_S = 120.0  # no process of a test stays for longer


def call_it(name: str) -> None:
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)


def nvvs(seconds: float, stubborn: bool) -> None:
    call_it("nvvs")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else signal.SIG_DFL)
    time.sleep(min(seconds, MOST_S))
    os._exit(0)


def put(path: str, document: object) -> None:
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(path + ".new", path)


def main(state: str, proc: str, seconds: str, limit: str, manner: str) -> None:
    if os.fork():
        return  # whoever starts it has no child of it
    call_it("nv-hostengine")
    stubborn = manner == "stubborn"
    pid = os.fork()
    if pid == 0:
        nvvs(float(seconds), stubborn)
    links = [os.path.join(proc, str(number)) for number in (os.getpid(), pid)]
    for link in links:
        os.symlink(f"/proc/{os.path.basename(link)}", link)
    put(state, {"engine": os.getpid(), "nvvs": pid})
    began = time.monotonic()
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        took = time.monotonic() - began
        if took > float(limit) > 0:
            os.kill(pid, signal.SIGTERM)
        if took > MOST_S:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    for link in links:
        os.unlink(link)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    put(state + ".ended", status)
    os.unlink(state)


if __name__ == "__main__":
    main(*sys.argv[1:])
