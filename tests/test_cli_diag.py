"""`nvhc diag` on the simulated node: ground, results, what is left alone, what is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import patient
import pytest
from test_ground import Node

from slurm_nvhc.model import tested
from slurm_nvhc.record.ledger import Ledger

MISMATCH: dict[str, Any] = {"error": 58, "text": "memory mismatch", "severity": "isolate"}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Drained and empty, and a hook has run there."""
    node = Node(tmp_path, "IDLE+DRAIN")
    node.site.hook("health_check")
    return node


def say(node: Node, gpu: int, test: str, result: str, **more: Any) -> None:
    with node.site.edit() as world:
        world.diag_result(test, result, f"g{gpu}", **more)


def plan(node: Node, **what: Any) -> None:
    with node.site.edit() as world:
        world.diag_plan(**what)


def kept(node: Node, gpu: int) -> tested.Tested | None:
    with node.site.ledger() as ledger:
        return tested.loads(ledger.get(f"diag:{node.uuid(gpu)}"))


def running(node: Node) -> Any:
    with node.site.edit() as world:
        return world.diag.running


def mark(node: Node) -> str:
    with Ledger.open(str(node.root / "state" / "n1"), patient.LEDGER_S) as ledger:
        return ledger.get("diag_running")


# --- results


def test_all_pass(node: Node) -> None:
    out = node.site.nvhc("diag", "--level", "2", code=0)
    assert "level 2: passed on 8 of 8 GPUs" in out
    assert "nvhc: level 2 on 8 GPUs: usually takes 5m, and is ended after 10m" in out
    assert "the node is drained and has no job" in out
    assert "FAIL" not in out
    found = kept(node, 5)
    assert found is not None
    assert (found.status, found.tests) == ("pass", ("2",))
    assert found.run.startswith("nvhc diag of ")
    assert (mark(node), running(node)) == ("", None)


def test_one_gpu_fails(node: Node) -> None:
    say(node, 3, "memory", "fail", **MISMATCH)
    out = node.site.nvhc("diag", "--level", "2", code=1)
    (row,) = [line for line in out.splitlines() if " gpu3 " in line and "pass" in line]
    assert row.split()[0] == "FAIL"
    assert "DIAG-FAIL" in out
    assert "memory mismatch" in out
    assert "passed on 7 of 8 GPUs" in out
    assert "scontrol update nodename=n1 state=drain reason='gpu3: diag memory failed'" in out, "nothing can hide one GPU here"
    assert not [call for call in node.site.calls() if call.startswith("update")], "it drains nothing"
    assert [kept(node, n).status for n in (2, 3)] == ["pass", "fail"]  # type: ignore[union-attr]
    node.site.write_policy({"mode": "enforce", "narrow": {"enabled": True}})
    assert "nvhc gpu exclude gpu3 --why 'diag memory failed'" in node.site.nvhc("diag", "--level", "2", code=1)


def test_json(node: Node) -> None:
    say(node, 3, "memory", "fail", **MISMATCH)
    told = node.site.nvhc_json("diag", "--level", "2", "--gpus", "gpu3,gpu4", code=1)
    assert (told["schema"], told["what"], told["node"], told["verdict"], told["outcome"]) == (1, "diag", "n1", "fail", "done")
    assert [(g["gpu"], g["verdict"], g["left_alone"]) for g in told["gpus"]] == [("gpu3", "fail", ""), ("gpu4", "ok", "")]
    assert "memory mismatch" in told["gpus"][0]["why"]
    assert told["ground"] == {"how": "drained", "job": "", "why": "the node is drained and has no job"}
    assert told["seconds"] > 0
    assert {r["entity"] for r in told["report"]["results"]} >= {node.uuid(3), node.uuid(4)}


def test_a_failure_that_names_no_gpu_is_the_nodes(node: Node) -> None:
    with node.site.edit() as world:
        world.diag_result("memory", "fail", text="could not be loaded")
    told = node.site.nvhc_json("diag", "--level", "2", code=1)
    assert told["verdict"] in ("warn", "fail")
    assert "could not be loaded" in told["why"]
    assert "fail" not in [g["verdict"] for g in told["gpus"]]


def test_tests_by_name_and_what_is_required(node: Node) -> None:
    assert "memory, pcie: passed on 8 of 8 GPUs" in node.site.nvhc("diag", "--tests", "memory,PCIe", code=0)
    told = node.site.nvhc_json("diag", "--level", "3", "--require", "eud", code=1)
    assert any("required" in f["message"] and "eud" in f["message"] and f["verdict"] == "warn" for f in told["findings"])


# --- ground


def test_a_node_in_service_is_left_alone_and_level_1_is_not(tmp_path: Path) -> None:
    node = Node(tmp_path, "IDLE")
    node.site.hook("health_check")
    told = node.site.nvhc_json("diag", "--level", "2", code=3)
    assert (told["outcome"], told["ground"]["how"], told["gpus"]) == ("not_run", "none", [])
    out = node.site.nvhc("diag", "--level", "2", code=3)
    assert "not run: the node is IDLE, and jobs may start on it" in out
    assert "nvhc diag --level 1" in out
    assert kept(node, 0) is None
    assert "level 1: passed on 8 of 8 GPUs" in node.site.nvhc("diag", code=0)


def test_inside_an_allocation_only_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    node.job(7, "2-3")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    told = node.site.nvhc_json("diag", "--level", "2", code=0)
    assert [g["gpu"] for g in told["gpus"]] == ["gpu2", "gpu3"]
    assert told["report"]["uuids"] == [node.uuid(2), node.uuid(3)]
    assert node.site.nvhc_json("diag", "--level", "2", "--gpus", "gpu4", code=3)["outcome"] == "not_run"
    assert kept(node, 4) is None


def test_a_busy_gpu_is_left_alone_and_told(node: Node) -> None:
    """R39"""
    with node.site.edit() as world:
        world.set("g0.gpu_processes", 1)
    told = node.site.nvhc_json("diag", "--level", "2", code=3)
    assert node.uuid(0) not in told["report"]["uuids"]
    assert {g["gpu"]: g["verdict"] for g in told["gpus"]} == {"gpu0": "unknown", **{f"gpu{n}": "ok" for n in range(1, 8)}}
    assert "left alone: gpu0" in node.site.nvhc("diag", "--level", "2", code=3)
    only = node.site.nvhc("diag", "--level", "2", "--gpus", "gpu0", code=3)
    assert "gpu0: busy: 1 processes compute on it" in only


def test_a_lost_gpu_is_told_by_level_1(node: Node) -> None:
    with node.site.edit() as world:
        world.lose("g2", engine_lists=True)
    told = node.site.nvhc_json("diag", code=3)
    assert {g["gpu"]: g["left_alone"] for g in told["gpus"] if g["left_alone"]} == {"gpu2": "lost"}


# --- no result


@pytest.mark.parametrize("behaviour", ["absent", "crashes", "running"])
def test_it_could_not_be_run(node: Node, behaviour: str) -> None:
    plan(node, behaviour=behaviour)
    told = node.site.nvhc_json("diag", "--level", "2", code=3)
    assert told["outcome"] != "done"
    assert told["why"]
    assert {g["verdict"] for g in told["gpus"]} == {"unknown"}


def test_an_engine_that_does_not_answer(node: Node) -> None:
    with node.site.edit() as world:
        world.engine("absent")
    assert "does not list the GPUs now" in node.site.nvhc("diag", code=3)


def test_its_time_is_over(node: Node) -> None:
    plan(node, seconds=500)
    told = node.site.nvhc_json("diag", "--level", "2", "--timeout", "100s", code=3)
    assert (told["outcome"], running(node), mark(node)) == ("stopped", None, "")
    assert node.site.nvhc_json("diag", "--level", "2", code=0)["outcome"] == "done", "the usual limit is twice the usual time"


def test_one_that_does_not_stop_is_told_and_stays_marked(node: Node) -> None:
    plan(node, behaviour="stubborn")
    told = node.site.nvhc_json("diag", "--level", "2", code=3)
    assert told["report"]["left"] is True
    assert "MON-DIAG" in [f["code"] for f in told["findings"]]
    assert mark(node)
    assert node.site.nvhc("diag", "--stop", code=3)


# --- stop, signals


def test_stop(node: Node) -> None:
    assert node.site.nvhc("diag", "--stop", code=0) == "n1: no diagnostic runs\n"
    plan(node, behaviour="running")
    assert running(node) is not None
    assert node.site.nvhc("diag", "--stop", code=0) == "n1: the diagnostic was ended\n"
    assert running(node) is None
    told = node.site.nvhc_json("diag", "--stop", code=0)
    assert (told["known"], told["ran"], told["gone"]) == (True, False, True)


def begun(node: Node, *words: str) -> subprocess.Popen[str]:
    """`nvhc diag` whose diagnostic runs in the engine by now."""
    plan(node, real_seconds=patient.PROCESS_S)
    here = ["--config", str(node.site.config), "--state", str(node.root / "state"), "--run", str(node.root / "run"), "--node", "n1"]
    argv = [sys.executable, "-m", "slurm_nvhc.cli.main", "diag", "--level", "2", "--json", *words, *here]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + patient.PROCESS_S
    while running(node) is None:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_told_to_stop_it_ends_what_runs_in_the_engine(node: Node, number: signal.Signals) -> None:
    process = begun(node)
    process.send_signal(number)
    process.send_signal(signal.SIGTERM)  # a pre-empted step gets it twice
    out, err = process.communicate(timeout=patient.PROCESS_S)
    told = json.loads(out)
    assert "Traceback" not in err
    assert (process.returncode, told["outcome"], told["verdict"]) == (3, "stopped", "unknown")
    assert told["why"].startswith("ended by SIG")
    assert (running(node), mark(node)) == (None, "")


def test_killed_it_leaves_a_mark_and_the_next_hook_ends_it(node: Node) -> None:
    process = begun(node)
    process.kill()
    process.communicate()
    assert running(node) is not None, "the engine's child goes on"
    assert mark(node)
    node.site.hook("health_check")
    assert (running(node), mark(node)) == (None, "")


def test_killed_and_then_stopped_by_hand(node: Node) -> None:
    process = begun(node)
    process.kill()
    process.communicate()
    assert "was ended" in node.site.nvhc("diag", "--stop", code=0)
    assert (running(node), mark(node)) == (None, "")


def test_two_at_once(node: Node) -> None:
    process = begun(node)
    told = node.site.nvhc_json("diag", "--level", "1", code=3)
    assert told["outcome"] == "not_run"
    assert "one is running already" in told["why"]
    assert running(node) is not None, "it is left in peace"
    assert "was ended" in node.site.nvhc("diag", "--stop", code=0), "whoever began it"
    out, _err = process.communicate(timeout=patient.PROCESS_S)
    assert json.loads(out)["outcome"] == "stopped"
    assert mark(node) == ""


# --- the administrator's mistakes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "gpu9"), "--gpus: gpu9 is no GPU of this node"),
        (("--level", "2", "--tests", "pcie"), "exclude each other"),
        (("--level", "2", "--require", "eud"), "--require: eud is not part of level 2"),
        (("--tests", ","), "no name of a test"),
        (("--tests", "memroy"), "unknown test memroy (did you mean memory?)"),
        (("--tests", "pcie;x"), "no name of a test"),
        (("--timeout", "soon"), "not a duration"),
        (("--timeout", "0s"), "no time for a diagnostic"),
        (("--parameter", "pcie"), "not TEST.NAME=VALUE"),
        (("--parameter", "pcie.x=1;y.z=2"), "not TEST.NAME=VALUE"),
        (("--require", "&"), "no name of a test"),
    ],
)
def test_mistakes(node: Node, words: tuple[str, ...], said: str) -> None:
    assert said in node.site.nvhc("diag", *words, code=2)
