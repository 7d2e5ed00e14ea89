"""Switches, their ports, wiring, RDMA ports, the node itself and leftovers: the same from every engine."""

from __future__ import annotations

import pytest
from contract_support import Rig, codes, gpu

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import entity
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.model.snapshot import Snapshot

FIRST = "switch:0000:c1:00.0"


@pytest.fixture(autouse=True)
def _not_live(rig: Rig) -> None:
    if rig.kind == "live":
        pytest.skip("a live engine has the parts of its own node")


def words(snapshot: Snapshot) -> dict[str, dict[str, Reading]]:
    """Without the details of no data, which each source words as it likes."""
    return {
        name: {field: value._replace(detail="") if isinstance(value, NoData) else value for field, value in readings.items()}
        for name, readings in snapshot.parts.items()
    }


def test_every_part_has_every_field_of_its_kind(rig: Rig) -> None:
    s = rig.read()
    assert codes(s) == []
    scopes = [entity.scope(name) for name in s.parts]
    assert {scope: scopes.count(scope) for scope in cat.PART_SCOPES} == {"switch": 4, "switch_port": 144, "rdma": 8, "node": 1}
    for name, readings in s.parts.items():
        assert set(readings) == {f.name for f in cat.ALL if f.scope == entity.scope(name)}
        assert not [v for v in readings.values() if isinstance(v, NoData)]


def test_every_counter_of_a_part_can_be_told_from_every_other(rig: Rig) -> None:
    places = {cat.SWITCH_PORT: "switch2.port7", cat.RDMA: "rdma3.port1"}
    counters = [f for f in cat.ALL if f.kind == cat.COUNTER and f.scope in places]
    values = {f.name: 4 * (50 + n) if f.unit == "bytes" else n % 12 + 1 for n, f in enumerate(counters)}  # below every ceiling
    rig.do_all([{"op": "set", "target": f"{places[f.scope]}.{f.name}", "value": values[f.name]} for f in counters])
    s = rig.read()
    for field in counters:
        place = "switch:0000:c3:00.0/port7" if field.scope == cat.SWITCH_PORT else "rdma:mlx5_3/port1"
        assert s.parts[place][field.name] == values[field.name], field.name
    assert s.parts["switch:0000:c3:00.0/port8"]["port_fatal"] == 0
    assert s.parts["rdma:mlx5_2/port1"]["rdma_link_downed"] == 0


def test_states_and_gauges(rig: Rig) -> None:
    rig.do_all(
        [
            {"op": "set", "target": "switch0.temp", "value": 88},
            {"op": "set", "target": "switch0.reset_required", "value": 1},
            {"op": "set", "target": "switch0.port5.state", "value": "off"},
            {"op": "set", "target": "rdma0.port1.state", "value": "down"},
            {"op": "set", "target": "rdma0.port1.rate", "value": 200},
            {"op": "set", "target": "node.fabric_manager", "value": "not_found"},
        ]
    )
    parts = words(rig.read())
    assert (parts[FIRST]["switch_temp"], parts[FIRST]["switch_reset_required"]) == (88, 1)
    assert parts[f"{FIRST}/port5"]["port_state"] == 0
    assert (parts["rdma:mlx5_0/port1"]["rdma_state"], parts["rdma:mlx5_0/port1"]["rdma_rate"]) == (1, 200)
    assert parts["node"]["fabric_manager"] == NoData("not_found")


def test_wires_have_two_ends(rig: Rig) -> None:
    s = rig.read()
    assert s.gpus is not None
    ends = {name: str(r["port_remote"]) for name, r in s.parts.items() if "/port" in name and name.startswith("switch:")}
    for uuid, state in s.gpus.items():
        for number, readings in state.links.items():
            assert ends[str(readings["nvlink_remote"])] == entity.link(uuid, number)
    assert len(set(ends.values())) == 144


def test_parts_that_vanish(rig: Rig) -> None:
    rig.do("part", part="switch1", shows="absent")
    rig.do("part", part="rdma3.port1", shows="absent")
    s = rig.read()
    assert codes(s) == []
    assert "rdma:mlx5_3/port1" not in s.parts
    assert not [name for name in s.parts if name.startswith("switch:0000:c2:")]
    assert f"{FIRST}/port5" in s.parts


def test_processes_that_compute(rig: Rig) -> None:
    rig.do("set", target="g3.gpu_processes", value=2)
    s = rig.read()
    assert [gpu(s, n).readings["gpu_processes"] for n in range(8)] == [0, 0, 0, 2, 0, 0, 0, 0]


def test_an_engine_that_knows_nothing_leaves_the_kernels_parts(rig: Rig) -> None:
    for behaviour in ("empty", "absent"):
        rig.do("engine", behaviour=behaviour)
        s = rig.read()
        assert {entity.scope(name) for name in s.parts} == {"node", "rdma"}


def test_only_the_fields_asked_for(rig: Rig) -> None:
    s = rig.read(fields=["switch_temp", "rdma_state"])
    assert s.parts[FIRST] == {"switch_temp": 42}
    assert s.parts["rdma:mlx5_0/port1"] == {"rdma_state": 4}
    assert s.parts["node"] == {}
