from __future__ import annotations

import json
from typing import Any

import build
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_nvhc.errors import InputError
from slurm_nvhc.model import snapshot as sn
from slurm_nvhc.model.reading import NO_DATA_KINDS, NoData
from slurm_nvhc.model.snapshot import Event, GpuIdentity, GpuState, PciGpu, Snapshot, Trouble

NUMBERS = st.integers(-(2**63), 2**63)
MAYBE = st.one_of(st.none(), st.integers(0, 64))
WORDS = st.text(max_size=8)
NO_DATA = st.builds(NoData, st.sampled_from(NO_DATA_KINDS), WORDS)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
READINGS = st.dictionaries(WORDS, st.one_of(NUMBERS, WORDS, FLOATS, NO_DATA), max_size=3)
GPUS = st.builds(
    GpuState,
    st.builds(GpuIdentity, WORDS, WORDS, MAYBE, MAYBE, MAYBE, WORDS, WORDS, WORDS, WORDS, st.one_of(st.none(), st.booleans())),
    st.sampled_from(["ok", "lost", "unresponsive"]),
    READINGS,
    st.dictionaries(st.integers(0, 17), READINGS, max_size=3),
)
EVENTS = st.builds(Event, WORDS, NUMBERS, NUMBERS, WORDS, WORDS, WORDS, WORDS, WORDS, NUMBERS, WORDS, st.booleans(), MAYBE)
SNAPSHOTS = st.builds(
    Snapshot,
    *(WORDS,) * 4, NUMBERS, NUMBERS, WORDS, st.one_of(st.none(), NUMBERS),
    st.one_of(st.none(), st.dictionaries(WORDS, GPUS, max_size=3)),
    st.one_of(st.none(), st.lists(st.builds(PciGpu, WORDS, st.booleans()), max_size=3).map(tuple)),
    st.dictionaries(WORDS, READINGS, max_size=3),
    st.lists(EVENTS, max_size=3).map(tuple), st.booleans(), WORDS,
    st.lists(st.builds(Trouble, WORDS, WORDS, WORDS), max_size=3).map(tuple),
)


@settings(max_examples=60)
@given(SNAPSHOTS)
def test_through_json_and_back(snapshot: Snapshot) -> None:
    assert sn.from_json(json.loads(json.dumps(sn.to_json(snapshot)))) == snapshot


def good() -> dict[str, Any]:
    snapshot = build.snapshot(
        build.gpu(0),
        pci_gpus=(PciGpu("0000:1b:00.0"),),
        events=(Event("xid", 31, 5, "p", "t", "kernel", "i"),),
        troubles=(Trouble("MON-ENGINE-HUNG", "engine", "d"),),
    )
    document: dict[str, Any] = json.loads(json.dumps(sn.to_json(snapshot)))
    return document


def test_no_listing_stays_no_listing() -> None:
    assert sn.from_json({**good(), "gpus": None, "pci_gpus": None}).gpus is None
    assert sn.from_json({**good(), "gpus": {}, "pci_gpus": []}).gpus == {}


def test_what_was_left_out_has_its_default() -> None:
    document = {k: v for k, v in good().items() if k in ("schema", "node", "source", "engine", "boot_id", "wall_ns", "boot_ns")}
    snapshot = sn.from_json(document)
    assert (snapshot.gpus, snapshot.pci_gpus, snapshot.events, snapshot.events_known) == (None, None, (), False)


@pytest.mark.parametrize("value", [None, [], "x", 5, {}, {"schema": 2}, {"schema": "1"}, {"schema": None}, {"schema": 1}])
def test_what_is_no_snapshot(value: Any) -> None:
    with pytest.raises(InputError) as caught:
        sn.from_json(value, "capture x.json")
    assert str(caught.value).startswith("capture x.json")
    assert "\n" not in str(caught.value)


HOSTILE = [None, 5, "x", [], [None], ["x"], {}, {"x": None}, {"x": []}, {"x": {"identity": {}}}, {"x": {"identity": [], "status": 1}}]


@pytest.mark.parametrize("key", ["gpus", "pci_gpus", "events", "troubles", "wall_ns", "boot_ns", "node"])
@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_hostile_parts_are_an_input_error_or_a_snapshot(key: str, value: Any) -> None:
    try:
        sn.from_json({**good(), key: value})
    except InputError:
        pass  # anything else would be a traceback


@pytest.mark.parametrize("key", ["wall_ns", "boot_ns"])
@pytest.mark.parametrize("value", [None, "5", 1.5, [], {}])
def test_clocks_are_integers(key: str, value: Any) -> None:
    with pytest.raises(InputError):
        sn.from_json({**good(), key: value})


@pytest.mark.parametrize("path", [("identity", "extra"), ("links", "x"), ("links", "1.5"), ("readings",), ("identity",), ("links",)])
def test_hostile_gpus_are_an_input_error(path: tuple[str, ...]) -> None:
    document = good()
    gpu = next(iter(document["gpus"].values()))
    if len(path) == 2:
        gpu[path[0]][path[1]] = {}
    else:
        gpu[path[0]] = 5
    with pytest.raises(InputError):
        sn.from_json(document)


def test_a_reading_that_is_none_is_no_data() -> None:
    document = good()
    gpu = next(iter(document["gpus"].values()))
    gpu["readings"]["gpu_temp"] = {"strange": 1}
    state = next(iter((sn.from_json(document).gpus or {}).values()))
    assert isinstance(state.readings["gpu_temp"], NoData)


@pytest.mark.parametrize(
    "change",
    [
        {"wall_ns": True},
        {"wall_ns": "1"},
        {"node": 5},
        {"driver_loaded_ns": "x"},
        {"events": [{**Event("xid", 79, 1, "p", "t", "kernel", "i")._asdict(), "at_ns": "y"}]},
        {"pci_gpus": [{"pci": 3}]},
        {"gpus": {"GPU-a": {"identity": {"uuid": 5}, "status": "ok", "readings": {}, "links": {}}}},
        {"gpus": {"GPU-a": {"identity": {"uuid": "GPU-a"}, "status": {}, "readings": {}, "links": {}}}},
        {"gpus": {"GPU-a": {"identity": {"uuid": "GPU-a"}, "status": "ok", "readings": {}, "links": {"-1": {}}}}},
        {"gpus": {"GPU-a": {"identity": {"uuid": "GPU-a"}, "status": "ok", "readings": [], "links": {}}}},
    ],
)
def test_values_of_the_wrong_type_are_refused(change):
    with pytest.raises(InputError):
        sn.from_json({**good(), **change})
