"""Starting a hook under the supervisor (supervise.py), and reading what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from slurm_nvhc.errors import MonitorError

TIMEOUT_S = 120.0  # PrologEpilogTimeout of the played slurmd; every budget of ours is far below
GRACE_S = 1.0  # a hook waits at most 200 ms for a corpse; what is still there after this was left behind
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervise.py")


class Ended(NamedTuple):
    """status: exit status, -N for a signal, None when it had to be killed. seconds: real time. left: what it left running."""

    status: Optional[int]
    out: str
    seconds: float
    timed_out: bool
    left: Tuple[str, ...]


def run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    cwd: str,
    stdin: str = "null",
    terminate_after: Union[float, str, None] = None,
    timeout_s: float = TIMEOUT_S,
) -> Ended:
    """Run a hook as slurmd does. MonitorError when the supervisor itself fails.

    terminate_after: seconds; or the file of a simulated node: once a diagnostic runs there.
    """
    request = {
        "argv": list(argv),
        "environment": dict(environment),
        "cwd": cwd,
        "stdin": stdin,
        "terminate_after": terminate_after,
        "timeout_s": timeout_s,
        "grace_s": GRACE_S,
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", _PROGRAM],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s + 60,
    )
    try:
        reply = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise MonitorError("hook supervisor", "", f"failed: {last}") from None
    return Ended(reply["status"], reply["out"], reply["seconds"], reply["timed_out"], tuple(reply["left"]))
