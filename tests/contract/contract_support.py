"""The engines that the contract is held against.

A rig is a node with an engine: ``do`` makes things happen on it, ``read`` reads it as a
hook does. A live engine joins by one more rig, whose ``do`` skips the test (pytest.skip)
for what it can not be made to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from slurm_nvhc.model.snapshot import GpuState, Snapshot
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.sense.client import read_snapshot
from slurm_nvhc.sense.sim.world import World

PATIENT_S = 30.0  # for reads that are expected to end by themselves


class Rig(Protocol):
    engine: Engine

    def do(self, operation: str, **arguments: Any) -> None: ...

    def do_all(self, operations: Iterable[dict[str, Any]]) -> None: ...

    def read(self, deadline_s: float = PATIENT_S, **options: Any) -> Snapshot: ...


class SimRig:
    def __init__(self, path: str) -> None:
        self.engine = Engine("sim", "", path)
        World.preset("hgx-h100-8").save(path)

    def do(self, operation: str, **arguments: Any) -> None:
        self.do_all([{"op": operation, **arguments}])

    def do_all(self, operations: Iterable[dict[str, Any]]) -> None:
        with World.edit(self.engine.world) as world:
            for operation in operations:
                world.apply(operation)

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
