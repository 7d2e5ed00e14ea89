"""The dcgm backend over stand-in bindings: a captured engine, and every way in which an engine answers less than asked."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from stub_node import BINDINGS, CAPTURE, StubNode

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.model.snapshot import GpuIdentity, GpuState, Snapshot
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.sense.client import read_snapshot
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
    return read_snapshot("n1", Engine("dcgm", f"unix://{CAPTURE}", bindings=(BINDINGS,)), 30.0)


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
        assert set(state.readings) == {f.name for f in cat.ALL if f.scope == cat.GPU}
        for name, value in state.readings.items():
            _, _, raw = table[str(cat.BY_NAME[name].dcgm_id)]
            raw = raw[i] if isinstance(raw, list) else raw
            if isinstance(raw, int) and raw > 2**62:
                assert isinstance(value, NoData)
                assert value.kind == {0: rd.BLANK, 2: rd.NOT_SUPPORTED}[raw & 0xF]
            else:
                assert value == raw
        assert sorted(state.links) == list(range(18))  # of the 36 that the structure has room for
        assert {tuple(sorted(link.items())) for link in state.links.values()} == {
            tuple(sorted({**{f.name: 0 for f in cat.ALL if f.link_ids}, "nvlink_state": "up"}.items()))
        }


# -- how it asks -------------------------------------------------------------------


def test_one_exchange_and_nothing_left_behind(node: StubNode) -> None:
    node.read()
    kept = node.kept()
    # driver; board fields and NVLink fields of all GPUs: no call per GPU or per field
    assert [n // 8 or n for n in kept["calls"]["live"]] == [1, 44, 76]
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
    node.stub(unknown=[1523, 1423, 1424, 346])
    s = node.read()
    assert s.troubles == ()
    value = gpu(s, 0).readings["recovery_action"]
    assert isinstance(value, NoData)
    assert value.kind == rd.NOT_SUPPORTED
    assert gpu(s, 0).readings["pcie_replay"] == 0
    assert [n // 8 or n for n in node.kept()["calls"]["live"]] == [1, 40, 76]


def test_ids_that_fail_a_whole_call_drop_out_one_by_one(node: StubNode) -> None:
    node.do("set", target="g5.pcie_replay", value=7)
    node.stub(refuse=[1523, 395, 487])
    s = node.read()
    assert s.troubles == ()
    for i in range(8):
        state = gpu(s, i)
        lacking = {name for name, value in state.readings.items() if isinstance(value, NoData) and value.kind == rd.ERROR}
        assert lacking == {"recovery_action", "row_remap_failure"}
        lost = [(n, name) for n, link in state.links.items() for name, v in link.items() if isinstance(v, NoData)]
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
    s = node.read()
    assert s.gpus is not None
    assert all(isinstance(v, NoData) for g in s.gpus.values() for v in g.readings.values())
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
    assert ensure_watch("n1", node.engine, 30.0).watched
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
    ensure_watch("n1", node.engine, 30.0)
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
    ensure_watch("n1", node.engine, 30.0)
    node.stub(silent=list(range(8)))
    s = node.read()
    assert codes(s) == ["MON-ENGINE-HUNG"]
    assert [g.status for g in (s.gpus or {}).values()] == ["ok"] * 8
    assert all(isinstance(v, NoData) for g in (s.gpus or {}).values() for v in g.readings.values())


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
