"""Whose drain is it? Ours only by the exact reason in state *and* ledger, and by who set it when. Pure.

Slurm keeps one reason a node. Somebody who resumed the node, or gave it another reason, and then drained it with the
very text that we had set has taken it over: the stamp "user@time" beside the reason is another one then. (Setting the
text that stands there already changes nothing, not even the stamp: observed on 22.05.)
"""

from __future__ import annotations

from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import OwnDrain


def same_drain(own: OwnDrain, state: NodeState) -> bool:
    """Is the node out by this drain of ours? What Slurm did not say of the stamp speaks neither for nor against it.

    A reboot that was asked for with our reason sets a stamp of its own, and slurmctld one more when it begins.
    """
    if state.rebooting:
        return state.out and state.ground == own.reason
    return state.out and state.reason == own.reason and not another_stamp(own, state)


def another_stamp(own: OwnDrain, state: NodeState) -> bool:
    """Somebody has set the reason since we saw it first."""
    return bool(own.stamp and state.stamp and own.stamp != state.stamp)
