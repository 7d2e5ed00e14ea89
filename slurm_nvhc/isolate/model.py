"""Steps of a search, and what was seen in each. Values only."""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple, Optional

# Step.kind
IDLE: Final = "idle"  # nothing runs: do counters grow by themselves?
ALONE: Final = "alone"  # every group is one GPU: no traffic between GPUs
TRAFFIC: Final = "traffic"  # each group moves data among its own GPUs


class Step(NamedTuple):
    """groups: UUIDs; the groups have no GPU in common and run at the same time. why: for people, what the step tells apart."""

    kind: str
    groups: tuple[tuple[str, ...], ...]
    why: str = ""


class Group(NamedTuple):
    """How a group's command ended. ok: False when it failed; None when it could not be run, or ran out of its time.

    said: its last words, one line.
    """

    gpus: tuple[str, ...]
    ok: Optional[bool]
    said: str = ""


class Seen(NamedTuple):
    """One step that was done.

    growth: entity -> catalogue field -> by how much: error counters that grew over the step, of links, switch ports and
            GPUs; what did not grow is not there. A link or port that went down has "nvlink_state" or "port_state": 1
    unread: entities whose counters could not be compared (no data, reset) -> why: nothing is known of them in this step
    events: lines about GPUs, links or switches that the kernel logged meanwhile: "Xid 74 on GPU-…"
    wall_ns: when it began
    """

    step: Step
    groups: tuple[Group, ...]
    growth: Mapping[str, Mapping[str, int]] = {}
    unread: Mapping[str, str] = {}
    events: tuple[str, ...] = ()
    wall_ns: int = 0
    seconds: float = 0.0
