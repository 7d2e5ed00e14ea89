"""NVSwitches and their ports through the stand-in bindings: live or watched, partly answered, or not there at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import patient
import pytest
from stub_node import StubNode

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.sense.dcgm import switches
from slurm_nvhc.sense.dcgm.live import SWITCH, Sample, Table
from slurm_nvhc.sense.memory import ensure_watch, remove_watch

FIRST = "switch:0000:c1:00.0"
OF_SWITCHES = [f.name for f in cat.ALL if f.scope in (cat.SWITCH, cat.SWITCH_PORT)]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubNode:
    return StubNode(str(tmp_path), monkeypatch)


def switch_parts(snapshot: Snapshot) -> dict[str, dict[str, Reading]]:
    return {name: dict(readings) for name, readings in snapshot.parts.items() if name.startswith("switch:")}


def kind_of(value: Reading) -> str:
    assert isinstance(value, NoData)
    return value.kind


def test_everything_of_switches_and_ports_in_few_calls(node: StubNode) -> None:
    s = node.read()
    parts = switch_parts(s)
    assert s.troubles == ()
    assert len(parts) == 4 + 144  # HGX H100: 8 GPUs with 18 links
    assert set(parts[FIRST]) == {f.name for f in cat.ALL if f.scope == cat.SWITCH}
    assert set(parts[f"{FIRST}/port39"]) == {f.name for f in cat.ALL if f.scope == cat.SWITCH_PORT}
    assert not [v for readings in parts.values() for v in readings.values() if isinstance(v, NoData)]
    # address of the first switch; two switches, then the others; two ports, then 64, 64 and 14
    live = node.kept()["calls"]["live"]
    assert [n // 13 for n in live[-4:]] == [2, 64, 64, 14]
    node.read(fields=["pcie_replay"])
    assert len(node.kept()["calls"]["live"]) == 2  # driver and GPUs: without a field of theirs no switch is asked


def test_what_a_switch_says_arrives(node: StubNode) -> None:
    node.do("set", target="switch0.temp", value=87)
    node.do("set", target="switch0.reset_required", value=1)
    node.do("set", target="switch0.port5.state", value="error")
    node.do("add", target="switch0.port5.fatal", amount=3)
    parts = switch_parts(node.read())
    assert (parts[FIRST]["switch_temp"], parts[FIRST]["switch_reset_required"], parts[FIRST]["switch_state"]) == (87, 1, 1)
    assert (parts[f"{FIRST}/port5"]["port_state"], parts[f"{FIRST}/port5"]["port_fatal"]) == (3, 3)
    assert (parts[f"{FIRST}/port6"]["port_state"], parts[f"{FIRST}/port6"]["port_fatal"]) == (2, 0)


def test_both_ends_of_a_wire_name_each_other(node: StubNode) -> None:
    node.do("set", target="switch0.port5.remote", value="switch3.port2")
    s = node.read()
    assert s.gpus is not None
    uuids = {g.identity.nvml_index: u for u, g in s.gpus.items()}
    # 5 links of each GPU lead to the first switch, ports in the order of the GPUs
    assert s.parts[f"{FIRST}/port11"]["port_remote"] == f"{uuids[2]}/link1"
    assert s.gpus[uuids[2]].links[1]["nvlink_remote"] == f"{FIRST}/port11"
    assert s.parts[f"{FIRST}/port5"]["port_remote"] == "switch:0000:c4:00.0/port2"
    assert isinstance(s.gpus[uuids[1]].links[0]["nvlink_remote"], NoData)  # nobody claims it now


def test_fields_that_are_not_read_live_are_taken_from_what_is_watched(node: StubNode) -> None:
    node.do("set", target="switch1.temp", value=61)
    node.stub(cached_switches=True)
    s = node.read()
    parts = switch_parts(s)
    assert s.troubles == ()
    assert len(parts) == 148
    assert parts["switch:0000:c2:00.0"]["switch_temp"] == 61


def test_what_was_watched_long_ago_is_stale_but_wires_are_not(node: StubNode) -> None:
    node.stub(cached_switches=True, old_s=600)
    parts = switch_parts(node.read(fields=OF_SWITCHES))
    assert kind_of(parts[FIRST]["switch_temp"]) == rd.STALE
    assert kind_of(parts[f"{FIRST}/port5"]["port_fatal"]) == rd.STALE
    assert parts[f"{FIRST}/port5"]["port_remote"]


def test_where_only_watched_fields_are_fetched_the_watch_has_them_fetched(node: StubNode) -> None:
    node.stub(unread_switches=True)
    node.do("set", target="switch1.port3.non_fatal", value=6)
    assert switch_parts(node.read()) == {}
    watched = ensure_watch("n1", node.engine, patient.READ_S)
    assert (watched.watched, watched.made) == (True, True)
    parts = switch_parts(node.read())
    assert len(parts) == 148
    assert parts["switch:0000:c2:00.0/port3"]["port_non_fatal"] == 6
    groups = {g["name"]: len(g["entities"]) for g in node.kept()["groups"].values()}
    assert groups == {
        "nvhc-watch": 8, "nvhc-switches-switches-0": 4,
        "nvhc-switches-ports-0": 64, "nvhc-switches-ports-64": 64, "nvhc-switches-ports-128": 16,
    }  # fmt: skip
    assert ensure_watch("n1", node.engine, patient.READ_S).made is False  # never made anew while it is whole
    assert remove_watch("n1", node.engine, patient.READ_S).known
    kept = node.kept()
    assert (kept["groups"], kept["field_groups"]) == ({}, {})


def test_where_switches_are_read_live_nothing_is_watched(node: StubNode) -> None:
    ensure_watch("n1", node.engine, patient.READ_S)
    assert [g["name"] for g in node.kept()["groups"].values()] == ["nvhc-watch"]


def test_a_switch_that_came_later_is_watched_too(node: StubNode) -> None:
    node.stub(unread_switches=True)
    node.do("part", part="switch3", shows="absent")
    assert ensure_watch("n1", node.engine, patient.READ_S).made
    node.do("part", part="switch3", shows="present")
    assert len(switch_parts(node.read())) < 148
    assert ensure_watch("n1", node.engine, patient.READ_S).made
    assert len(switch_parts(node.read())) == 148


def test_a_watch_of_switches_that_can_not_be_made_costs_the_gpus_nothing(node: StubNode) -> None:
    node.stub(unread_switches=True, refuse_switch_groups=True)
    watch = ensure_watch("n1", node.engine, patient.READ_S)
    assert (watch.watched, [t.part for t in watch.troubles]) == (True, ["engine"])
    assert [g["name"] for g in node.kept()["groups"].values()] == ["nvhc-watch"]
    assert switch_parts(node.read()) == {}


def test_nothing_read_live_and_nothing_watched_is_no_switch_and_no_trouble(node: StubNode) -> None:
    node.stub(addressless=[0, 1, 2, 3])
    s = node.read()
    assert (switch_parts(s), s.troubles) == ({}, ())


def test_a_switch_without_an_address_is_left_out_and_said(node: StubNode) -> None:
    node.stub(addressless=[2])
    s = node.read()
    assert {name for name in switch_parts(s) if "/" not in name} == {f"switch:0000:c{i}:00.0" for i in (1, 2, 4)}
    assert [t.code for t in s.troubles] == ["MON-ENGINE-LIES"]
    assert "[2]" in s.troubles[0].detail
    assert not any(name.startswith("switch:0000:c3") for name in s.parts)


@pytest.mark.parametrize("status", [-6, -33, -3])
def test_an_engine_without_the_switches_module_has_none(node: StubNode, status: int) -> None:
    node.stub(no_switches=status)
    s = node.read()
    assert (switch_parts(s), s.troubles) == ({}, ())
    assert len(s.gpus or {}) == 8


def test_one_bad_field_costs_no_other_and_no_hundred_calls(node: StubNode) -> None:
    node.stub(refuse=[859, 785])
    parts = switch_parts(node.read(fields=OF_SWITCHES))
    for name, readings in parts.items():
        bad = "port_recovery" if "/port" in name else "switch_temp_slowdown"
        assert {n for n, v in readings.items() if isinstance(v, NoData)} == {bad}, name
        assert kind_of(readings[bad]) == rd.ERROR
    assert len(node.kept()["calls"]["live"]) < 40


def test_a_field_that_this_dcgm_does_not_know(node: StubNode) -> None:
    node.stub(unknown=[1524])
    parts = switch_parts(node.read())
    assert kind_of(parts[FIRST]["switch_firmware"]) == rd.NOT_SUPPORTED


def test_an_engine_that_refuses_all_of_it_is_not_asked_without_end(node: StubNode) -> None:
    node.stub(refuse=[*cat.BY_ID])
    parts = switch_parts(node.read(fields=OF_SWITCHES))
    assert all(isinstance(v, NoData) for r in parts.values() for n, v in r.items() if n not in ("switch_state", "port_remote"))
    assert len(node.kept()["calls"]["live"]) < 130


def test_a_hung_listing_of_switches_keeps_the_gpus(node: StubNode) -> None:
    node.stub(hang="dcgmGetEntityGroupEntities")
    s = node.read(3.0)
    assert [t.code for t in s.troubles] == ["MON-ENGINE-HUNG"]
    assert len(s.gpus or {}) == 8


def test_before_dcgm_3_these_ids_mean_other_things(node: StubNode) -> None:
    from slurm_nvhc.sense.sim.world import World

    with World.edit(node.world) as world:
        world.engine_version = "2.4.8"
    s = node.read()
    assert (switch_parts(s), s.troubles) == ({}, ())


def test_a_board_without_switches_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = StubNode(str(tmp_path), monkeypatch, "hgx-b200-8").read()
    assert (switch_parts(s), s.troubles) == ({}, ())


# -- addresses and states, one by one --------------------------------------------------


def table(**values: Any) -> Table:
    """Readings of switch 0: PCI ids by their last digit, u6="…"."""
    out = Table()
    for name, value in values.items():
        out[(SWITCH, 0, 860 + int(name[1:]))] = Sample(value, 1, 0)
    return out


@pytest.mark.parametrize(
    ("numbers", "address"),
    [
        ((0, 0xC1, 0, 0), "0000:c1:00.0"),
        ((1, 0x0A, 31, 7), "0001:0a:1f.7"),
        ((0x10000, 1, 0, 0), "10000:01:00.0"),
        ((0, 0, 0, 0), ""),  # nobody sits there: an answer of zeros is none
        ((-1, 1, 0, 0), ""),
        ((0, 256, 0, 0), ""),
        ((0, 1, 32, 0), ""),
        ((0, 1, 0, 8), ""),
        ((0, 0x7FFFFFFFFFFFFFF0, 0, 0), ""),
        ((0, NoData(rd.BLANK), 0, 0), ""),
        ((0, "c1", 0, 0), ""),
    ],
)
def test_an_address_is_whole_and_possible_or_none(numbers: tuple[Any, ...], address: str) -> None:
    t = table(**{f"u{6 + i}": n for i, n in enumerate(numbers)})
    assert switches.address(t, (SWITCH, 0), switches.PCI) == address


def test_entity_ids_of_ports() -> None:
    assert switches.port_id(0, 5) == 0x00000503
    assert switches.port_id(3, 63) == 0x03003F03


@pytest.mark.parametrize(("raw", "reads"), [(-1, rd.BLANK), (-3, rd.ERROR)])
def test_a_state_that_nobody_knows_is_no_state(node: StubNode, raw: int, reads: str) -> None:
    from slurm_nvhc.sense.sim.world import World

    with World.edit(node.world) as world:
        world.parts[f"{FIRST}/port5"].readings["port_state"] = raw
    parts = switch_parts(node.read(fields=["port_state"]))
    assert kind_of(parts[f"{FIRST}/port5"]["port_state"]) == reads
    assert parts[f"{FIRST}/port6"]["port_state"] == 2
