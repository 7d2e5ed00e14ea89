"""Which nodes of a sweep get a job now, and which waiting job gives its place to another node. Pure.

At most ``at_once`` jobs of a sweep run or wait in Slurm's queue together. Idle nodes come first: there a job starts at once. With
places left over, a busy node gets a job too, which waits in the queue like anybody's. While it waits it holds one of the few
places, so a job that waits long gives it up as soon as an idle node needs it; its own node's turn comes again.
"""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple, Sequence

from slurm_nvhc.slurm.fleet import FleetNode

IDLE: Final = "idle"
_FLAGS: Final = "*~#!%$@^-+"  # "drained$" in a maintenance reservation, "drained*" for a second after a resume
POWERED_DOWN: Final = "~"  # flag behind sinfo's state: a job would have the node started


class Flying(NamedTuple):
    """A job of ours that has not ended. waiting_s: how long it waits to start by now; None: it has started."""

    node: str
    waiting_s: float | None


class Next(NamedTuple):
    """submit: nodes, in order. withdraw: nodes whose waiting job is to be cancelled."""

    submit: tuple[str, ...] = ()
    withdraw: tuple[str, ...] = ()


def next_actions(todo: Sequence[str], nodes: Mapping[str, FleetNode], flying: Sequence[Flying], at_once: int, patience_s: float) -> Next:
    """todo: nodes without a result and without a job, in the order in which their turn comes; nodes: as Slurm says now.

    A node that takes no jobs, or that Slurm does not list any more, gets none; a job that waits for such a node is withdrawn.
    """
    able = [name for name in todo if not why_not(nodes.get(name))]
    idle = [name for name in able if nodes[name].state == IDLE]
    stuck = [job.node for job in flying if job.waiting_s is not None and why_not(nodes.get(job.node))]
    free = at_once - len(flying)
    if free > 0:
        busy = [name for name in able if nodes[name].state != IDLE]
        return Next(tuple([*idle, *busy][:free]), tuple(stuck))
    long = sorted((job for job in flying if (job.waiting_s or 0.0) >= patience_s and job.waiting_s is not None), key=_longest)
    giving = [job.node for job in long if job.node not in stuck][: max(0, len(idle) - len(stuck))]
    return Next((), tuple([*stuck, *giving]))


def _longest(job: Flying) -> float:
    return -(job.waiting_s or 0.0)


def why_not(node: FleetNode | None) -> str:
    """Why no job of ours can start on a node, '' when one can (it may have to wait)."""
    if node is None:
        return "Slurm does not list it in this partition any more"
    if node.out:
        return f"{node.state.rstrip(_FLAGS)}{f': {node.reason}' if node.reason else ''}"
    if node.state.endswith(POWERED_DOWN):
        return "powered down"
    return "" if node.gpus else "Slurm gives it no GPU (Gres)"


def by_hand(node: FleetNode | None) -> str:
    """How such a node is reached all the same, '' when it is not by hand."""
    return "no job starts there: run nvhc diag on the node itself (docs/diagnostics.md)" if node is not None and node.out else ""
