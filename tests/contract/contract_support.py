"""The engines that the contract is held against.

A rig is a node with an engine: ``do`` makes things happen on it, ``read`` reads it as a
hook does. What a rig can not be made to do skips the test, by name.

sim:  the simulated node, always
stub: the dcgm backend over the stand-in bindings of tests/engines, on the same simulated node
live: a real engine, when NVHC_DCGM_ADDRESS is set (see docs/dcgm.md)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from slurm_nvhc.model.snapshot import GpuState, Snapshot
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.sense.client import read_snapshot
from slurm_nvhc.sense.sim.world import World

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import patient
from live_engine import LiveEngine
from stub_node import NS, StubNode

PATIENT_S = patient.READ_S  # for reads that are expected to end by themselves
# Read now: no test sees the machine's own settings (tests/conftest.py).
LIVE = [os.environ.get(f"NVHC_DCGM_{name}", "") for name in ("ADDRESS", "CTL", "BINDINGS")]


class Rig(Protocol):
    """kind: sim, stub or live. slack_ns: how far the node's clock may be from what the test made of it."""

    kind: str
    engine: Engine
    slack_ns: int

    def do(self, operation: str, **arguments: Any) -> None: ...

    def do_all(self, operations: Iterable[dict[str, Any]]) -> None: ...

    def read(self, deadline_s: float = PATIENT_S, **options: Any) -> Snapshot: ...


class SimRig:
    kind = "sim"
    slack_ns = 0

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


class StubRig:
    """The same node behind DCGM's calls. Its host parts are files, its clock is this machine's."""

    kind = "stub"
    slack_ns = 120 * NS
    # C types can not say these; the parts of the host do not fail with the engine; a process is ended by SIGKILL.
    _NEVER = frozenset({"huge", "nan", "wrong_types", "garbage", "duplicate", "frozen", "stale"})

    def __init__(self, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._node = StubNode(folder, monkeypatch)
        self.engine = self._node.engine

    def do(self, operation: str, **arguments: Any) -> None:
        self.do_all([{"op": operation, **arguments}])

    def do_all(self, operations: Iterable[dict[str, Any]]) -> None:
        with World.edit(self._node.world) as world:
            for operation in operations:
                self._skip(operation)
                if (operation["op"], operation.get("behaviour")) == ("diag_plan", "running"):
                    self._node.somebody_runs_one()
                else:
                    world.apply(operation)
        self._node.refresh()

    def read(self, deadline_s: float = PATIENT_S, **options: Any) -> Snapshot:
        return self._node.read(deadline_s, **options)

    def end(self) -> None:
        self._node.end_diagnostic()

    def _skip(self, operation: dict[str, Any]) -> None:
        name = operation["op"]
        no = name == "schedule" or operation.get("behaviour") == "stubborn" or (name == "unreadable" and operation["part"] != "kernel_log")
        if name == "engine":
            late = operation.get("after", "pci") not in ("pci", "engine")
            no = late or operation["behaviour"] == "slow" or operation.get("kind") in self._NEVER
        if no:
            pytest.skip(f"the stand-in can not be made to do {operation}"[:120])


def children() -> set[int]:
    """Processes that this one has started and that are still there, zombies included."""
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children", encoding="ascii") as file:
        return {int(pid) for pid in file.read().split()}


@pytest.fixture(params=["sim", "stub", *(["live"] if LIVE[0] else [])])
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    before = children()
    if request.param == "sim":
        yield SimRig(str(tmp_path / "world.json"))
    elif request.param == "stub":
        stub = StubRig(str(tmp_path), monkeypatch)
        yield stub
        stub.end()
    else:
        with LiveEngine(*LIVE) as live:
            yield live
    assert children() <= before, "a reader process was left behind"


def codes(snapshot: Snapshot) -> list[str]:
    return [trouble.code for trouble in snapshot.troubles]


def gpu(snapshot: Snapshot, index: int) -> GpuState:
    """By NVML index."""
    assert snapshot.gpus is not None
    return next(g for g in snapshot.gpus.values() if g.identity.nvml_index == index)
