"""How many nodes of a partition may be out by drains of ours: counts, ranks and words. Pure.

There is no coordinator. Each node counts before it drains, drains, counts again after a moment, and
takes its own drain back when it is beyond the limit. All nodes put the drains in the same order, by the
time that slurmctld gave each reason and then by name, so that they agree on who is beyond: the nodes of
the first ranks never withdraw, and everybody else sees them all.
"""

from __future__ import annotations

from typing import Collection, Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.act.words import PREFIX
from slurm_nvhc.catalog.findings import BY_CODE
from slurm_nvhc.model.protective import Exclusion
from slurm_nvhc.model.times import duration
from slurm_nvhc.policy.acting import Limits
from slurm_nvhc.slurm.fleet import OutNode, Partition

# slurmctld gives times in whole seconds: after this pause every drain with the time of ours, or an earlier one, is in sight.
LEAST_RECOUNT_S: Final = 1.1


class Place(NamedTuple):
    """Where a node stands in one partition. others: nodes out by us, without this one; rank: this one's, 1 = first, 0 = not out by us."""

    partition: str
    allowed: int
    others: int
    rank: int
    nodes: int


def soft(keys: Collection[str], exclusions: Mapping[str, Exclusion]) -> bool:
    """Whether none of these faults ("CODE entity") is beyond doubt (Code.hard). An excluded GPU counts as what it was excluded for."""
    for key in keys:
        code, _, entity = key.partition(" ")
        if code == "GPU-EXCLUDED" and entity in exclusions:
            code = exclusions[entity].code
        known = BY_CODE.get(code)
        if known is not None and known.hard:
            return False
    return True


def counted(partition: Partition, within_s: float, now_ns: int) -> list[OutNode]:
    """The partition's nodes that are out by a drain of ours that is young enough, first drained first.

    A reason without a time counts: no data is no proof of age. So does one from the future: clocks differ.
    """
    oldest = now_ns - int(within_s * 1e9)
    ours = [n for n in partition.out if n.reason.startswith(PREFIX) and (not n.since_ns or n.since_ns > oldest)]
    return sorted(ours, key=lambda n: (n.since_ns, n.name))


def places(partitions: Sequence[Partition], node: str, limits: Limits, is_soft: bool, now_ns: int) -> tuple[Place, ...]:
    """One a partition. Suspicions and faults beyond doubt are counted together and measured by limits of their own."""
    out = []
    for partition in partitions:
        names = [n.name for n in counted(partition, limits.within_s, now_ns)]
        rank = names.index(node) + 1 if node in names else 0
        allowed = (limits.soft if is_soft else limits.hard).nodes(partition.nodes)
        out.append(Place(partition.name, allowed, len(names) - (rank > 0), rank, partition.nodes))
    return tuple(out)


def full(where: Sequence[Place]) -> Optional[Place]:
    """Before a drain: the partition that has no room for one more; the tightest. None: there is room in each."""
    return _tightest([p for p in where if p.others >= p.allowed])


def beyond(where: Sequence[Place]) -> Optional[Place]:
    """After a drain: the partition in which this node's drain is one too many. None: in none."""
    return _tightest([p for p in where if p.rank > p.allowed])


def never_reached(where: Sequence[Place]) -> bool:
    """Whether the limits leave room for every node of each partition, so that nobody has to be counted again."""
    return all(p.allowed >= p.nodes for p in where)


def words(place: Place, within_s: float) -> str:
    """ "limit: 2 of 2 nodes of partition gpu are drained by nvhc within 1d" """
    late = place.rank > place.allowed  # those behind this one are taken back too, as far as they do not stay
    told = f"limit: {min(place.others, place.allowed) if late else place.others} of {place.allowed} nodes of partition {place.partition}"
    return f"{told} are drained by nvhc within {duration(within_s)}" + (f", this one came as number {place.rank}" if late else "")


def _tightest(places: Sequence[Place]) -> Optional[Place]:
    return min(places, key=lambda p: (p.allowed - p.others, p.partition), default=None)
