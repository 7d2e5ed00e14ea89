"""A diagnostic through NVIDIA's own command, ``dcgmi diag -j``: for engines whose structures the bindings do not know.

It runs in an environment of its own: Slurm sets CUDA_VISIBLE_DEVICES in jobs and prologs, which has no effect on the engine's
diagnostic, and since 4.4.2 makes dcgmi print a block of warnings.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Final, Mapping, Sequence

from slurm_nvhc.model.diag import FAILED, NOT_STARTED, STOPPED, Ask
from slurm_nvhc.proc import child
from slurm_nvhc.sense import diag_json
from slurm_nvhc.sense.dcgm.connection import Address
from slurm_nvhc.sense.diag_json import Parsed
from slurm_nvhc.sense.text import clean

# dcgmi itself waits for the engine's answer at its time limit: it gets this much longer.
LONGER_S: Final = 2.0
# On Ctrl-C or SIGTERM dcgmi stops the diagnostic in the engine: that is sent to it when we die, by the kernel. The parent may
# have died before that took effect.
_WITH_US: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
_TIMEOUT_SINCE: Final = (3, 3, 8)


def argv(ask: Ask, ids: Sequence[int], where: Address, version: str, seconds: float) -> list[str]:
    """The command line. version: of the engine: older ones than 3.3.8 know no time limit."""
    out = [ask.dcgmi, "diag", "-j", "-r", ",".join(ask.tests), "-i", ",".join(str(i) for i in ids)]
    if ask.parameters:
        out += ["-p", ";".join(ask.parameters)]
    if _numbers(version) >= _TIMEOUT_SINCE:
        out += ["-t", str(max(1, math.ceil(seconds)))]
    return [*out, "--host", f"unix://{where.unix}" if where.unix else where.tcp]


def run(command: Sequence[str], uuids: Mapping[int, str], seconds: float) -> tuple[Parsed, bool]:
    """(what it said, may the engine still run the diagnostic?). Blocks at most ``seconds`` and a little."""
    if not os.access(command[0], os.X_OK):
        return Parsed(NOT_STARTED, (), f"there is no {clean(command[0], 120)}: it comes with DCGM (policy: diagnostics.dcgmi)"), False
    result = child.run([sys.executable, "-I", "-S", "-c", _WITH_US, str(os.getpid()), *command], seconds + LONGER_S)
    parsed = diag_json.parse(result.out, result.rc, uuids)
    if result.problem == "timeout":
        why = f"dcgmi gave no answer within {seconds + LONGER_S:g} s"
        return parsed._replace(outcome=STOPPED, why=why, results=()), True
    said = clean(result.err.strip().rsplit("\n", 1)[-1], 120)
    if parsed.why and said:
        parsed = parsed._replace(why=clean(f"{parsed.why}; {said}"))
    return parsed, parsed.outcome in (STOPPED, FAILED)


def _numbers(version: str) -> tuple[int, ...]:
    """(3, 3, 9); an engine that does not tell is taken to be of today."""
    found = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    return found or (99,)
