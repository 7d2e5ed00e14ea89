"""What an engine remembers: the watch, its history, Xids, and its own health check."""

from __future__ import annotations

import time

import patient
import pytest
from contract_support import PATIENT_S, Rig, codes, gpu

from slurm_nvhc.model import history
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.sense.memory import ensure_watch, read_health, read_history, remove_watch

NS = 1_000_000_000
FOREVER = 2**62


def read_until_event(rig: Rig, seconds: float = patient.READ_S) -> Snapshot:
    """An engine's event loop wakes about once per second."""
    end = time.monotonic() + seconds
    while not (s := rig.read()).events and time.monotonic() < end:
        time.sleep(0.2)
    return s


def test_the_watch_is_made_once_and_found_after(rig: Rig) -> None:
    remove_watch("n1", rig.engine, PATIENT_S)
    first, second = (ensure_watch("n1", rig.engine, PATIENT_S) for _ in range(2))
    assert (first.troubles, first.watched, first.made) == ((), True, True)
    assert (second.troubles, second.watched, second.made) == ((), True, False)


def test_the_watch_is_made_again_after_the_engine_was_gone(rig: Rig) -> None:
    ensure_watch("n1", rig.engine, PATIENT_S)
    rig.do("engine", behaviour="absent")
    gone = ensure_watch("n1", rig.engine, PATIENT_S)
    assert (gone.known, [t.code for t in gone.troubles]) == (False, ["MON-ENGINE-ABSENT"])
    rig.do("engine", behaviour="ok")
    again = ensure_watch("n1", rig.engine, PATIENT_S)
    assert (again.watched, again.made) == (True, True)


def test_a_removed_watch_is_gone(rig: Rig) -> None:
    ensure_watch("n1", rig.engine, PATIENT_S)
    assert remove_watch("n1", rig.engine, PATIENT_S) == history.Watch(True)
    assert read_history("n1", rig.engine, PATIENT_S, 0, FOREVER, ["gpu_temp"]) == history.History(False, {})
    assert remove_watch("n1", rig.engine, PATIENT_S).known


def test_a_live_read_leaves_nothing_and_needs_no_watch(rig: Rig) -> None:
    remove_watch("n1", rig.engine, PATIENT_S)
    assert codes(rig.read()) == []
    assert not read_history("n1", rig.engine, PATIENT_S, 0, FOREVER, ["gpu_temp"]).watched
    assert ensure_watch("n1", rig.engine, PATIENT_S).made


def test_history_has_each_gpu_and_only_what_is_asked_for(rig: Rig) -> None:
    ensure_watch("n1", rig.engine, PATIENT_S)
    s = rig.read()
    got = read_history("n1", rig.engine, PATIENT_S, 0, FOREVER, ["nvlink_replay_total", "gpu_temp"])
    assert (got.watched, got.troubles) == (True, ())
    assert set(got.series) == set(s.gpus or {})
    for series in got.series.values():
        assert set(series) == {"nvlink_replay_total", "gpu_temp"}
        for samples in series.values():
            assert samples
            assert [x.at_ns for x in samples] == sorted(x.at_ns for x in samples)


def test_history_tells_when_a_counter_grew(rig: Rig) -> None:
    if rig.kind == "live":
        pytest.skip("an engine samples every 30 s: too slow to wait for")
    ensure_watch("n1", rig.engine, PATIENT_S)
    began = rig.read().wall_ns
    uuid = gpu(rig.read(), 3).identity.uuid
    rig.do("advance", seconds=600)
    rig.do("storm", link="g3.link11", counter="replay", amount=500, seconds=300)
    whole = read_history("n1", rig.engine, PATIENT_S, 0, FOREVER, ["nvlink_replay_total"]).series[uuid]["nvlink_replay_total"]
    assert [x.value for x in whole] == [0, 500]
    assert abs(whole[1].at_ns - began - 600 * NS) <= rig.slack_ns
    early = read_history("n1", rig.engine, PATIENT_S, 0, began + 300 * NS, ["nvlink_replay_total"]).series[uuid]
    assert [x.value for x in early["nvlink_replay_total"]] == [0]
    assert read_history("n1", rig.engine, PATIENT_S, 0, 1, ["nvlink_replay_total"]).series[uuid] == {}


def test_what_a_job_moved_over_nvlink_is_sampled(rig: Rig) -> None:
    """A rate before NVLink 5, and never a reading of this moment. NVLink 5 has counters to read, which are not sampled."""
    rig.do("identify", gpu="g5", model="NVIDIA B200")
    rig.do("set", target="g5.nvlink5_tx_bytes", value=0)
    rig.do("set", target="g5.nvlink_throughput", value="not_supported")
    ensure_watch("n1", rig.engine, PATIENT_S)
    rig.do("traffic", gpu="*", mb_per_s=1000)
    rig.do("advance", seconds=600)
    s = rig.read()
    fields = ["nvlink_throughput", "nvlink5_tx_bytes", "gpu_util"]
    series = read_history("n1", rig.engine, PATIENT_S, 0, FOREVER, fields).series
    of_old, of_new = (series[gpu(s, n).identity.uuid] for n in (4, 5))
    assert [x.value for x in of_old["nvlink_throughput"]] == [0, 2000]
    assert "nvlink5_tx_bytes" not in of_new
    assert [x.value for x in of_old["gpu_util"]] == [0]
    assert "nvlink_throughput" not in gpu(s, 4).readings
    assert gpu(s, 5).readings["nvlink5_tx_bytes"] == 600 * 10**9


def test_an_engine_that_is_gone_or_hung_knows_nothing(rig: Rig) -> None:
    ensure_watch("n1", rig.engine, PATIENT_S)
    rig.do("engine", behaviour="absent")
    got = read_history("n1", rig.engine, PATIENT_S, 0, FOREVER, ["gpu_temp"])
    assert (got.watched, [t.code for t in got.troubles]) == (False, ["MON-ENGINE-ABSENT"])
    rig.do("engine", behaviour="ok")
    rig.do("engine", behaviour="hung")
    assert [t.code for t in read_history("n1", rig.engine, 2.0, 0, FOREVER, ["gpu_temp"]).troubles] == ["MON-ENGINE-HUNG"]
    assert [t.code for t in ensure_watch("n1", rig.engine, 2.0).troubles] == ["MON-ENGINE-HUNG"]
    assert [t.code for t in read_health("n1", rig.engine, 2.0).troubles] == ["MON-ENGINE-HUNG"]


def test_an_xid_of_the_engine_keeps_its_ident(rig: Rig) -> None:
    ensure_watch("n1", rig.engine, PATIENT_S)
    rig.do("engine_xid", gpu="g2", code=13)  # one that DCGM's health does not hold against a GPU for ever
    first = read_until_event(rig)
    mine = [e for e in first.events if e.code == 13]
    assert [e.uuid for e in mine] == [gpu(first, 2).identity.uuid]
    assert [e for e in rig.read().events if e.ident == mine[0].ident] == mine


def test_health_without_a_watch_is_unknown(rig: Rig) -> None:
    remove_watch("n1", rig.engine, PATIENT_S)
    assert read_health("n1", rig.engine, PATIENT_S) == history.Health(False)


def test_health_of_a_healthy_node_is_known_and_empty(rig: Rig) -> None:
    ensure_watch("n1", rig.engine, PATIENT_S)
    found = read_health("n1", rig.engine, PATIENT_S)
    assert (found.known, found.troubles) == (True, ())
    if rig.kind != "live":  # a real engine looks 60 s back, at what other tests did
        assert found.incidents == ()


def test_an_incident_names_its_gpu(rig: Rig) -> None:
    ensure_watch("n1", rig.engine, PATIENT_S)
    read_health("n1", rig.engine, PATIENT_S)
    rig.do("incident", system="memory", code=4, result="fail", text="volatile double bit errors", gpu="g5")
    found = read_health("n1", rig.engine, PATIENT_S)
    (incident,) = [i for i in found.incidents if (i.system, i.code) == ("memory", 4)]
    assert incident.result == "fail"
    assert incident.entity == gpu(rig.read(), 5).identity.uuid
    assert incident.text
