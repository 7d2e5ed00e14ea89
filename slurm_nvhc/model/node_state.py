"""A node's state in Slurm. Decide by state, never by the presence of a reason."""

from __future__ import annotations

from typing import NamedTuple

# Flags under which Slurm starts nothing new on a node.
_OUT = frozenset({"DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL", "FAILING"})
_REBOOTING = frozenset({"REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"})
# What slurmctld puts behind the reason once the node's reboot has begun (observed on 22.05 and 24.11).
_REBOOT_ISSUED = " : reboot issued"


class NodeState(NamedTuple):
    """As `scontrol show node` says: base "IDLE", flags {"DRAIN"}, reason without its [user@time].

    24.11 keeps the reason of an ended drain, 22.05 does not: ``out`` decides.

    stamp:      who set the reason and when: "root@2026-12-01T12:00:00", '' where Slurm does not say
    partitions: the node's, in Slurm's order
    booted:     BootTime as Slurm says it, '' when it is not known: another value is another boot
    """

    base: str
    flags: frozenset[str]
    reason: str = ""
    stamp: str = ""
    partitions: tuple[str, ...] = ()
    booted: str = ""

    @property
    def out(self) -> bool:
        """True when the node takes no new jobs (drained, draining, down or failing)."""
        return self.base in _OUT or bool(self.flags & _OUT)

    @property
    def rebooting(self) -> bool:
        """A reboot was asked for in Slurm and the node has not come back yet."""
        return bool(self.flags & _REBOOTING)

    @property
    def ground(self) -> str:
        """The reason as somebody set it, without what Slurm itself puts behind it for a reboot."""
        return self.reason.removesuffix(_REBOOT_ISSUED)
