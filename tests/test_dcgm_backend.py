"""The dcgm backend over stand-in bindings: a captured engine, and every way in which an engine answers less than asked."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import patient
import pytest
from stub_node import BINDINGS, CAPTURE, StubNode

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.model.snapshot import GpuIdentity, GpuState, Snapshot
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.sense.client import read_snapshot
from slurm_nvhc.sense.dcgm import identity
from slurm_nvhc.sense.reader import serve as serving


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubNode:
    return StubNode(str(tmp_path), monkeypatch)


def gpu(snapshot: Snapshot, index: int) -> GpuState:
    assert snapshot.gpus is not None
    return next(g for g in snapshot.gpus.values() if g.identity.nvml_index == index)


def codes(snapshot: Snapshot) -> list[str]:
    return [t.code for t in snapshot.troubles]


# -- a captured engine ------------------------------------------------------------


@pytest.fixture(scope="module")
def captured() -> Snapshot:
    return read_snapshot("n1", Engine("dcgm", f"unix://{CAPTURE}", bindings=(BINDINGS,)), patient.READ_S)


def test_the_captured_engines_identity_table(captured: Snapshot) -> None:
    assert (captured.engine, captured.driver, captured.source) == ("4.6.0", "575.57.08", "dcgm")
    assert [t for t in captured.troubles if t.part == "engine"] == []
    assert captured.gpus is not None
    assert len(captured.gpus) == 8
    for i in range(8):
        row = gpu(captured, i).identity
        assert row._replace(slot="") == GpuIdentity(
            uuid=f"GPU-abc0000{i}-1111-2222-3333-00000000000{i}",
            pci=f"0000:{0x1B + 0x10 * i:02x}:00.0",
            minor=i,
            nvml_index=i,
            dcgm_id=i,
            serial=f"165402300000{i}",
            model="NVIDIA H100 80GB HBM3",
            vbios="96.00.74.00.01",
            mig=False,
        )


def test_the_captured_engines_readings(captured: Snapshot) -> None:
    with open(CAPTURE, encoding="utf-8") as file:
        table = json.load(file)["fields"]
    for i in range(8):
        state = gpu(captured, i)
        assert state.status == "ok"
        assert set(state.readings) == {f.name for f in cat.ALL if f.scope == cat.GPU and f.live}
        for name, value in state.readings.items():
            field = cat.BY_NAME[name]
            if name == "gpu_processes" or field.sum_of:
                continue  # the kernel's to tell; made of what is read
            if field.bits is not None or cat.is_nvlink5(field):
                assert isinstance(value, NoData), name  # an empty mask, and no board for it
                assert value.kind == rd.NOT_SUPPORTED
                continue
            _, _, raw = table[str(field.dcgm_id)]
            raw = raw[i] if isinstance(raw, list) else raw
            if isinstance(raw, int) and raw > 2**62:
                assert isinstance(value, NoData)
                assert value.kind == {0: rd.BLANK, 2: rd.NOT_SUPPORTED}[raw & 0xF]
            else:
                assert value == raw
        assert sorted(state.links) == list(range(18))  # of the 36 that the structure has room for
        for link in state.links.values():
            assert {name for name, value in link.items() if isinstance(value, NoData)} == {
                "nvlink_remote",
                *(f.name for f in cat.ALL if f.scope == cat.LINK and cat.is_nvlink5(f)),
            }
            assert {f.name: link[f.name] for f in cat.ALL if f.link_ids} == {f.name: 0 for f in cat.ALL if f.link_ids}
            assert link["nvlink_state"] == "up"


# -- how it asks -------------------------------------------------------------------


def test_one_exchange_and_nothing_left_behind(node: StubNode) -> None:
    node.read()
    kept = node.kept()
    # driver; board fields and NVLink fields of all GPUs: no call per GPU or per field
    board = {i for f in cat.ALL if f.scope == cat.GPU and not cat.of_links(f) and f.live for i in [f.dcgm_id] if i} | set(identity.IDS)
    assert [n // 8 or n for n in kept["calls"]["live"]][:3] == [1, len(board), 76]
    assert (kept["groups"], kept["field_groups"]) == ({}, {})
    assert "persist" not in kept["calls"]


def test_the_librarys_own_end_is_not_waited_for(node: StubNode) -> None:
    """Disconnecting from a hung engine hangs: the reader leaves without it."""
    assert node.read().troubles == ()
    assert "disconnect" not in node.kept()["calls"]


def test_a_reader_stays_small(node: StubNode) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    s = node.read()
    assert len(s.gpus or {}) == 8
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert peak_kib < 80 * 1024 or peak_kib == before  # another test's child may have been larger


def test_only_what_is_asked_for_is_read(node: StubNode) -> None:
    state = gpu(node.read(fields=["pcie_replay", "nvlink_replay"]), 0)
    assert set(state.readings) == {"pcie_replay"}
    assert set(state.links[0]) == {"nvlink_replay"}
    state = gpu(node.read(fields=["nvlink_state"]), 0)
    assert state.readings == {}
    assert state.links[17] == {"nvlink_state": "up"}
    assert node.kept()["calls"]["live"][-1] == 8 * 8  # the identity, no counter


def test_events_and_profiling_fields_are_never_read_live(node: StubNode) -> None:
    from slurm_nvhc.sense.dcgm import live

    class Fields:
        @staticmethod
        def DcgmFieldGetById(number: int) -> object:
            return object()

    class Bindings:
        fields = Fields

    class Connection:
        bindings = Bindings

    assert live.known(Connection, [54, 230, 450, 1001, 1075, 1200, 54, 1523]) == [54, 1200, 1523]  # type: ignore[arg-type]


# -- fields that are not there -------------------------------------------------------


def test_ids_that_this_dcgm_does_not_know_are_not_asked_for(node: StubNode) -> None:
    node.read()
    known = live_calls(node)[1] // 8
    node.stub(unknown=[1523, 1423, 1424, 346])
    Path(node.world + ".engine").unlink()
    s = node.read()
    assert s.troubles == ()
    value = gpu(s, 0).readings["recovery_action"]
    assert isinstance(value, NoData)
    assert value.kind == rd.NOT_SUPPORTED
    assert gpu(s, 0).readings["pcie_replay"] == 0
    assert live_calls(node)[1] == 8 * (known - 4)


def test_ids_that_fail_a_whole_call_drop_out_one_by_one(node: StubNode) -> None:
    node.do("set", target="g5.pcie_replay", value=7)
    node.stub(refuse=[1523, 395, 487])
    s = node.read()
    assert s.troubles == ()
    for i in range(8):
        state = gpu(s, i)
        lacking = {name for name, value in state.readings.items() if isinstance(value, NoData) and value.kind == rd.ERROR}
        assert lacking == {"recovery_action", "row_remap_failure"}
        lost = [(n, name) for n, link in state.links.items() for name, v in link.items() if isinstance(v, NoData) and v.kind == rd.ERROR]
        assert lost == [(15, "nvlink_replay")]  # 487
    assert gpu(s, 5).readings["pcie_replay"] == 7


def test_a_gpu_that_fails_calls_does_not_cost_the_others_their_readings(node: StubNode) -> None:
    node.do("set", target="*.ecc_sbe_volatile", value=9)
    node.stub(refuse_gpus=[3])
    s = node.read(fields=["pcie_replay", "ecc_sbe_volatile", "gpu_temp"])
    assert all(isinstance(v, NoData) and v.kind == rd.ERROR for v in gpu(s, 3).readings.values())
    for i in (0, 2, 4, 7):
        assert gpu(s, i).readings["ecc_sbe_volatile"] == 9


def test_an_engine_that_refuses_everything_is_not_asked_without_end(node: StubNode) -> None:
    node.stub(refuse=[*cat.BY_ID])
    s = node.read(fields=[f.name for f in cat.ALL if f.scope in (cat.GPU, cat.LINK)])
    assert s.gpus is not None
    assert all(isinstance(v, NoData) for g in s.gpus.values() for n, v in g.readings.items() if n != "gpu_processes")
    assert len(node.kept()["calls"]["live"]) < 130


@pytest.mark.parametrize("kind", rd.NO_DATA_KINDS)
def test_each_kind_of_no_data(node: StubNode, kind: str) -> None:
    for target in ("g2.pcie_replay", "g2.power_usage", "g2.link3.replay"):
        node.do("set", target=target, value=kind)
    s = node.read()
    assert s.troubles == ()
    for value in (gpu(s, 2).readings["pcie_replay"], gpu(s, 2).readings["power_usage"], gpu(s, 2).links[3]["nvlink_replay"]):
        assert isinstance(value, NoData)
        assert value.kind == kind
    assert gpu(s, 3).readings["pcie_replay"] == 0


# -- links ------------------------------------------------------------------------


def test_counters_of_boards_that_have_them_on_link_entities_only(node: StubNode) -> None:
    node.do("set", target="g3.link11.replay", value=41)
    node.do("links", gpu="g4", count=20)  # beyond the eighteenth there are no per-link ids at all
    node.do("set", target="g4.link19.crc_flit", value=5)
    node.stub(link_entities=True)
    s = node.read()
    assert gpu(s, 3).links[11]["nvlink_replay"] == 41
    assert gpu(s, 3).links[10]["nvlink_replay"] == 0
    assert gpu(s, 4).links[19]["nvlink_crc_flit"] == 5
    node.stub(link_entities=True, unknown=[1525, 1526, 1527, 1528])  # a DCGM before 4.6
    value = gpu(node.read(), 3).links[11]["nvlink_replay"]
    assert isinstance(value, NoData)
    assert value.kind == rd.NOT_SUPPORTED


def test_link_states(node: StubNode) -> None:
    node.do("set", target="g1.link4.state", value="down")
    node.do("set", target="g1.link5.state", value="disabled")
    node.do("links", gpu="g2", count=4)
    s = node.read()
    assert [gpu(s, 1).links[n]["nvlink_state"] for n in (3, 4, 5)] == ["up", "down", "disabled"]
    assert sorted(gpu(s, 2).links) == [0, 1, 2, 3]


def test_without_link_states_the_counters_remain(node: StubNode) -> None:
    """The structure's version differs between bindings and engine: nothing else is lost."""
    node.stub(fail={"dcgmGetNvLinkLinkStatus": -12})
    s = node.read()
    assert codes(s) == ["MON-ENGINE-LIES"]
    assert "link states" in s.troubles[0].detail
    assert gpu(s, 0).links[17]["nvlink_replay"] == 0
    assert isinstance(gpu(s, 0).links[17]["nvlink_state"], NoData)
    assert gpu(s, 0).readings["pcie_replay"] == 0


def test_a_board_without_nvlink_has_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = StubNode(str(tmp_path), monkeypatch, "custom")
    s = node.read()
    assert s.gpus
    assert s.troubles == ()
    assert all(g.links == {} for g in s.gpus.values())


# -- NVLink 5, fabrics, wiring -------------------------------------------------------


def b200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubNode:
    return StubNode(str(tmp_path), monkeypatch, "hgx-b200-8")


def live_calls(node: StubNode) -> list[int]:
    return [int(n) for n in node.kept()["calls"]["live"]]


def test_nvlink_5_is_asked_apart_and_only_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its counters in the same call, ECC values were lost (dcgm-exporter#581). An H100 is not asked at all."""
    node = b200(tmp_path, monkeypatch)
    node.do("set", target="g3.ecc_sbe_volatile", value=12)
    node.do("add", target="g3.link11.nvlink5_link_recovery", amount=4)
    s = node.read()
    assert s.troubles == ()
    on_gpus = [f for f in cat.ALL if cat.is_nvlink5(f) and f.scope == cat.GPU]
    on_links = [f for f in cat.ALL if cat.is_nvlink5(f) and f.scope == cat.LINK]
    assert 8 * (len(on_gpus) + sum(f.packed_id is not None for f in on_gpus)) in live_calls(node)
    assert 8 * 18 * len(on_links) in live_calls(node)
    readings = gpu(s, 3).readings
    assert (readings["ecc_sbe_volatile"], readings["nvlink5_recovery_successful"], readings["nvlink5_effective_ber"]) == (12, 4, 0.0)
    assert gpu(s, 3).links[11]["nvlink5_link_recovery"] == 4
    assert gpu(s, 3).links[10]["nvlink5_link_recovery"] == 0
    for old in (readings["nvlink_replay_total"], gpu(s, 3).links[0]["nvlink_replay"]):
        assert isinstance(old, NoData)
        assert old.kind == rd.NOT_SUPPORTED


def test_a_bit_error_rate_that_the_engine_does_not_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = b200(tmp_path, monkeypatch)
    node.do("set", target="g2.nvlink5_effective_ber", value=3e-9)
    node.stub(unknown=[1216, 1218])
    s = node.read(fields=["nvlink5_effective_ber", "nvlink5_symbol_ber"])
    assert gpu(s, 2).readings == {"nvlink5_effective_ber": pytest.approx(3e-9), "nvlink5_symbol_ber": 0.0}
    assert gpu(s, 3).readings["nvlink5_effective_ber"] == 0.0
    node.stub(unknown=[1215, 1216, 1217, 1218])
    value = gpu(node.read(), 2).readings["nvlink5_effective_ber"]
    assert isinstance(value, NoData)
    assert value.kind == rd.NOT_SUPPORTED


def test_a_dcgm_without_fields_of_links_on_nvlink_5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = b200(tmp_path, monkeypatch)
    node.stub(unknown=[583, 584, 585, 587, 588, 591])
    s = node.read()
    assert s.troubles == ()
    value = gpu(s, 0).links[17]["nvlink5_link_down"]
    assert isinstance(value, NoData)
    assert value.kind == rd.NOT_SUPPORTED
    assert gpu(s, 0).links[17]["nvlink_state"] == "up"


def test_a_mask_as_the_driver_writes_it(node: StubNode) -> None:
    """All is well is 0x1aa, not 0."""
    healthy = {f.name: gpu(node.read(), 1).readings[f.name] for f in cat.ALL if f.bits is not None}
    assert healthy == {f.name: int(f.name == "fabric_configuration") for f in cat.ALL if f.bits is not None}
    assert not [f.name for f in cat.ALL if f.bits is not None and f.dcgm_id in cat.BY_ID]


@pytest.mark.parametrize(("preset", "links"), [("hgx-a100-4", [4, 4, 4]), ("a100-pcie-nvlink-2", [12])])
def test_direct_links_say_where_they_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, links: list[int]) -> None:
    s = StubNode(str(tmp_path), monkeypatch, preset).read()
    for uuid, state in (s.gpus or {}).items():
        ends = [link["nvlink_remote"] for link in state.links.values()]
        others = [other for other in s.gpus or {} if other != uuid]
        assert [ends.count(other) for other in others] == links


def test_one_link_between_two_gpus_is_known_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = StubNode(str(tmp_path), monkeypatch, "a100-pcie-nvlink-2")
    a, b = (gpu(node.read(), n).identity.uuid for n in (0, 1))
    for number in range(1, 12):
        node.do("set", target=f"*.link{number}.nvlink_remote", value="not_supported")
    s = node.read()
    assert (gpu(s, 0).links[0]["nvlink_remote"], gpu(s, 1).links[0]["nvlink_remote"]) == (f"{b}/link0", f"{a}/link0")
    node.stub(fail={"dcgmGetDeviceTopology": -12})
    s = node.read()
    assert s.troubles == ()
    assert isinstance(gpu(s, 0).links[0]["nvlink_remote"], NoData)


def test_wiring_is_not_asked_for_where_a_fabric_is_up(node: StubNode) -> None:
    node.stub(crash="dcgmGetDeviceTopology")
    assert node.read().troubles == ()


# -- GPUs ---------------------------------------------------------------------------


def test_the_table_joins_what_differs(node: StubNode) -> None:
    node.do("identify", gpu="g6", minor=0, dcgm_id=11)
    node.do("identify", gpu="g0", minor=6)
    node.do("identify", gpu="g5", mig=True, serial="")
    node.do("set", target="g6.pcie_replay", value=66)
    s = node.read()
    row = gpu(s, 6).identity
    assert (row.minor, row.nvml_index, row.dcgm_id, row.slot) == (0, 6, 11, "7")
    assert gpu(s, 6).readings["pcie_replay"] == 66
    assert (gpu(s, 5).identity.mig, gpu(s, 4).identity.mig, gpu(s, 5).identity.serial) == (True, False, "")


def test_a_lost_gpu_that_the_engine_remembers_is_named(node: StubNode) -> None:
    from slurm_nvhc.sense.memory import ensure_watch

    uuid = gpu(node.read(), 3).identity.uuid
    assert ensure_watch("n1", node.engine, patient.READ_S).watched
    node.do("lose", gpu="g3", engine_lists=True)
    s = node.read()
    assert s.gpus is not None
    state = s.gpus[uuid]
    assert (state.status, state.identity.pci, state.links) == ("lost", "0000:4b:00.0", {})
    assert set(state.readings.values()) == {NoData(rd.BLANK, "the GPU is lost")}
    assert len(s.gpus) == 8


def test_a_lost_gpu_that_nobody_can_name_is_missing(node: StubNode) -> None:
    node.do("lose", gpu="g3", engine_lists=True)
    s = node.read()
    assert s.gpus is not None
    assert len(s.gpus) == 7
    assert s.troubles == ()
    assert s.pci_gpus is not None
    assert [p.pci for p in s.pci_gpus if not p.responds] == ["0000:4b:00.0"]


def test_a_gpu_that_answers_nothing_is_lost_although_the_engine_has_not_noticed(node: StubNode) -> None:
    from slurm_nvhc.sense.memory import ensure_watch

    uuid = gpu(node.read(), 3).identity.uuid
    ensure_watch("n1", node.engine, patient.READ_S)
    node.stub(silent=[3])
    for fields in (None, ["gpu_temp_margin"], []):
        s = node.read() if fields is None else node.read(fields=fields)
        assert s.gpus is not None
        assert {u: g.status for u, g in s.gpus.items() if g.status != "ok"} == {uuid: "lost"}
        assert s.troubles == ()


def test_a_field_that_is_blank_everywhere_loses_nobody(node: StubNode) -> None:
    node.do("set", target="g3.gpu_temp_margin", value="blank")
    s = node.read(fields=["gpu_temp_margin"])
    assert [g.status for g in (s.gpus or {}).values()] == ["ok"] * 8


def test_a_gpu_that_works_and_has_no_name_leaves_no_listing(node: StubNode) -> None:
    node.stub(nameless=[3])
    s = node.read()
    assert (codes(s), s.gpus) == (["MON-ENGINE-LIES"], None)


def test_when_no_gpu_answers_it_is_the_engine(node: StubNode) -> None:
    from slurm_nvhc.sense.memory import ensure_watch

    node.stub(silent=list(range(8)))
    s = node.read()
    assert (codes(s), s.gpus) == (["MON-ENGINE-HUNG"], None)  # not "no GPUs"
    node.stub()
    ensure_watch("n1", node.engine, patient.READ_S)
    node.stub(silent=list(range(8)))
    s = node.read()
    assert codes(s) == ["MON-ENGINE-HUNG"]
    assert [g.status for g in (s.gpus or {}).values()] == ["ok"] * 8
    assert all(isinstance(v, NoData) for g in (s.gpus or {}).values() for n, v in g.readings.items() if n != "gpu_processes")


def test_text_of_any_bytes_does_not_stop_a_reading(node: StubNode, monkeypatch: pytest.MonkeyPatch) -> None:
    from ctypes import Structure, Union, c_char, c_int, c_int64, c_short

    from slurm_nvhc.sense.dcgm import live

    class Value(Union):
        _fields_ = [("i64", c_int64), ("str", c_char * 256)]

    class FieldValue(Structure):
        _fields_ = [("fieldType", c_short), ("status", c_int), ("ts", c_int64), ("value", Value)]

    value = FieldValue(ord("s"), 0, 5, Value(str=b"165\xff\xfe"))
    assert live.sample(value) == live.Sample("165\ufffd\ufffd", 5, 0)
    assert isinstance(live.sample(FieldValue(ord("b"), 0, 5)).reading, NoData)
    kinds = {-6: rd.NOT_SUPPORTED, -15: rd.STALE, -16: rd.BLANK, -14: rd.BLANK, -18: rd.BLANK, -17: rd.NOT_PERMITTED, -99: rd.ERROR}
    for status, kind in kinds.items():
        reading = live.sample(FieldValue(ord("i"), status, 0)).reading
        assert isinstance(reading, NoData)
        assert reading.kind == kind


def test_the_driver_of_a_node_without_gpus_is_the_hosts(node: StubNode) -> None:
    node.do("engine", behaviour="empty")
    s = node.read()
    assert (s.driver, s.gpus) == ("575.57.08", {})
    assert codes(s) == ["MON-ENGINE-EMPTY"]


def test_the_drivers_load_is_in_the_kernel_log(node: StubNode) -> None:
    assert node.read().driver_loaded_ns is None
    node.do("kernel_line", text="NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  575.57.08")
    s = node.read()
    assert s.driver_loaded_ns is not None
    assert abs(s.driver_loaded_ns - s.wall_ns) < 60 * 10**9


def test_thinning_keeps_changes_and_both_ends() -> None:
    from slurm_nvhc.model.history import Sample

    samples = [Sample(i, i // 10) for i in range(1000)]
    changes = serving.thin(samples)
    assert changes == [Sample(i * 10, i) for i in range(100)]
    few = serving.thin(samples, 7)
    assert (len(few), few[0], few[-1]) == (7, Sample(0, 0), Sample(990, 99))
    assert serving.thin([]) == []
