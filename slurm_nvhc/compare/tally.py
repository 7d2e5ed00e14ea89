"""Growth since the last look, summed up by versions: what an upgrade did to the error rates is seen here. Pure."""

from __future__ import annotations

from typing import Iterable

from slurm_nvhc.model import change as ch
from slurm_nvhc.model import entity
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.snapshot import GpuState, Snapshot
from slurm_nvhc.model.tally import Tally, Versions


def tally(changes: Iterable[Change], snapshot: Snapshot) -> tuple[Tally, ...]:
    """One Tally per counter and versions. Exact growth only: a lower bound after a reset holds what was counted
    while links trained, and an unknown one is no growth of zero. Time in which nothing grew counts as well.

    The driver changes with a reload only, which clears the counters, so no exact growth spans two versions of it.
    """
    sums: dict[tuple[Versions, str], list[float]] = {}
    versions: dict[str, Versions] = {}
    for change in changes:
        if change.kind != ch.EXACT or change.amount is None or change.seconds <= 0:
            continue
        part = change.entity.partition("/")[0]
        if part not in versions:
            versions[part] = _versions(change.entity, snapshot)
        total = sums.setdefault((versions[part], change.field), [0.0, 0.0])
        total[0] += change.amount
        total[1] += change.seconds / 3600
    return tuple(Tally(key, field, amount, hours) for (key, field), (amount, hours) in sums.items())


def _versions(place: str, snapshot: Snapshot) -> Versions:
    node = snapshot.parts.get(entity.NODE, {})
    manager = node.get("fabric_manager")
    gpu = (snapshot.gpus or {}).get(entity.gpu_of(place))
    return Versions(
        model=gpu.identity.model if gpu is not None else entity.scope(place),
        driver=snapshot.driver,
        vbios=_vbios(gpu) if gpu is not None else "",
        fabric_manager=manager if isinstance(manager, str) else "",
    )


def _vbios(gpu: GpuState) -> str:
    read = gpu.readings.get("vbios")
    return read if isinstance(read, str) else gpu.identity.vbios
