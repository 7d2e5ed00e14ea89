"""What a healthy or faulty node says through the reader."""

from __future__ import annotations

import pytest
from contract_support import PATIENT_S, Rig, codes, gpu

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.sense.memory import ensure_watch
from slurm_nvhc.sense.values import sentinel


def test_a_healthy_node_is_whole_and_without_trouble(rig: Rig) -> None:
    s = rig.read()
    assert s.troubles == ()
    assert s.gpus is not None
    assert len(s.gpus) == 8
    assert "" not in (s.engine, s.driver)
    if rig.kind != "live":  # an engine on injected NVML has no cards on this machine's bus
        assert s.pci_gpus is not None
        assert {p.pci for p in s.pci_gpus} == {g.identity.pci for g in s.gpus.values()}
        assert s.events_known
    if rig.kind == "sim":
        assert s.uptime_s() == 864_000
        assert s.driver_loaded_ns is not None


def test_identity_is_a_table(rig: Rig) -> None:
    rig.do("identify", gpu="g6", minor=0, dcgm_id=3)
    rig.do("identify", gpu="g0", minor=6)
    s = rig.read()
    assert s.gpus is not None
    for uuid, state in s.gpus.items():
        row = state.identity
        assert row.uuid == uuid
        assert None not in (row.minor, row.nvml_index, row.dcgm_id, row.mig)
        assert "" not in (row.pci, row.serial, row.model, row.vbios)
        assert row.pci == row.pci.lower()
    row = gpu(s, 6).identity
    assert (row.minor, row.nvml_index, row.dcgm_id) == (0, 6, 3)


def test_every_field_of_the_catalogue_is_read(rig: Rig) -> None:
    s = rig.read()
    assert s.gpus is not None
    for state in s.gpus.values():
        assert set(state.readings) == {f.name for f in cat.ALL if f.scope == cat.GPU and f.live}
        assert sorted(state.links) == list(range(18))
        for link in state.links.values():
            assert set(link) == {f.name for f in cat.ALL if f.scope == cat.LINK}
            assert link["nvlink_state"] == "up"
        for name, value in state.readings.items():
            assert isinstance(value, (str, NoData) if cat.BY_NAME[name].unit == cat.WORD else (int, float, NoData)), name
            assert sentinel(value) is None
    # a field that the board does not have is no zero
    for name in ("retired_pages_dbe", "nvlink5_rx_bytes", "nvlink5_effective_ber"):
        value = gpu(s, 0).readings[name]
        assert isinstance(value, NoData)
        assert value.kind == rd.NOT_SUPPORTED
    row = gpu(s, 0).identity
    assert (gpu(s, 0).readings["vbios"], gpu(s, 0).readings["mig_mode"]) == (row.vbios, int(row.mig or 0))


def test_only_the_fields_asked_for(rig: Rig) -> None:
    state = gpu(rig.read(fields=["pcie_replay", "nvlink_replay"]), 0)
    assert set(state.readings) == {"pcie_replay"}
    assert set(state.links[0]) == {"nvlink_replay"}


def test_every_counter_can_be_told_from_every_other(rig: Rig) -> None:
    of_gpus = [f for f in cat.ALL if f.kind == cat.COUNTER and f.scope in (cat.GPU, cat.LINK)]
    counters = [f for f in of_gpus if not cat.is_nvlink5(f)]
    for number, field in enumerate(counters):
        rig.do("set", target=f"g5.link7.{field.name}" if field.scope == cat.LINK else f"g5.{field.name}", value=1000 + number)
    s = rig.read()
    for number, field in enumerate(counters):
        readings = gpu(s, 5).links[7] if field.scope == cat.LINK else gpu(s, 5).readings
        assert readings[field.name] == 1000 + number
    assert gpu(s, 5).links[8]["nvlink_replay"] == 0
    assert gpu(s, 4).readings["pcie_replay"] == 0


def test_a_board_with_nvlink_5_has_counters_of_its_own(rig: Rig) -> None:
    of_gpu = [f.name for f in cat.ALL if cat.is_nvlink5(f) and f.scope == cat.GPU]
    of_links = [f.name for f in cat.ALL if cat.is_nvlink5(f) and f.scope == cat.LINK]
    rates = {"nvlink5_symbol_ber": 3e-9, "nvlink5_effective_ber": 0.0}
    rig.do("identify", gpu="g5", model="NVIDIA B200")
    values: dict[str, float] = {name: rates.get(name, 1000 + n) for n, name in enumerate(of_gpu)}
    rig.do_all({"op": "set", "target": f"g5.{name}", "value": value} for name, value in values.items())
    rig.do_all({"op": "set", "target": f"g5.link*.{name}", "value": n} for n, name in enumerate(of_links))
    rig.do("set", target="g5.link7.nvlink5_link_down", value=77)
    s = rig.read()
    assert s.troubles == ()
    assert {name: gpu(s, 5).readings[name] for name in of_gpu} == values
    assert {name: gpu(s, 5).links[3][name] for name in of_links} == {name: n for n, name in enumerate(of_links)}
    assert gpu(s, 5).links[7]["nvlink5_link_down"] == 77
    for value in (gpu(s, 4).readings["nvlink5_rx_bytes"], gpu(s, 4).links[7]["nvlink5_link_down"]):
        assert isinstance(value, NoData)
        assert value.kind == rd.NOT_SUPPORTED


def test_each_item_of_the_fabrics_health_by_itself(rig: Rig) -> None:
    healthy = {name: gpu(rig.read(), 2).readings[name] for name in (f.name for f in cat.ALL if f.bits is not None)}
    rig.do("set", target="g2.fabric_route_unhealthy", value=1)
    rig.do("set", target="g2.fabric_configuration", value="too few NVLinks")
    s = rig.read()
    found = {name: gpu(s, 2).readings[name] for name in healthy}
    assert found == {**healthy, "fabric_route_unhealthy": 1, "fabric_configuration": 5}
    assert {name: gpu(s, 3).readings[name] for name in healthy} == healthy


@pytest.mark.parametrize("kind", rd.NO_DATA_KINDS)
def test_each_kind_of_no_data_arrives_as_itself(rig: Rig, kind: str) -> None:
    rig.do("set", target="g2.pcie_replay", value=kind)
    rig.do("set", target="g2.link3.replay", value=kind)
    s = rig.read()
    assert s.troubles == ()
    for value in (gpu(s, 2).readings["pcie_replay"], gpu(s, 2).links[3]["nvlink_replay"]):
        assert isinstance(value, NoData)
        assert value.kind == kind


def test_a_storm_is_seen_on_its_link_and_in_the_total(rig: Rig) -> None:
    before = rig.read()
    rig.do("storm", link="g3.link11", counter="replay", amount=21200, seconds=2460)
    after = rig.read()
    if rig.kind == "sim":
        assert (after.wall_ns - before.wall_ns, after.boot_ns - before.boot_ns) == (2460 * 10**9, 2460 * 10**9)
    assert gpu(after, 3).links[11]["nvlink_replay"] == 21200
    assert gpu(after, 3).readings["nvlink_replay_total"] == 21200
    assert gpu(after, 3).links[10]["nvlink_replay"] == 0


def test_link_states(rig: Rig) -> None:
    for number, state in enumerate(cat.LINK_STATES):
        rig.do("set", target=f"g1.link{number}.state", value=state)
    links = gpu(rig.read(), 1).links
    for number, state in enumerate(cat.LINK_STATES):
        if state == "not_supported" and rig.kind != "sim":
            assert number not in links  # that is how DCGM says that the board has no such link
        else:
            assert links[number]["nvlink_state"] == state


def test_waiting_lets_time_pass_on_the_node(rig: Rig) -> None:
    rig.do("set", target="g3.link16.state", value="down")
    rig.do("schedule", at_s=60, change={"op": "set", "target": "g3.link16.state", "value": "up"})
    first = rig.read()
    second = rig.read(wait_s=61)
    assert gpu(first, 3).links[16]["nvlink_state"] == "down"
    assert gpu(second, 3).links[16]["nvlink_state"] == "up"
    assert second.wall_ns - first.wall_ns == 61 * 10**9
    assert rig.read().wall_ns == second.wall_ns


def test_a_reboot_is_another_boot(rig: Rig) -> None:
    before = rig.read()
    rig.do("reboot")
    after = rig.read()
    assert after.boot_id != before.boot_id
    if rig.kind != "sim":
        return
    assert after.boot_ns == 0
    assert after.driver_loaded_ns is not None
    assert before.driver_loaded_ns is not None
    assert after.driver_loaded_ns > before.driver_loaded_ns


def test_a_lost_gpu_that_the_engine_still_lists(rig: Rig) -> None:
    row = gpu(rig.read(), 3).identity
    # A lost GPU does not answer, not even with its name: the watch makes the engine remember it.
    assert ensure_watch("n1", rig.engine, PATIENT_S).watched
    rig.do("lose", gpu="g3", engine_lists=True)
    s = rig.read()
    assert s.gpus is not None
    state = s.gpus[row.uuid]
    assert state.status == "lost"
    assert all(isinstance(v, NoData) for v in state.readings.values())
    assert all(isinstance(v, NoData) for link in state.links.values() for v in link.values())
    assert codes(s) == []  # a lost GPU is no trouble of ours
    rig.do("restore", gpu="g3")
    assert gpu(rig.read(), 3).status == "ok"


def test_a_lost_gpu_that_is_listed_no_more(rig: Rig) -> None:
    address = gpu(rig.read(), 3).identity.pci
    rig.do("lose", gpu="g3", engine_lists=False)
    s = rig.read()
    assert s.gpus is not None
    assert len(s.gpus) == 7
    assert s.pci_gpus is not None
    assert [p.pci for p in s.pci_gpus if not p.responds] == [address]
    rig.do("lose", gpu="g3", on_pci=False)
    s = rig.read()
    assert s.pci_gpus is not None
    assert address not in [p.pci for p in s.pci_gpus]
    assert codes(s) == []
    rig.do("restore", gpu="g3")
    assert gpu(rig.read(), 3).status == "ok"


def test_a_swapped_card(rig: Rig) -> None:
    before = gpu(rig.read(), 3).identity
    rig.do("swap", gpu="g3", uuid="GPU-00000000-0000-0000-0000-000000000001", serial="1")
    after = gpu(rig.read(), 3).identity
    assert after.pci == before.pci
    assert (after.uuid, after.serial) != (before.uuid, before.serial)
