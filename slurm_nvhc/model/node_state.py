"""A node's state in Slurm. Decide by state, never by the presence of a reason."""

from __future__ import annotations

from typing import NamedTuple

# Flags under which Slurm starts nothing new on a node.
_OUT = frozenset({"DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL", "FAILING"})


class NodeState(NamedTuple):
    """As `scontrol show node` says: base "IDLE", flags {"DRAIN"}, reason without its [user@time].

    24.11 keeps the reason of an ended drain, 22.05 does not: ``out`` decides.
    """

    base: str
    flags: frozenset[str]
    reason: str = ""

    @property
    def out(self) -> bool:
        """True when the node takes no new jobs (drained, draining, down or failing)."""
        return self.base in _OUT or bool(self.flags & _OUT)
