"""The persistent watch: found, made again, removed; its history, its Xids, and DCGM's health check on it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import patient
import pytest
from stub_node import StubNode

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import history
from slurm_nvhc.sense import memory

NS = 1_000_000_000


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubNode:
    return StubNode(str(tmp_path), monkeypatch)


def ensure(node: StubNode) -> history.Watch:
    return memory.ensure_watch("n1", node.engine, patient.READ_S)


def test_it_is_made_once_and_found_after(node: StubNode) -> None:
    assert ensure(node) == history.Watch(True, watched=True, made=True)
    first = node.kept()
    assert ensure(node) == history.Watch(True, watched=True, made=False)
    second = node.kept()
    assert second["groups"] == first["groups"]
    (group,) = second["groups"].values()
    assert group["name"] == "nvhc-watch"
    assert [entity for _, entity in group["entities"]] == list(range(8))
    assert len(second["field_groups"]) == 3
    intervals = [[30_000_000, 86_400.0, 0], [30_000_000, 86_400.0, 0], [3_600_000_000, 604_800.0, 0]]
    assert sorted(group["watched"].values()) == intervals
    assert "persist" in second["calls"]


def test_every_field_of_the_watch_has_an_id_of_its_own() -> None:
    ids = [cat.BY_NAME[name].dcgm_id for name in cat.SAMPLED]
    assert None not in ids
    assert len(set(ids)) == len(ids)


def test_it_is_made_again_after_the_engine_restarted(node: StubNode) -> None:
    ensure(node)
    node.do("engine", behaviour="absent")
    gone = ensure(node)
    assert (gone.known, [t.code for t in gone.troubles]) == (False, ["MON-ENGINE-ABSENT"])
    node.do("engine", behaviour="ok")
    assert ensure(node).made
    assert len(node.kept()["groups"]) == 1


@pytest.mark.parametrize("damage", ["unwatched", "half", "twice", "older"])
def test_a_watch_that_is_not_whole_is_made_again(node: StubNode, damage: str) -> None:
    ensure(node)
    kept = node.kept()
    (group,) = kept["groups"].values()
    if damage == "unwatched":
        group["watched"] = {}
    elif damage == "half":
        kept["field_groups"].popitem()
        group["watched"] = {k: v for k, v in group["watched"].items() if k in kept["field_groups"]}
    elif damage == "twice":
        kept["groups"]["77"] = group
    else:
        next(iter(kept["field_groups"].values()))["name"] = "nvhc-watch-00000000"
    Path(node.world + ".engine").write_text(json.dumps(kept))
    assert ensure(node).made
    after = node.kept()
    assert (len(after["groups"]), len(after["field_groups"])) == (1, 3)
    assert not ensure(node).made


def test_it_follows_the_gpus(node: StubNode) -> None:
    node.do("lose", gpu="g7")
    ensure(node)
    node.do("restore", gpu="g7")
    assert ensure(node).made
    node.do("lose", gpu="g7", engine_lists=True)
    assert not ensure(node).made  # what it remembers of the lost one is kept
    node.do("lose", gpu="*", engine_lists=True)
    assert ensure(node) == history.Watch(True, watched=True, made=False)


def test_ids_that_this_dcgm_does_not_know_are_left_out(node: StubNode) -> None:
    node.stub(unknown=[1423, 1424])
    assert ensure(node).watched
    ids = next(g["ids"] for g in node.kept()["field_groups"].values() if len(g["ids"]) > 2)
    assert 1423 not in ids
    assert 429 in ids


def test_it_is_removed_whole(node: StubNode) -> None:
    ensure(node)
    assert memory.remove_watch("n1", node.engine, patient.READ_S) == history.Watch(True)
    kept = node.kept()
    assert (kept["groups"], kept["field_groups"]) == ({}, {})
    assert memory.remove_watch("n1", node.engine, patient.READ_S).known
    node.do("engine", behaviour="absent")
    assert not memory.remove_watch("n1", node.engine, patient.READ_S).known


def test_a_group_of_somebody_else_is_left_alone(node: StubNode) -> None:
    ensure(node)
    kept = node.kept()
    kept["groups"]["50"] = {"name": "dcgm-exporter", "entities": [], "watched": {}, "health": 0}
    kept["field_groups"]["51"] = {"name": "dcgm-exporter-1", "ids": [150]}
    Path(node.world + ".engine").write_text(json.dumps(kept))
    memory.remove_watch("n1", node.engine, patient.READ_S)
    after = node.kept()
    assert (list(after["groups"]), list(after["field_groups"])) == (["50"], ["51"])


def test_a_watch_that_can_not_be_made_leaves_nothing(node: StubNode) -> None:
    node.stub(fail={"dcgmWatchFields": -24})
    failed = ensure(node)
    assert (failed.known, [t.code for t in failed.troubles]) == (False, ["MON-ENGINE-ABSENT"])
    assert "too many groups" in failed.troubles[0].detail
    assert (node.kept()["groups"], node.kept()["field_groups"]) == ({}, {})


def test_history_by_window(node: StubNode) -> None:
    began = time.time_ns()
    assert memory.read_history("n1", node.engine, patient.READ_S, 0, 2**62, ["gpu_temp"]) == history.History(False, {})
    ensure(node)
    node.do("storm", link="g3.link11", counter="replay", amount=10, seconds=600)
    node.do("add", target="g3.link11.replay", amount=5)
    whole = memory.read_history("n1", node.engine, patient.READ_S, began - 60 * NS, began + 3600 * NS, ["nvlink_replay_total", "gpu_temp"])
    assert (whole.watched, whole.troubles, len(whole.series)) == (True, (), 8)
    uuid = next(g.identity.uuid for g in (node.read().gpus or {}).values() if g.identity.nvml_index == 3)
    assert [s.value for s in whole.series[uuid]["nvlink_replay_total"]] == [0, 10, 15]
    assert [s.value for s in whole.series[uuid]["gpu_temp"]] == [33]
    late = memory.read_history("n1", node.engine, patient.READ_S, began + 300 * NS, began + 3600 * NS, ["nvlink_replay_total"])
    assert [s.value for s in late.series[uuid]["nvlink_replay_total"]] == [15]
    first, last = (whole.series[uuid]["nvlink_replay_total"][n].at_ns for n in (0, -1))
    assert abs(last - first - 600 * NS) < 60 * NS


def test_the_engines_own_xids(node: StubNode) -> None:
    node.do("unreadable", part="kernel_log")
    node.do("engine_xid", gpu="g4", code=31)
    assert node.read().events == ()  # nobody had asked the engine to keep them
    ensure(node)
    first, second = node.read(), node.read()
    (event,) = first.events
    assert first.gpus is not None
    row = first.gpus[event.uuid].identity
    assert (event.kind, event.code, event.source, row.nvml_index, event.pci) == ("xid", 31, "engine", 4, row.pci)
    assert event.ident == f"dcgm:{row.uuid}:{event.at_ns // 1000}:31"
    assert second.events == first.events


def test_an_xid_seen_by_kernel_and_engine_is_one_event(node: StubNode) -> None:
    ensure(node)
    node.do("xid", gpu="g3", code=79)
    (event,) = node.read().events
    assert (event.source, event.code) == ("kernel", 79)


def test_health_needs_the_watch_and_is_set_once(node: StubNode) -> None:
    assert memory.read_health("n1", node.engine, patient.READ_S) == history.Health(False)
    ensure(node)
    uuids = {g.identity.nvml_index: g.identity.uuid for g in (node.read().gpus or {}).values()}
    node.do("incident", system="nvlink", code=71, result="fail", text="2 replay errors", gpu="g3")
    node.do("incident", system="pcie", code=3, result="warn", text="replays", gpu="g0")
    node.do("incident", system="all", code=101, result="fail", text="Xid")
    found = memory.read_health("n1", node.engine, patient.READ_S)
    assert found.troubles == ()
    assert found.incidents == (
        history.Incident("nvlink", 71, "fail", uuids[3], "2 replay errors"),
        history.Incident("pcie", 3, "warn", uuids[0], "replays"),
        history.Incident("all", 101, "fail", "node", "Xid"),
    )
    (group,) = node.kept()["groups"].values()
    assert group["health"] == 0x3D3
    node.stub(fail={"dcgmHealthCheck": -12})
    failed = memory.read_health("n1", node.engine, patient.READ_S)
    assert (failed.known, [t.code for t in failed.troubles]) == (False, ["MON-ENGINE-ABSENT"])


def test_entities_of_incidents() -> None:
    from slurm_nvhc.sense.dcgm.health import _entity
    from slurm_nvhc.sense.dcgm.links import entity_id

    assert _entity(6, entity_id(3, 11), {3: "GPU-a"}) == "GPU-a/link11"
    assert _entity(1, 3, {3: "GPU-a"}) == "GPU-a"
    assert (_entity(1, 4, {3: "GPU-a"}), _entity(3, 0, {}), _entity(6, 0x0103, {0: "GPU-a"})) == ("node", "node", "node")


def test_the_asking_side_imports_light_modules_only() -> None:
    heavy = ("dataclasses", "logging", "argparse", "subprocess", "msgspec", "yaml", "pathlib", "inspect", "ctypes", "slurm_nvhc.sense.dcgm")
    program = "import sys; before = set(sys.modules); import slurm_nvhc.sense.memory; print(*(set(sys.modules) - before))"
    out = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in out if name.startswith(heavy)] == []


def test_no_time_left_asks_nothing(node: StubNode) -> None:
    for answer in (memory.ensure_watch("n1", node.engine, 0.0), memory.read_health("n1", node.engine, -1.0)):
        assert (answer.known, [t.code for t in answer.troubles]) == (False, ["MON-BUDGET"])


def test_a_reply_that_can_not_be_is_trouble_and_no_sample(node: StubNode, monkeypatch: pytest.MonkeyPatch) -> None:
    from slurm_nvhc.proc.child import Result
    from slurm_nvhc.sense import client

    def answer(part: object) -> None:
        text = '{"part": "clock", "wall_ns": 5, "boot_ns": 6, "boot_id": "b"}\n' + json.dumps(part) + '\n{"part": "done"}\n'
        monkeypatch.setattr(client, "ask", lambda request: Result(0, "", "", "", text))

    answer({"part": "history", "watched": True, "series": {"nobody": {}, "GPU-a": {"gpu_temp": [[1, "hot"], "x", [2, 40]], "zzz": []}}})
    got = memory.read_history("n1", node.engine, patient.READ_S, 0, 9, ["gpu_temp"])
    assert [t.code for t in got.troubles] == ["MON-ENGINE-LIES"]
    assert list(got.series) == ["GPU-a"]
    assert [s.at_ns for s in got.series["GPU-a"]["gpu_temp"]] == [1, 2]
    assert got.series["GPU-a"]["gpu_temp"][1].value == 40
    odd = {"system": "a\nb", "code": 1, "result": "warn", "entity": 5, "text": None}
    answer({"part": "health", "known": True, "incidents": [{"code": "x"}, odd]})
    health = memory.read_health("n1", node.engine, patient.READ_S)
    assert health.incidents == (history.Incident("a b", 1, "warn", "node", ""),)
    assert [t.code for t in health.troubles] == ["MON-ENGINE-LIES"]
