"""Run one of Slurm's commands, bounded, and say in one of four words why it did not do its work.

Observed on 22.05 and 24.11: a call takes 4 to 5 ms; with slurmctld down it
fails after 9 s, with slurmctld hung after 10 s ("Socket timed out"), and then
the change *was still applied* when it woke up. So a timed-out change is
neither done nor not done: read before any retry.
"""

from __future__ import annotations

import os
from typing import Final, Mapping, Sequence

from slurm_nvhc.errors import MonitorError
from slurm_nvhc.proc import child

MISSING: Final = "missing"  # the command or its configuration is not there
REFUSED: Final = "refused"  # slurmctld answered: no
UNREACHABLE: Final = "unreachable"  # slurmctld does not answer: nothing was changed
TIMEOUT: Final = "timeout"  # no answer in time: a change may have been, or may yet be, applied

_UNREACHABLE: Final = ("unable to contact slurm controller", "connection refused", "zero bytes were transmitted", "no route to host")
_MISSING: Final = ("could not establish a configuration source", "unable to process configuration file", "unable to load slurm.conf")


class SlurmError(MonitorError):
    """A Slurm command that did not do its work; ``kind`` is one of the four above."""

    def __init__(self, kind: str, thing: str, place: str, problem: str, hint: str = "") -> None:
        super().__init__(thing, place, problem, hint)
        self.kind = kind


def run(program: str, arguments: Sequence[str], seconds: float, conf: str, more: Mapping[str, str] = {}) -> str:
    """What ``program`` (absolute path) printed. ``conf`` becomes SLURM_CONF ('' = Slurm's default); more: further variables.

    Health checks get no SLURM_CONF from slurmd, so it is always given here. Raises SlurmError.
    """
    place = " ".join(arguments[:2])
    if not os.path.isabs(program):
        raise SlurmError(MISSING, program, place, "is not an absolute path", "set slurm.bin_dir in the policy")
    result = child.run((program, *arguments), seconds, {**({"SLURM_CONF": conf} if conf else {}), **more})
    if result.problem == "timeout":
        raise SlurmError(TIMEOUT, program, place, f"no answer within {seconds:.1f} s", "is slurmctld busy or hung?")
    if result.problem:
        raise SlurmError(MISSING, program, place, result.problem, "set slurm.bin_dir in the policy")
    if result.rc == 0:
        return result.out
    said = one_line(result.err.strip() or result.out)
    lower = said.lower()
    if "timed out" in lower:
        raise SlurmError(TIMEOUT, program, place, said)
    if any(text in lower for text in _UNREACHABLE):
        raise SlurmError(UNREACHABLE, program, place, said)
    if any(text in lower for text in _MISSING):
        raise SlurmError(MISSING, program, place, said, "set slurm.conf in the policy")
    raise SlurmError(REFUSED, program, place, said or f"exit status {result.rc}")


def one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text[:2000]).split())[:300]
