"""Reading and changing a node's state in Slurm, with ``scontrol``, each call bounded (slurm/command.py)."""

from __future__ import annotations

import os
import re
from typing import Final, Optional

from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.slurm import command
from slurm_nvhc.slurm.command import MISSING, REFUSED, TIMEOUT, UNREACHABLE, SlurmError

__all__ = ["MISSING", "REFUSED", "TIMEOUT", "UNREACHABLE", "SlurmCommands", "SlurmError", "parse_node"]

_STATE: Final = re.compile(r"^[ \t]*State=(\S+)", re.MULTILINE)
_REASON: Final = re.compile(r"^[ \t]*Reason=(.*)$", re.MULTILINE)
_SET_BY: Final = re.compile(r"[ \t]*\[([^\[\]@]*@[^\[\]@]*)\][ \t]*$")
_PARTITIONS: Final = re.compile(r"^[ \t]*Partitions=(\S*)", re.MULTILINE)
_BOOTED: Final = re.compile(r"\bBootTime=(\S+)")
_NEXT_KEY: Final = re.compile(r"^[ \t]*(Comment|Extra|InstanceId|InstanceType|ResumeAfterTime|NodeName)=")
# Suffixes that Slurm puts on a state word; "*" (not responding) is the one that tells more than a flag does.
_SUFFIXES: Final = "*~#!%$@^-+"


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
    reason, stamp = "", ""
    if found:
        set_by = _SET_BY.search(found.group(1))
        stamp = set_by.group(1) if set_by else ""
        reason = _SET_BY.sub("", found.group(1))
        more = []
        for line in text[found.end() :].split("\n")[1:]:
            if not line.strip() or _NEXT_KEY.match(line):
                break
            more.append(line.strip())
        reason = "\n".join([reason, *more]).strip()
    member = _PARTITIONS.search(text)
    booted = _BOOTED.search(text)
    return NodeState(
        names[0],
        frozenset(flags),
        "" if reason == "(null)" else reason,
        stamp,
        tuple(p for p in member.group(1).split(",") if p) if member else (),
        booted.group(1) if booted and booted.group(1) != "None" else "",
    )


class SlurmCommands:
    """``scontrol`` in ``bin_dir``, with ``conf`` as SLURM_CONF ('' = Slurm's default), ``timeout_s`` per call."""

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
            raise SlurmError(REFUSED, self.scontrol, f"show node {node}", f"no State= in its answer: {command.one_line(out)}")
        return state

    def drain(self, node: str, reason: str, timeout_s: Optional[float] = None) -> None:
        """State and reason in one request. Overwrites any reason: read the state first. Raises SlurmError."""
        self._run(("update", f"nodename={node}", "state=drain", f"reason={reason}"), timeout_s)

    def resume(self, node: str, timeout_s: Optional[float] = None) -> None:
        """Raises SlurmError, also for a node that is not drained."""
        self._run(("update", f"nodename={node}", "state=resume"), timeout_s)

    def reboot(self, node: str, reason: str, timeout_s: Optional[float] = None) -> None:
        """Reboot once no job runs on it, and then back into service. Overwrites any reason. Raises SlurmError.

        Observed on 22.05: a second request while the first is under way is accepted as well, so read the state first.
        """
        self._run(("reboot", "ASAP", "nextstate=RESUME", f"reason={reason}", node), timeout_s)

    def undrain(self, node: str, timeout_s: Optional[float] = None) -> None:
        """End a drain and nothing else: a node that is down stays down. No error for a node that is not drained. Raises SlurmError."""
        self._run(("update", f"nodename={node}", "state=undrain"), timeout_s)

    def _run(self, arguments: tuple[str, ...], timeout_s: Optional[float]) -> str:
        seconds = self.timeout_s if timeout_s is None else min(self.timeout_s, timeout_s)
        return command.run(self.scontrol, arguments, seconds, self.conf)
