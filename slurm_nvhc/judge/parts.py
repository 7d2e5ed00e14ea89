"""The node's parts as they are judged: those that were seen, and those that should have been. Pure."""

from __future__ import annotations

from typing import Final, Mapping

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.judge.context import Input
from slurm_nvhc.model import entity
from slurm_nvhc.model.reading import Reading

# What a part that is gone still says of itself. Its other readings are not there.
_ABSENT: Final[Mapping[str, Mapping[str, Reading]]] = {cat.SWITCH: {"switch_state": 0}, cat.RDMA: {"rdma_state": 0}}


def with_absent(inp: Input) -> Mapping[str, Mapping[str, Reading]]:
    """The snapshot's parts, and as ``absent`` each switch and RDMA port that was there at the window's start or was learned.

    Only where the list was had that it is missing from: RDMA ports when the kernel was read at all (it always tells of the
    node), switches when the engine still lists another. An engine that knows no switch any more lacks its library, or was
    upgraded; that is no fault of four switches. Ports of a switch that is gone are not judged beside it.
    """
    seen = inp.snapshot.parts
    listed = {entity.scope(name) for name in seen}
    known = (*(inp.before.parts if inp.before is not None else ()), *inp.learned)
    gone: dict[str, Mapping[str, Reading]] = {}
    for name in known:
        scope = entity.scope(name)
        if name in seen or scope not in _ABSENT:
            continue
        if (cat.NODE if scope == cat.RDMA else cat.SWITCH) in listed:
            gone[name] = _ABSENT[scope]
    return {**seen, **dict(sorted(gone.items()))}
