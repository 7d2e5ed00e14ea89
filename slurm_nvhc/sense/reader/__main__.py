"""``python -I -m slurm_nvhc.sense.reader``: request on descriptor 3, reply on descriptor 4.

Two things keep it from outliving the hook, whatever an engine call does: an alarm with
the default action (a Python handler would not run inside a blocked C call), and the
kernel's parent death signal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, Final, Mapping

from slurm_nvhc.sense.protocol import Request
from slurm_nvhc.sense.reader.serve import serve

REQUEST_FD: Final = 3
REPLY_FD: Final = 4
MAX_REQUEST: Final = 1024 * 1024
_PR_SET_PDEATHSIG: Final = 1


def main() -> int:
    """0 when the request was served, whatever came of it; 1 when nobody listens."""
    _die_with_parent()
    try:
        serve(_request(), _emit, _arm)
    except OSError as exc:
        # The client is gone, or was never there: started by hand without the descriptors.
        print(f"slurm_nvhc.sense.reader: {exc.strerror}: it is started by a hook, not by hand", file=sys.stderr)
        return 1
    return 0


def _die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _arm(request: Request) -> None:
    # The parent may have died before prctl took effect.
    if request.parent and os.getppid() != request.parent:
        os._exit(1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, request.deadline_s)


def _request() -> str:
    data = b""
    while not data.endswith(b"\n") and len(data) < MAX_REQUEST:
        more = os.read(REQUEST_FD, 65536)
        if not more:
            break
        data += more
    return data.decode("utf-8", "replace")


def _emit(part: Mapping[str, Any]) -> None:
    view = memoryview((json.dumps(part, default=str, skipkeys=True) + "\n").encode("ascii"))
    while view:
        view = view[os.write(REPLY_FD, view) :]


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Not through the interpreter's end: the engine's library disconnects there, which hangs
    # with a hung engine and would keep the hook from a reply that is complete. The closed
    # socket tells the engine the same.
    os._exit(status)
