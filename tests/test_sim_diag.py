"""The simulated node's diagnostics: what they find, how they go, and what stays when nobody waits for them any more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Optional

import pytest

from slurm_nvhc.catalog import diags
from slurm_nvhc.errors import InputError
from slurm_nvhc.model import diag
from slurm_nvhc.model.diag import Ask, Report, Result
from slurm_nvhc.sense.sim import diag as sim_diag
from slurm_nvhc.sense.sim import diag_output, diag_run
from slurm_nvhc.sense.sim.world import World

VERSIONS = ["3.3.9", "4.6.0"]


class Node:
    """A world file, and diagnostics on it."""

    def __init__(self, path: Path, version: str = "4.6.0", preset: str = "hgx-h100-8") -> None:
        self.path = str(path / "world.json")
        world = World.preset(preset)
        world.engine_version = version
        world.save(self.path)

    @property
    def world(self) -> World:
        return World.load(self.path)

    def do(self, op: str, **arguments: Any) -> None:
        with World.edit(self.path) as world:
            world.apply({"op": op, **arguments})

    def uuid(self, index: int) -> str:
        return self.world.gpus[index].identity.uuid

    def run(self, *tests: str, gpus: Optional[list[int]] = None, seconds: float = 10_000) -> Report:
        world = self.world
        uuids = [g.identity.uuid for i, g in enumerate(world.gpus) if gpus is None or i in gpus]
        return diag_run.run(self.path, Ask(tests or ("2",), tuple(uuids)), seconds)

    def runs(self) -> bool:
        world = self.world
        return world.diag.now(world.wall_ns) is not None

    def of(self, report: Report, index: int) -> dict[str, Result]:
        return {r.test: r for r in report.of(self.uuid(index))}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture(params=VERSIONS)
def any_node(tmp_path: Path, request: pytest.FixtureRequest) -> Node:
    return Node(tmp_path, request.param)


def statuses(results: dict[str, Result]) -> dict[str, str]:
    return {test: r.status for test, r in results.items()}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("level", diags.LEVELS)
@pytest.mark.parametrize("preset", ["hgx-h100-8", "v100-8", "custom"])
def test_a_healthy_node_passes(tmp_path: Path, version: str, level: str, preset: str) -> None:
    node = Node(tmp_path, version, preset)
    report = node.run(level)
    assert (report.outcome, report.why, report.version, report.through, report.left) == (diag.DONE, "", version, "sim", False)
    wanted = {t.name for t in diags.TESTS if t.level is not None and t.level <= int(level) and t.name != "cpu_eud"}
    if version == "3.3.9":
        wanted -= {"nvbandwidth", "nccl_tests"}
    for index in range(len(node.world.gpus)):
        told = statuses(node.of(report, index))
        # 3.3 says nothing of a GPU in its software checks that nothing is wrong with
        if version == "4.6.0":
            assert told == {t: "skip" if t in sim_diag.NOT_INSTALLED else "pass" for t in wanted}
        else:
            assert {t: s for t, s in told.items() if t != "software"} == {
                t: "skip" if t in sim_diag.NOT_INSTALLED else "pass" for t in wanted - {"software"}
            }
    assert not [r for r in report.results if r.status in (diag.FAIL, diag.WARN, diag.BUSY)]


def test_only_the_gpus_and_tests_that_were_asked_for(any_node: Node) -> None:
    report = any_node.run("pcie", "memory", gpus=[2, 5])
    told = {(r.test, r.entity) for r in report.results}
    assert told == {(t, any_node.uuid(i)) for t in ("memory", "pcie") for i in (2, 5)}
    assert (report.tests, report.missing) == (("pcie", "memory"), ())


def test_time_is_the_worlds(node: Node) -> None:
    before = node.world.wall_ns
    report = node.run("2")
    assert (report.started_ns, report.seconds) == (before, 120.0)
    assert node.world.wall_ns == report.ended_ns
    node.do("diag_plan", seconds=7)
    assert node.run("3").seconds == 7


def test_a_planted_result_is_that_gpus_and_that_tests(any_node: Node) -> None:
    any_node.do("diag_result", test="memory", gpu="g3", result="fail", error=58)
    any_node.do("diag_result", test="PCIe", gpu="g5", result="warn", error=3, text="too many replays")
    report = any_node.run("2")
    bad = {(r.test, r.entity): r for r in report.results if r.status not in (diag.PASS, diag.SKIP)}
    assert {key: r.status for key, r in bad.items()} == {
        ("memory", any_node.uuid(3)): "fail", ("pcie", any_node.uuid(5)): "warn",
    }  # fmt: skip
    assert [(e.code, e.severity) for e in bad["memory", any_node.uuid(3)].errors] == [(58, "isolate")]
    assert bad["pcie", any_node.uuid(5)].errors[0].text == "too many replays"
    # it is the card: a reset and a reboot change nothing, and another card has nothing of it
    any_node.do("gpu_reset", gpu="*")
    any_node.do("reboot")
    assert any_node.of(any_node.run("2"), 3)["memory"].status == "fail"
    any_node.do("swap", gpu="g3", uuid="GPU-11111111-2222-3333-4444-555555555555", serial="1")
    assert any_node.of(any_node.run("2"), 3)["memory"].status == "pass"


def test_pass_takes_a_result_away_and_the_last_one_counts(any_node: Node) -> None:
    any_node.do("diag_result", test="memory", gpu="*", result="fail", error=52)
    any_node.do("diag_result", test="memory", gpu="g1", result="warn", error=34)
    any_node.do("diag_result", test="memory", gpu="g2", result="pass")
    told = [any_node.of(any_node.run("memory"), i)["memory"].status for i in range(3)]
    assert told == ["fail", "warn", "pass"]
    any_node.do("diag_result", test="eud", gpu="g1", result="fail", error=95)
    any_node.do("diag_result", test="eud", gpu="g1", result="pass")
    assert any_node.of(any_node.run("eud"), 1)["eud"].status == "skip"


def test_a_result_of_no_gpu_is_the_nodes(any_node: Node) -> None:
    any_node.do("diag_result", test="pcie", result="fail", error=64, text="the switch did not answer")
    report = any_node.run("2")
    failed = [r for r in report.results if r.status == diag.FAIL]
    assert [(r.test, r.entity) for r in failed] == [("pcie", "node")]
    assert "the switch did not answer" in failed[0].errors[0].text
    assert any_node.of(report, 0)["pcie"].status == "pass"


@pytest.mark.parametrize(
    ("reading", "value", "status", "code"),
    [
        ("row_remap_pending", 1, "fail", 85),
        ("row_remap_failure", 1, "fail", 80),
        ("sram_threshold_exceeded", 1, "fail", 118),
        ("persistence_mode", 0, "warn", 29),
    ],
)
def test_software_sees_the_readings(any_node: Node, reading: str, value: int, status: str, code: int) -> None:
    any_node.do("set", target=f"g6.{reading}", value=value)
    report = any_node.run("1")
    seen = [r for r in report.results if r.status in (diag.FAIL, diag.WARN)]
    assert [(r.entity, r.status, [e.code for e in r.errors]) for r in seen] == [(any_node.uuid(6), status, [code])]


def test_software_on_a_v100(tmp_path: Path) -> None:
    node = Node(tmp_path, preset="v100-8")
    node.do("set", target="g1.retired_pages_pending", value=1)
    node.do("set", target="g2.retired_pages_sbe", value=60)
    node.do("set", target="g2.retired_pages_dbe", value=3)
    node.do("set", target="g3.retired_pages_sbe", value=62)
    report = node.run("1")
    assert {i: [e.code for e in node.of(report, i)["software"].errors] for i in range(4)} == {0: [], 1: [6], 2: [7], 3: []}


def test_rows_that_were_remapped_for_uncorrectable_errors(node: Node) -> None:
    node.do("set", target="g0.row_remap_pending", value=1)
    node.do("set", target="g0.remapped_rows_uncorrectable", value=2)
    assert [e.code for e in node.of(node.run("1"), 0)["software"].errors] == [84]


def test_a_lost_gpu(node: Node) -> None:
    node.do("lose", gpu="g4", engine_lists=True)
    told = node.of(node.run("2"), 4)
    assert statuses(told) == {"software": "fail", "memory": "skip", "pcie": "skip"}
    assert told["software"].errors[0].code == 120


def test_a_gpu_that_is_lost_while_it_runs(node: Node) -> None:
    node.do("schedule", at_s=60, change={"op": "lose", "gpu": "g4", "engine_lists": True})
    assert node.of(node.run("2"), 4)["software"].status == "fail"


def test_mig_is_skipped_above_level_1(any_node: Node) -> None:
    any_node.do("identify", gpu="g2", mig=True)
    told = statuses(any_node.of(any_node.run("2"), 2))
    told.pop("software", None)
    assert told == {"memory": "skip", "pcie": "skip"}


def test_a_gpu_in_use_is_busy_and_no_fault(any_node: Node) -> None:
    """R39."""
    any_node.do("set", target="g0.gpu_processes", value=1)
    report = any_node.run("2")
    assert {t: r.status for t, r in any_node.of(report, 0).items() if t != "software"} == {"memory": "busy", "pcie": "busy"}
    assert any_node.of(report, 1)["memory"].status == "pass"
    any_node.do("diag_result", test="memory", gpu="g0", result="fail", error=58)
    memory = any_node.of(any_node.run("2"), 0)["memory"]
    assert (memory.status, [e.code for e in memory.errors]) == ("fail", [51, 58])


def test_a_planted_result_hides_no_worse_one(any_node: Node) -> None:
    any_node.do("set", target="g1.row_remap_pending", value=1)
    any_node.do("diag_result", test="software", gpu="g1", result="warn", error=9)
    report = any_node.run("1")
    assert {(r.entity, r.status) for r in report.results if r.status in (diag.FAIL, diag.WARN)} == {(any_node.uuid(1), "fail")}


# -- how they go ------------------------------------------------------------------


def test_what_takes_too_long_is_stopped(node: Node) -> None:
    before = node.world.wall_ns
    report = node.run("2", seconds=50)
    assert (report.outcome, report.results, report.left, report.seconds) == (diag.STOPPED, (), False, 50.0)
    assert "50 s" in report.why
    assert node.world.wall_ns - before == 50_000_000_000
    assert not node.runs()


def test_one_that_hangs_stops_when_asked(node: Node) -> None:
    node.do("diag_plan", behaviour="hangs", seconds=1)
    report = node.run("1", seconds=30)
    assert (report.outcome, report.left, report.seconds) == (diag.STOPPED, False, 30.0)
    assert node.world.diag.running is None


def test_one_that_does_not_stop_is_left_and_in_the_way_of_the_next(node: Node) -> None:
    node.do("diag_plan", behaviour="stubborn")
    report = node.run("1", seconds=30)
    assert (report.outcome, report.left, [t.code for t in report.troubles]) == (diag.STOPPED, True, ["MON-DIAG"])
    stopped = diag_run.stop(node.path, 3)
    assert (stopped.known, stopped.ran, stopped.gone, [t.code for t in stopped.troubles]) == (True, True, False, ["MON-DIAG"])
    node.do("advance", seconds=100_000)
    assert node.runs()
    assert node.run("1").outcome == diag.NOT_STARTED
    again = Node(Path(node.path).parent)
    again.do("diag_plan", behaviour="stubborn")
    again.run("1", seconds=30)
    again.do("diag_plan")
    assert again.run("1").outcome == diag.DONE
    again.do("diag_plan", behaviour="stubborn")
    again.run("1", seconds=30)
    again.do("reboot")
    assert not again.runs()


def test_a_second_one_is_not_begun(node: Node) -> None:
    node.do("diag_plan", behaviour="running")
    report = node.run("1")
    assert (report.outcome, report.through, report.left) == (diag.NOT_STARTED, "", False)
    assert "already running" in report.why.lower()
    assert node.runs()
    assert diag_run.stop(node.path, 3) == diag.Stopped(True, ran=True, gone=True)
    assert diag_run.stop(node.path, 3) == diag.Stopped(True, gone=True)
    assert node.run("1").outcome == diag.DONE


def test_somebody_elses_ends_by_itself(node: Node) -> None:
    node.do("diag_plan", behaviour="running", seconds=60)
    node.do("advance", seconds=59)
    assert node.runs()
    node.do("advance", seconds=1)
    assert not node.runs()
    assert node.run("1").outcome == diag.DONE


@pytest.mark.parametrize("behaviour", ["absent", "crashes"])
def test_no_result_without_nvvs(any_node: Node, behaviour: str) -> None:
    any_node.do("diag_plan", behaviour=behaviour)
    report = any_node.run("2")
    assert report.outcome != diag.DONE
    assert (report.results, bool(report.why), any_node.runs()) == ((), True, False)


def test_the_engine_going_away_ends_it(node: Node) -> None:
    node.do("schedule", at_s=10, change={"op": "engine", "behaviour": "absent"})
    assert node.run("2").outcome == diag.STOPPED
    assert not node.runs()


def test_no_such_test_and_no_such_gpu(any_node: Node) -> None:
    assert any_node.run("cpu_eud").outcome != diag.DONE
    report = diag_run.run(any_node.path, Ask(("1",), ("GPU-0",)), 60)
    assert (report.outcome != diag.DONE, report.results) == (True, ())


def test_a_named_test_without_a_result_is_missing(tmp_path: Path) -> None:
    report = Node(tmp_path, "3.3.9").run("memory", "nvbandwidth")
    assert (report.outcome, report.missing) == (diag.DONE, ("nvbandwidth",))


def test_dcgmis_text_is_played(node: Node) -> None:
    text = {
        "DCGM GPU Diagnostic": {
            "version": "3.3.9",
            "test_categories": [{"category": "Hardware", "tests": [{"name": "GPU Memory", "results": [
                {"gpu_id": "0", "status": "Pass"}, {"gpu_id": "3", "status": "FAIL", "warnings": "memory is bad"},
            ]}]}],
        }
    }  # fmt: skip
    node.do("diag_plan", output=json.dumps(text), rc=226, seconds=20)
    report = node.run("2")
    assert (report.outcome, report.version, report.seconds) == (diag.DONE, "3.3.9", 20.0)
    assert {(r.entity, r.status) for r in report.results} == {(node.uuid(0), "pass"), (node.uuid(3), "fail")}
    node.do("diag_plan", output='{"Diagnostics of 2031": {}}')
    assert node.run("2").outcome == diag.FAILED


def test_dcgm_ids_are_not_places(any_node: Node) -> None:
    any_node.do("identify", gpu="g0", dcgm_id=3)
    any_node.do("identify", gpu="g3", dcgm_id=0)
    any_node.do("diag_result", test="memory", gpu="g3", result="fail", error=58)
    report = any_node.run("2")
    assert any_node.of(report, 3)["memory"].status == "fail"
    assert any_node.of(report, 0)["memory"].status == "pass"
    rows = [{"gpu_id": "3", "status": "Fail", "warnings": "bad"}]
    played = {"DCGM GPU Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [{"name": "Diagnostic", "results": rows}]}]}}
    any_node.do("diag_plan", output=json.dumps(played), rc=226)
    assert [r.entity for r in any_node.run("2").results] == [any_node.uuid(0)]


# -- while it runs -----------------------------------------------------------------

_RUN = """
import sys
from slurm_nvhc.model.diag import Ask
from slurm_nvhc.sense.sim import diag_run
print(diag_run.run(sys.argv[1], Ask(("1",), (sys.argv[2],)), 60).outcome, flush=True)
"""


def begin(node: Node) -> subprocess.Popen[str]:
    """A reader that takes real time, once the world says that it runs."""
    reader = subprocess.Popen([sys.executable, "-c", _RUN, node.path, node.uuid(0)], stdout=subprocess.PIPE, text=True)
    while not node.runs():
        assert reader.poll() is None
        time.sleep(0.02)
    return reader


def test_it_is_seen_while_it_runs_and_one_who_stops_it_ends_it(node: Node) -> None:
    node.do("diag_plan", real_seconds=60)
    reader, began = begin(node), node.world.wall_ns
    assert node.run("1").outcome == diag.NOT_STARTED
    assert diag_run.stop(node.path, 3).gone
    out, _ = reader.communicate(timeout=30)
    assert out.split() == [diag.STOPPED]
    assert node.world.wall_ns == began


def test_a_reader_that_is_killed_leaves_it_running_until_the_engines_limit(node: Node) -> None:
    node.do("diag_plan", real_seconds=60)
    reader = begin(node)
    os.kill(reader.pid, signal.SIGKILL)
    reader.communicate(timeout=30)
    assert node.runs()
    running = node.world.diag.running
    assert running is not None
    assert running.uuids == (node.uuid(0),)
    node.do("advance", seconds=61)
    assert not node.runs()


def test_real_time_passes_too(node: Node) -> None:
    node.do("diag_plan", real_seconds=0.3)
    began = time.monotonic()
    assert node.run("1").outcome == diag.DONE
    assert time.monotonic() - began >= 0.3
    node.do("diag_plan", seconds=0.1, real_seconds=60)
    assert node.run("1", seconds=0.2).outcome == diag.STOPPED


# -- the file, and mistakes -----------------------------------------------------------


def test_the_state_survives_the_file(node: Node) -> None:
    node.do("diag_result", test="memory", gpu="g3", result="fail", error=58, text="bad", severity="isolate")
    node.do("diag_plan", behaviour="running", seconds=60)
    world = node.world
    assert World.from_json(json.loads(json.dumps(world.to_json()))).to_json() == world.to_json()
    raw = world.to_json()
    for broken in ({**raw["diag"], "said": [[1]]}, {**raw["diag"], "plan": {"behaviour": "?"}}, {**raw["diag"], "running": {}}, {}):
        with pytest.raises(InputError, match="the world"):
            World.from_json({**raw, "diag": broken}, "the world")


@pytest.mark.parametrize(
    ("op", "arguments", "says"),
    [
        ("diag_result", {"test": "memry", "result": "fail"}, "did you mean memory"),
        ("diag_result", {"test": "memory", "result": "bad"}, "known: pass"),
        ("diag_result", {"test": "memory", "result": "fail", "gpu": "g9"}, "g9"),
        ("diag_result", {"test": "memory", "result": "fail", "error": -1}, "DCGM_FR_"),
        ("diag_result", {"test": "memory", "result": "fail", "severity": "awful"}, "isolate"),
        ("diag_plan", {"behaviour": "sleeps"}, "hangs"),
        ("diag_plan", {"seconds": -1}, "0 or more"),
        ("diag_plan", {"real_seconds": 4000}, "ten minutes"),
        ("diag_plan", {"rc": 300}, "0 to 255"),
        ("diag_plan", {"output": 5}, "text"),
    ],
)
def test_a_mistake_is_named(node: Node, op: str, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as told:
        node.do(op, **arguments)
    assert says in f"{told.value}"
    assert node.run("1").outcome == diag.DONE


def test_exit_statuses_are_dcgmis(node: Node) -> None:
    def rc() -> int:
        world = node.world
        return diag_output.answer(world, Ask(("2",), tuple(g.identity.uuid for g in world.gpus))).rc

    assert rc() == 0
    node.do("diag_result", test="pcie", gpu="g1", result="warn", error=3)
    assert rc() == 0
    node.do("diag_result", test="pcie", gpu="g1", result="fail", error=45)
    assert rc() == 226
    node.do("diag_result", test="memory", gpu="g2", result="fail", error=58)
    assert rc() == 205
