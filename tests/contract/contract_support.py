"""The engines that the contract is held against.

A rig is a node with an engine: ``do`` makes things happen on it, ``read`` reads it as a
hook does. A live engine joins by one more rig that says in ``can`` what it can be made to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from slurm_nvhc.model.snapshot import GpuState, Snapshot
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.sense.client import read_snapshot
from slurm_nvhc.sense.sim.operations import OPERATIONS
from slurm_nvhc.sense.sim.world import World

PATIENT_S = 30.0  # for reads that are expected to end by themselves


class Rig(Protocol):
    def can(self, operation: str) -> bool: ...

    def do(self, operation: str, **arguments: Any) -> None: ...

    def read(self, deadline_s: float = PATIENT_S, **options: Any) -> Snapshot: ...


class SimRig:
    def __init__(self, path: str, preset: str = "hgx-h100-8") -> None:
        self.path = path
        self.engine = Engine("sim", "", path)
        World.preset(preset).save(path)

    def can(self, operation: str) -> bool:
        return operation in OPERATIONS

    def do(self, operation: str, **arguments: Any) -> None:
        with World.edit(self.path) as world:
            world.apply({"op": operation, **arguments})

    def read(self, deadline_s: float = PATIENT_S, **options: Any) -> Snapshot:
        return read_snapshot("n1", self.engine, deadline_s, **options)


def children() -> set[int]:
    """Processes that this one has started and that are still there, zombies included."""
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children", encoding="ascii") as file:
        return {int(pid) for pid in file.read().split()}


@pytest.fixture(params=["sim"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    before = children()
    yield SimRig(str(tmp_path / "world.json"))
    assert children() <= before, "a reader process was left behind"


def codes(snapshot: Snapshot) -> list[str]:
    return [trouble.code for trouble in snapshot.troubles]


def gpu(snapshot: Snapshot, index: int) -> GpuState:
    """By NVML index."""
    assert snapshot.gpus is not None
    return next(g for g in snapshot.gpus.values() if g.identity.nvml_index == index)
