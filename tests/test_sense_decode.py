"""The reader's reply, checked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_nvhc.model.reading import NoData
from slurm_nvhc.sense.decode import decode

UUID = "GPU-aaaa"
GPU: dict[str, Any] = {
    "identity": {"uuid": UUID, "pci": "00000000:3B:00.0", "minor": 4, "serial": "<<<NOT_SUPPORTED>>>"},
    "status": "ok",
    "readings": {"pcie_replay": 3},
    "links": {"11": {"nvlink_replay": 5, "nvlink_state": "up"}},
}
ASKED = ("pcie_replay", "gpu_temp", "nvlink_replay")


def gpus(value: Any, asked: tuple[str, ...] = ASKED):
    return decode(json.dumps({"part": "gpus", "gpus": value}) + "\n", asked)


def test_a_good_gpu() -> None:
    reply = gpus({UUID: GPU})
    assert reply.lies == ()
    state = reply.gpus[UUID]
    assert (state.identity.pci, state.identity.minor, state.identity.serial, state.identity.dcgm_id) == ("0000:3b:00.0", 4, "", None)
    assert state.links[11] == {"nvlink_replay": 5, "nvlink_state": "up"}
    # asked for and not answered is no data, not absent
    assert isinstance(state.readings["gpu_temp"], NoData)


@pytest.mark.parametrize(
    ("parts", "total"),
    [
        ({"retired_pages_sbe": 40, "retired_pages_dbe": 30}, 70),
        ({"retired_pages_sbe": 0, "retired_pages_dbe": 0}, 0),
        ({"retired_pages_sbe": 40, "retired_pages_dbe": {"no": "blank"}}, NoData("blank")),
        ({"retired_pages_sbe": {"no": "not_supported"}, "retired_pages_dbe": {"no": "not_supported"}}, NoData("not_supported")),
        ({"retired_pages_sbe": -1, "retired_pages_dbe": 64}, NoData("error", "-1 can not be")),
    ],
)
def test_a_sum_is_of_all_its_parts(parts: Any, total: Any) -> None:
    asked = ("retired_pages_sbe", "retired_pages_dbe", "retired_pages_total")
    found = gpus({UUID: {**GPU, "readings": parts}}, asked).gpus[UUID].readings["retired_pages_total"]
    assert (found.kind if isinstance(found, NoData) else found) == (total.kind if isinstance(total, NoData) else total)


@pytest.mark.parametrize(
    "change",
    [
        {"status": "great"},
        {"status": None},
        {"readings": {"pcie_replay": "3"}},
        {"readings": {"pcie_replay": -3}},
        {"readings": {"pcie_replay": 10**30}},
        {"readings": {"pcie_reply": 3}},
        {"readings": {"nvlink_replay": 3}},
        {"readings": []},
        {"links": {"x": {}}},
        {"links": {"-1": {}}},
        {"links": {"99": {}}},
        {"links": {"0": {"nvlink_state": "sideways"}}},
        {"links": {"0": {"pcie_replay": 1}}},
        {"links": None},
        {"identity": {"uuid": "GPU-bbbb"}},
        {"identity": {"uuid": UUID, "minor": -1}},
        {"identity": {"uuid": UUID, "minor": "0"}},
        {"identity": {"uuid": UUID, "pci": "somewhere"}},
        {"identity": None},
    ],
)
def test_what_a_gpu_can_not_be_is_told_and_never_a_number(change: dict[str, Any]) -> None:
    reply = gpus({UUID: {**GPU, **change}})
    assert reply.lies
    state = reply.gpus[UUID]
    assert state.status == "ok"  # a wrong reply never makes a GPU lost
    if "readings" in change or "status" in change:
        assert isinstance(state.readings["pcie_replay"], NoData)


def test_a_nameless_gpu_makes_the_listing_unknown() -> None:
    reply = gpus({UUID: GPU, "lots\x00": GPU})
    assert reply.gpus is None
    assert reply.lies


def test_a_uuid_listed_twice_has_no_data() -> None:
    one = json.dumps(GPU)
    reply = decode(f'{{"part": "gpus", "gpus": {{"{UUID}": {one}, "{UUID}": {one}}}}}\n', ASKED)
    assert any("twice" in lie for lie in reply.lies)
    assert isinstance(reply.gpus[UUID].readings["pcie_replay"], NoData)
    assert reply.gpus[UUID].links == {}


def test_two_gpus_at_one_address_have_none() -> None:
    other = {**GPU, "identity": {**GPU["identity"], "uuid": "GPU-bbbb"}}
    reply = gpus({UUID: GPU, "GPU-bbbb": other})
    assert [g.identity.pci for g in reply.gpus.values()] == ["", ""]
    assert reply.lies


def test_half_a_line_is_dropped_and_the_rest_kept() -> None:
    whole = '{"part": "clock", "wall_ns": 5, "boot_ns": 6, "boot_id": "b"}\n{"part": "pci", "gpus": null}\n'
    reply = decode(whole + '{"part": "engine", "ver', ())
    assert (reply.clock, reply.last, reply.done, reply.lies) == ((5, 6, "b"), "pci", False, ())


@pytest.mark.parametrize(
    "line",
    ["%$#", "[]", "7", '{"part": 7}', '{"part": "song"}', "[" * 50_000, '{"part": "clock", "wall_ns": -1, "boot_ns": 0}', "null",
     '{"part": "pci", "gpus": [{"pci": "x", "responds": true}, 5]}', '{"part": "gpus", "gpus": 5}', '{"part": "events", "events": [{}]}',
     '{"part": "events"}', '{"part": "engine", "driver_loaded_ns": "soon"}'],
)
def test_what_is_no_part_is_told(line: str) -> None:
    reply = decode(line + '\n{"part": "done"}\n', ())
    assert reply.lies
    assert reply.done


def test_events_and_troubles_are_cleaned() -> None:
    event = {"kind": "xid", "code": 79, "at_ns": 5, "pci": "0000:3B:00", "text": "a\x1b\nb", "ident": "b:1", "pid": -4, "uuid": "x y"}
    reply = decode(json.dumps({"part": "events", "events": [event]}) + "\n", ())
    (got,) = reply.events
    assert (got.pci, got.text, got.pid, got.uuid, got.source) == ("0000:3b:00.0", "a b", 0, "", "engine")
    reply = decode(json.dumps({"part": "trouble", "code": "GPU-LOST?", "where": "x\n", "detail": "y" * 900}) + "\n", ())
    assert (reply.troubles[0].code, reply.troubles[0].part, len(reply.troubles[0].detail)) == ("MON-READER", "x", 300)


KEYS = ["identity", "status", "readings", "links", "0", "uuid", "pci", "pcie_replay", "x"]
PARTS = ["clock", "kernel_log", "pci", "host", "engine", "gpus", "switches", "events", "trouble"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(PARTS), st.sampled_from(["gpus", "parts", "events", "code"]), JSON)
def test_nothing_makes_it_raise(part: str, key: str, value: Any) -> None:
    decode(json.dumps({"part": part, "known": True, key: value}) + "\n", ASKED)
    reply = gpus({UUID: value})
    assert UUID in reply.gpus
