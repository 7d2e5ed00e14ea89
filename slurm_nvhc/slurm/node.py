"""Reading and changing a node's state in Slurm, with ``scontrol``, each call bounded.

Observed on 22.05 and 24.11: a call takes 4 to 5 ms; with slurmctld down it
fails after 9 s, with slurmctld hung after 10 s ("Socket timed out"), and then
the change *was still applied* when it woke up. So a timed-out update is
neither done nor not done: read before any retry.
"""

from __future__ import annotations

import os
import re
from typing import Final, Optional

from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.proc import child

MISSING: Final = "missing"  # scontrol or its configuration is not there
REFUSED: Final = "refused"  # slurmctld answered: no
UNREACHABLE: Final = "unreachable"  # slurmctld does not answer: nothing was changed
TIMEOUT: Final = "timeout"  # no answer in time: a change may have been, or may yet be, applied

_STATE: Final = re.compile(r"^[ \t]*State=(\S+)", re.MULTILINE)
_REASON: Final = re.compile(r"^[ \t]*Reason=(.*)$", re.MULTILINE)
_SET_BY: Final = re.compile(r"[ \t]*\[[^\[\]@]*@[^\[\]@]*\][ \t]*$")
_NEXT_KEY: Final = re.compile(r"^[ \t]*(Comment|Extra|InstanceId|InstanceType|ResumeAfterTime|NodeName)=")
# Suffixes that Slurm puts on a state word; "*" (not responding) is the one that tells more than a flag does.
_SUFFIXES: Final = "*~#!%$@^-+"
_UNREACHABLE: Final = ("unable to contact slurm controller", "connection refused", "zero bytes were transmitted", "no route to host")
_MISSING: Final = ("could not establish a configuration source", "unable to process configuration file", "unable to load slurm.conf")


class SlurmError(MonitorError):
    """A Slurm command that did not do its work; ``kind`` is one of the four above."""

    def __init__(self, kind: str, thing: str, place: str, problem: str, hint: str = "") -> None:
        super().__init__(thing, place, problem, hint)
        self.kind = kind


def parse_node(text: str) -> Optional[NodeState]:
    """The state in the output of ``scontrol show node NAME``; None when it holds none.

    A reason of several lines has its " [user@time]" after the first one.
    """
    state = _STATE.search(text)
    if not state:
        return None
    flags: set[str] = set()
    words = state.group(1).split("+")
    if any("*" in word for word in words):
        flags.add("NOT_RESPONDING")
    names = [word.rstrip(_SUFFIXES).upper() for word in words]
    flags.update(name for name in names[1:] if name)
    found = _REASON.search(text, state.end())
    reason = ""
    if found:
        reason = _SET_BY.sub("", found.group(1))
        more = []
        for line in text[found.end() :].split("\n")[1:]:
            if not line.strip() or _NEXT_KEY.match(line):
                break
            more.append(line.strip())
        reason = "\n".join([reason, *more]).strip()
    return NodeState(names[0], frozenset(flags), "" if reason == "(null)" else reason)


class SlurmCommands:
    """``scontrol`` in ``bin_dir``, with ``conf`` as SLURM_CONF ('' = Slurm's default), ``timeout_s`` per call.

    Health checks get no SLURM_CONF from slurmd, so it is always given here.
    """

    def __init__(self, bin_dir: str, conf: str, timeout_s: float) -> None:
        self.scontrol = os.path.join(bin_dir, "scontrol")
        self.conf = conf
        self.timeout_s = timeout_s

    def unusable(self) -> Optional[SlurmError]:
        """Why scontrol can not be run, as far as its file tells; nothing is called."""
        if not os.path.isabs(self.scontrol):
            return SlurmError(MISSING, self.scontrol, "", "is not an absolute path", "set slurm.bin_dir in the policy")
        if not (os.path.isfile(self.scontrol) and os.access(self.scontrol, os.X_OK)):
            problem = "is not there or can not be run: no node can be drained"
            return SlurmError(MISSING, self.scontrol, "", problem, "set slurm.bin_dir in the policy")
        return None

    def node_state(self, node: str, timeout_s: Optional[float] = None) -> NodeState:
        """Raises SlurmError."""
        out = self._run(("show", "node", node), timeout_s)
        state = parse_node(out)
        if state is None:
            raise SlurmError(REFUSED, self.scontrol, f"show node {node}", f"no State= in its answer: {_one_line(out)}")
        return state

    def drain(self, node: str, reason: str, timeout_s: Optional[float] = None) -> None:
        """State and reason in one request. Overwrites any reason: read the state first. Raises SlurmError."""
        self._run(("update", f"nodename={node}", "state=drain", f"reason={reason}"), timeout_s)

    def resume(self, node: str, timeout_s: Optional[float] = None) -> None:
        """Raises SlurmError, also for a node that is not drained."""
        self._run(("update", f"nodename={node}", "state=resume"), timeout_s)

    def _run(self, arguments: tuple[str, ...], timeout_s: Optional[float]) -> str:
        seconds = self.timeout_s if timeout_s is None else min(self.timeout_s, timeout_s)
        place = " ".join(arguments[:2])
        if not os.path.isabs(self.scontrol):
            raise SlurmError(MISSING, self.scontrol, place, "is not an absolute path", "set slurm.bin_dir in the policy")
        result = child.run((self.scontrol, *arguments), seconds, {"SLURM_CONF": self.conf} if self.conf else None)
        if result.problem == "timeout":
            raise SlurmError(TIMEOUT, self.scontrol, place, f"no answer within {seconds:.1f} s", "is slurmctld busy or hung?")
        if result.problem:
            raise SlurmError(MISSING, self.scontrol, place, result.problem, "set slurm.bin_dir in the policy")
        if result.rc == 0:
            return result.out
        said = _one_line(result.err.strip() or result.out)
        lower = said.lower()
        if "timed out" in lower:
            raise SlurmError(TIMEOUT, self.scontrol, place, said)
        if any(text in lower for text in _UNREACHABLE):
            raise SlurmError(UNREACHABLE, self.scontrol, place, said)
        if any(text in lower for text in _MISSING):
            raise SlurmError(MISSING, self.scontrol, place, said, "set slurm.conf in the policy")
        raise SlurmError(REFUSED, self.scontrol, place, said or f"exit status {result.rc}")


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text[:2000]).split())[:300]
