"""One node as slurmctld keeps it: what each request does to state, flags and reason. As observed on 22.05 and 24.11.

Beside what Slurm tells, the model knows the truth that Slurm does not keep: whose the present drain is (``owner``).
"""

from __future__ import annotations

import functools
import time
from typing import Final, Optional

from slurm_nvhc.model.node_state import NodeState

OURS: Final = "nvhc"  # owner; every other word is somebody else

DRAIN: Final = "DRAIN"
FAIL: Final = "FAIL"
REQUESTED: Final = "REBOOT_REQUESTED"
ISSUED: Final = "REBOOT_ISSUED"
QUIET: Final = "NOT_RESPONDING"
MAINT: Final = "MAINTENANCE"
COMPLETING: Final = "COMPLETING"


class Refused(Exception):
    """slurmctld says no."""


class Node:
    """keeps: 24.11 keeps the reason of an ended drain (22.05 clears it).

    owner:  who placed what keeps the node out now, '' when it is in service
    drain:  counts drains and changes of a drain's reason: another number is another drain
    jobs:   how many run here; ending: how many of these are in their epilog
    """

    def __init__(self, name: str, keeps: bool) -> None:
        self.name = name
        self.keeps = keeps
        self.down = False
        self.flags: set[str] = set()
        self.reason = ""
        self.stamp = ""
        self.said_ns = 0
        self.hidden = ""  # "Prolog" or "Epilog" of the site: its error came when the node was drained already
        self.owner = ""
        self.drain = 0
        self.jobs = 0
        self.ending = 0
        self.cores_full = False
        self.booted_ns = 0
        self.next_state = ""  # of a reboot that was asked for

    @property
    def base(self) -> str:
        if self.down:
            return "DOWN"
        return "IDLE" if not self.jobs else "ALLOCATED" if self.cores_full else "MIXED"

    @property
    def out(self) -> bool:
        return self.down or bool(self.flags & {DRAIN, FAIL})

    def state(self) -> NodeState:
        flags = frozenset(self.flags | ({COMPLETING} if self.ending else set()))
        return NodeState(self.base, flags, self.reason, self.stamp, ("gpu",), moment(self.booted_ns))

    # Requests. ``who`` is the owner, ``user`` what Slurm writes down.

    def set_drain(self, who: str, reason: str, now_ns: int, user: str = "root") -> None:
        """Also on a node that is out: overwrites the reason, its time and its user."""
        self.flags.add(DRAIN)
        self._says(who, reason, now_ns, user)

    def set_down(self, who: str, reason: str, now_ns: int, user: str = "root") -> None:
        """The jobs are killed and requeued."""
        self.down, self.jobs, self.ending = True, 0, 0
        self._says(who, reason, now_ns, user)

    def set_fail(self, who: str, reason: str, now_ns: int, user: str = "root") -> None:
        self.flags.add(FAIL)
        self._says(who, reason, now_ns, user)

    def resume(self) -> None:
        """With jobs too. Afterwards Slurm shows the node as not responding for a second."""
        if not self.out or ISSUED in self.flags:
            raise Refused("Invalid node state specified")
        self.down = False
        self.flags -= {DRAIN, FAIL, REQUESTED}
        self.flags.add(QUIET)
        self._back()

    def undrain(self) -> None:
        """Of a node that is not drained: nothing, and no error."""
        if self.flags & {DRAIN, FAIL} and ISSUED not in self.flags:
            self.flags -= {DRAIN, FAIL}
            if not self.down:
                self._back()
            elif self.owner == OURS:
                self.owner = "slurm"

    def hook_failed(self, which: str, now_ns: int, site: bool) -> None:
        """Prolog or epilog: drains, and never overwrites the reason of a node that is drained already."""
        if not self.flags & {DRAIN, FAIL}:
            self.flags.add(DRAIN)
            self._says("slurmd", f"{which} error", now_ns, "root")
        elif site:
            self.hidden = which

    def quiet(self, now_ns: int) -> None:
        """slurmd does not answer: first a flag, then down. A reason that is there stays."""
        if QUIET not in self.flags:
            self.flags.add(QUIET)
            return
        if not self.down:
            self.down, self.jobs, self.ending = True, 0, 0
            if not self.flags & {DRAIN, FAIL}:
                self.owner = "slurm"
                self.drain += 1
            if not self.reason:
                self.reason, self.stamp = "Not responding", f"slurm@{moment(now_ns)}"

    def answers(self, returns: bool) -> None:
        """slurmd registers. returns: ReturnToService lets a node that was down for no answer serve again."""
        self.flags.discard(QUIET)
        if self.down and returns and self.owner != "admin":
            self.down = False
            if not self.flags & {DRAIN, FAIL}:
                self._back()

    def ask_reboot(self, who: str, reason: Optional[str], next_state: str, now_ns: int, user: str = "root") -> None:
        """`scontrol reboot ASAP`: drains until it is done. Its reason, where one is given, overwrites the present one."""
        if ISSUED in self.flags or self.down:
            raise Refused("Invalid node state specified")
        was_out = bool(self.flags & {DRAIN, FAIL})
        self.flags |= {REQUESTED, DRAIN}
        self.next_state = next_state
        if reason is not None or not was_out:
            self._says(who, reason or "Reboot ASAP", now_ns, user)
        if not self.jobs:
            self.issue_reboot(now_ns)

    def issue_reboot(self, now_ns: int) -> None:
        if REQUESTED in self.flags and not self.jobs:
            self.flags.discard(REQUESTED)
            self.flags.add(ISSUED)
            self.reason, self.stamp = f"{self.reason} : reboot issued", f"root@{moment(now_ns)}"

    def cancel_reboot(self) -> None:
        """Before it is issued: the node stays draining."""
        self.flags.discard(REQUESTED)

    def boots(self, now_ns: int) -> None:
        """The node comes up again, whatever it was that booted it."""
        self.jobs = self.ending = 0
        self.booted_ns = now_ns
        self.flags.discard(QUIET)
        self.down = False
        if ISSUED in self.flags:
            self.flags.discard(ISSUED)
            if self.next_state == "RESUME":
                self.flags -= {DRAIN, FAIL}
        if not self.out:
            self._back()

    def _says(self, who: str, reason: str, now_ns: int, user: str) -> None:
        self.reason, self.stamp, self.owner = reason, f"{user}@{moment(now_ns)}", who
        self.said_ns = now_ns // 10**9 * 10**9
        self.drain += 1

    def _back(self) -> None:
        self.owner = self.hidden = ""
        self.drain += 1
        if not self.keeps:
            self.reason = self.stamp = ""


def moment(now_ns: int) -> str:
    """As Slurm writes it: seconds, local time."""
    return _moment(now_ns // 10**9)


@functools.lru_cache(maxsize=1024)
def _moment(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))
