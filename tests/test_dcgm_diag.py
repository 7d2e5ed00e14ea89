"""Diagnostics in a DCGM engine: asked through its API and through dcgmi, stopped, and seen to be gone."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import patient
import pytest
from stub_node import BINDINGS, HERE, StubNode, put

from slurm_nvhc.model.diag import Ask, Report, Stopped, to_json
from slurm_nvhc.proc import child
from slurm_nvhc.sense import client, diag
from slurm_nvhc.sense.dcgm import diag_api, diag_command, diag_stop
from slurm_nvhc.sense.dcgm.connection import Address
from slurm_nvhc.sense.host import nvvs
from slurm_nvhc.sense.sim.world import World

SHAPES = Path(HERE) / "diag"
LONG_S = patient.READ_S
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may kill another's process")


class Node(StubNode):
    """The stand-in's node, and what runs on it as nvvs."""

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(gpu.identity.uuid for gpu in World.load(self.world).gpus)

    def is_engine(self, version: str) -> None:
        with World.edit(self.world) as world:
            world.engine_version = version

    def ask(self, *tests: str, **more: Any) -> Ask:
        return Ask(tests or ("2",), more.pop("uuids", self.uuids), **more)

    def run(self, *tests: str, seconds: float = LONG_S, **more: Any) -> Report:
        return diag.run("n1", self.engine, self.ask(*tests, **more), seconds)

    def stop(self, seconds: float = LONG_S) -> Stopped:
        return diag.stop("n1", self.engine, seconds)

    def short(self) -> float:
        """A limit for what will hang: a reader gets as far as the engine, at this machine's pace, and a second is left for it."""
        return diag.STOP_S + 1.0 + patient.limit_for(self.read)

    def asked(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.kept().get("calls", {}).get("diag", [])
        return found


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(str(tmp_path), monkeypatch)
    yield made
    made.end_diagnostic()


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + patient.PROCESS_S
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def failing(report: Report) -> set[tuple[str, str]]:
    return {(r.test, r.entity) for r in report.results if r.status == "fail"}


# -- through the API -------------------------------------------------------------------


@pytest.mark.parametrize(("version", "question"), [("4.6.0", 10), ("4.0.0", 10), ("3.3.9", 8), ("3.1.8", 7)])
def test_one_verdict_in_every_generation(node: Node, version: str, question: int) -> None:
    node.is_engine(version)
    node.do("diag_result", test="pcie", result="fail", gpu="g3", error=30, text="low bandwidth")
    report = node.run("2")
    assert (report.outcome, report.why, report.through, report.left) == ("done", "", "api", False)
    assert failing(report) == {("pcie", node.uuids[3])}
    assert {r.status for r in report.results} == {"pass", "fail"}
    assert {r.test for r in report.results} == {"software", "memory", "pcie"}
    ((error,),) = [r.errors for r in report.of(node.uuids[3]) if r.errors]
    assert (error.text, error.code, error.severity) == ("low bandwidth", 30, "triage")
    assert node.asked()[-1]["version"] == question
    assert report.version == version
    assert report.ended_ns >= report.started_ns > 0


def test_what_is_asked_reaches_the_engine(node: Node) -> None:
    report = node.run(
        "memory", "memtest", seconds=65, uuids=(node.uuids[2], node.uuids[5]), parameters=("memtest.test_duration=60", "a.b=c")
    )
    asked = node.asked()[-1]
    assert (asked["tests"], asked["uuids"]) == (["memory", "memtest"], ["2", "5"])
    assert asked["parameters"] == ["memtest.test_duration=60", "a.b=c"]
    assert 50 < asked["seconds"] <= 60  # the engine's own limit, should we die
    assert asked["group"] == 0x7FFFFFFA
    assert {r.entity for r in report.results} == {node.uuids[2], node.uuids[5]}
    assert report.missing == ()


def test_a_test_that_gives_no_result_is_missing_by_name(node: Node) -> None:
    node.do("diag_plan", output=(SHAPES / "4.6.0-pcie-gpu3.json").read_text(), rc=226)
    assert node.run("pcie", "memtest").missing == ("memtest",)


@pytest.mark.parametrize(
    ("code", "outcome", "word"),
    [
        (-39, "not_run", "another diagnostic"),
        (-52, "not_run", "nvvs"),
        (-58, "not_run", "no such test"),
        (-11, "stopped", "time limit"),
        (-53, "stopped", "killed"),
        (-66, "stopped", "stopped"),
        (-30, "failed", "-30"),
        (-1, "failed", "bad parameter"),
        (-21, "failed", "connection"),
    ],
)
def test_what_the_engine_returns(node: Node, code: int, outcome: str, word: str) -> None:
    node.stub(diag_rc=code, diag_system="nvvs said something")
    report = node.run()
    assert (report.outcome, report.results, report.left) == (outcome, (), False)
    assert word in report.why
    assert "nvvs said something" in report.why


def test_results_are_kept_where_the_call_says_that_a_test_failed(node: Node) -> None:
    """The bindings' own wrapper throws the answer away then."""
    structs = structures()
    answer = structs.c_dcgmDiagResponse_v12()
    answer.numTests = answer.numResults = answer.numErrors = 1
    answer.tests[0].pluginName, answer.tests[0].result = b"memory", 3
    answer.tests[0].numResults = answer.tests[0].numErrors = 1
    answer.results[0].entity.entityGroupId, answer.results[0].entity.entityId, answer.results[0].result = 1, 4, 3
    answer.errors[0].entity.entityGroupId, answer.errors[0].entity.entityId = 1, 4
    answer.errors[0].code, answer.errors[0].msg = 52, b"a faulty cell"
    for code in (0, -30, -51):
        parsed = diag_api.judged(code, answer, 12, {4: "GPU-4"})
        assert [(r.entity, r.status, r.errors[0].code) for r in parsed.results] == [("GPU-4", "fail", 52)]
        assert parsed.outcome == "done"


def test_an_error_of_the_run_itself_passes_nothing(node: Node) -> None:
    node.do("diag_result", test="memory", result="fail", gpu="g1", error=52)
    for version in ("4.6.0", "3.3.9"):
        node.is_engine(version)
        node.stub(diag_system="the EUD could not be started")
        report = node.run()
        assert (report.outcome, report.why) == ("failed", "the EUD could not be started")
        assert failing(report) == {("memory", node.uuids[1])}
        assert {r.status for r in report.results} == {"fail"}


@pytest.mark.parametrize("lie", ["index", "status", "counts", "empty"])
def test_an_answer_that_can_not_be_is_no_pass(node: Node, lie: str) -> None:
    node.stub(diag_lie=lie)
    report = node.run()
    assert report.outcome == "failed"
    assert "pass" not in {r.status for r in report.results}
    assert report.why


def test_what_the_node_can_not_be_asked(node: Node) -> None:
    stranger = "GPU-00000000-0000-0000-0000-000000000000"
    asked = ({"uuids": (node.uuids[0], stranger)}, {"parameters": ("p" * 2000,)})
    for report in (node.run("x" * 60), node.run(*["t"] * 30), *(node.run(**more) for more in asked)):
        assert (report.outcome, report.left) == ("not_run", False)
        assert report.why
    assert stranger in node.run(uuids=(stranger,)).why
    assert node.asked() == []


def test_busy_is_busy(node: Node) -> None:
    """R39."""
    node.do("set", target="g4.gpu_processes", value=1)
    report = node.run()
    assert {r.entity for r in report.results if r.status == "busy"} == {node.uuids[4]}
    assert failing(report) == set()


def structures() -> Any:
    """The stand-in's dcgm_structs, in this process."""
    import importlib.util

    sys.path.insert(0, BINDINGS)
    try:
        spec = importlib.util.spec_from_file_location("nvhc_stub_structs", os.path.join(BINDINGS, "dcgm_structs.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(BINDINGS)
    return module


def test_the_question_of_each_version() -> None:
    structs = structures()
    for number, where, group in ((10, "entityIds", 0x7FFFFFFA), (9, "entityIds", 0x7FFFFFFA), (8, "gpuList", 0x7FFFFFFF)):
        question = diag_api.fill(structs, number, Ask(("pcie", "memory"), ("u",), ("a.b=1", "c.d=2")), [1, 3], 12.2)
        assert question.version >> 24 == number
        assert (getattr(question, where), question.groupId) == (b"1,3", group)
        assert question.timeoutSeconds == 13
        assert [question.testNames[i].value for i in range(2)] == [b"pcie", b"memory"]
        assert [question.testParms[i].value for i in range(2)] == [b"a.b=1", b"c.d=2"]
        assert question.validate == 0
        assert len(question.testNames[0]) == 50
    old = diag_api.fill(structs, 7, Ask(("pcie", "memory"), ("u",)), [0], 12.2)  # its bindings confuse rows and columns
    field = type(old).testNames
    raw = ctypes.string_at(ctypes.addressof(old) + field.offset, field.size)
    assert (raw[:5], raw[50:57]) == (b"pcie\0", b"memory\0")
    assert diag_api.fill(structs, 10, Ask(("3",), ("u",)), [0], 1).validate == 3


def test_the_newest_version_that_the_bindings_have() -> None:
    structs = structures()
    only_8 = SimpleNamespace(c_dcgmRunDiag_v8=structs.c_dcgmRunDiag_v8, c_dcgmDiagResponse_v10=structs.c_dcgmDiagResponse_v10)
    assert diag_api.knows(structs)
    assert diag_api.knows(only_8)
    assert not diag_api.knows(SimpleNamespace(c_dcgmRunDiag_v8=structs.c_dcgmRunDiag_v8))


# -- the end of it -----------------------------------------------------------------------


def test_its_time_over_it_is_stopped_and_gone(node: Node) -> None:
    node.do("diag_plan", behaviour="hangs")
    report = node.run(seconds=node.short())
    assert (report.outcome, report.results, report.left, report.through) == ("stopped", (), False, "api")
    assert "time" in report.why
    assert node.nvvs == 0
    assert node.kept()["calls"]["stop_diag"] == [1]


def kill_its_reader(node: Node, monkeypatch: pytest.MonkeyPatch, seconds: float) -> Report:
    """Run a diagnostic, and kill the reader in the middle of it."""
    reports: list[Report] = []
    pids: list[int] = []
    start = child._start

    def started(*given: Any) -> Any:
        out = start(*given)
        pids.append(out[0])
        return out

    monkeypatch.setattr(child, "_start", started)
    asking = threading.Thread(target=lambda: reports.append(node.run(seconds=seconds)))
    asking.start()
    assert until(lambda: bool(node.nvvs))
    os.kill(pids[-1], signal.SIGKILL)
    asking.join(LONG_S)
    return reports[0]


@as_root
@pytest.mark.parametrize("hangs", [False, True])
def test_one_that_does_not_stop_is_killed(node: Node, hangs: bool) -> None:
    node.do("diag_plan", behaviour="stubborn")
    node.stub(stop_hangs=hangs)
    report = node.run(seconds=node.short())
    assert (report.outcome, report.left) == ("stopped", False)
    assert until(lambda: node.nvvs == 0)


def test_the_engine_runs_it_on_when_the_reader_dies(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.do("diag_plan", behaviour="hangs")
    report = kill_its_reader(node, monkeypatch, LONG_S)
    assert (report.outcome, report.results, report.left) == ("failed", (), True)
    assert {t.code for t in report.troubles} == {"MON-READER", "MON-DIAG"}
    assert node.nvvs  # whatever we do
    stopped = node.stop()
    assert (stopped.known, stopped.ran, stopped.gone, stopped.troubles) == (True, True, True, ())
    assert node.nvvs == 0


@as_root
@pytest.mark.parametrize("behaviour", ["absent", "hung"])
def test_what_a_dead_run_left_is_ended_without_the_engine(node: Node, monkeypatch: pytest.MonkeyPatch, behaviour: str) -> None:
    """R40: an engine that hangs, or that crashed and left its nvvs behind, keeps no GPU loaded for the next job."""
    seconds = node.short()
    node.do("diag_plan", behaviour="stubborn")
    assert kill_its_reader(node, monkeypatch, LONG_S).left
    node.do("engine", behaviour=behaviour)
    stopped = node.stop(seconds)
    assert (stopped.known, stopped.ran, stopped.gone, stopped.troubles) == (True, True, True, ())
    assert node.nvvs == 0


def test_its_own_limit_ends_what_nobody_waits_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.do("diag_plan", behaviour="hangs")
    assert kill_its_reader(node, monkeypatch, node.short()).left
    assert until(lambda: node.nvvs == 0)
    assert "stop_diag" not in node.kept()["calls"]


def test_somebody_elses_is_neither_asked_beside_nor_stopped(node: Node) -> None:
    pid = node.somebody_runs_one()
    report = node.run()
    assert (report.outcome, report.left) == ("not_run", False)
    assert "another diagnostic" in report.why
    assert node.asked() == []
    assert node.nvvs == pid


def test_nothing_to_stop(node: Node) -> None:
    assert node.stop() == Stopped(True, False, True)


def test_an_engine_whose_processes_nobody_sees(node: Node) -> None:
    """It runs in a container of its own, say: that nothing runs is then the engine's word, as far as it gives one."""
    for name in ("stat", "comm"):
        os.unlink(os.path.join(node.root, "proc/901", name))
    assert node.stop() == Stopped(True, False, True), "or a mark would stay for ever"
    assert node.run().outcome == "done"
    node.stub(stop_hangs=True)
    stopped = node.stop(node.short())
    assert (stopped.known, stopped.gone) == (False, False)
    assert [t.code for t in stopped.troubles] == ["MON-DIAG"]


def _stays(*pids: int) -> Any:
    return lambda *given: [nvvs.Process(pid, "nvvs", 1, 1) for pid in pids]


def _no_connection() -> Any:
    raise OSError("nobody listens")


def test_what_can_not_be_ended_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvvs, "running", _stays(4711))
    for permitted, word in ((True, "even when killed"), (False, "only root")):
        monkeypatch.setattr(nvvs, "kill", lambda *given, said=permitted: said)
        stopped = diag_stop.stop(diag_stop.Engine(_no_connection, True), time.monotonic() + 0.3)
        assert (stopped.known, stopped.ran, stopped.gone) == (True, True, False)
        (trouble,) = stopped.troubles
        assert trouble.code == "MON-DIAG"
        assert "4711" in trouble.detail
        assert word in trouble.detail
        assert "nobody listens" in trouble.detail


def test_an_engine_on_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvvs, "running", _stays(4711))  # of this host: none of its business
    monkeypatch.setattr(nvvs, "kill", lambda *given: pytest.fail("killed a process of another engine"))
    stopped = diag_stop.stop(diag_stop.Engine(_no_connection, False), time.monotonic() + 0.3)
    assert (stopped.known, stopped.gone) == (False, False)
    assert "another host" in stopped.troubles[0].detail


def test_an_engine_that_is_busy_with_it_is_not_called_hung(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It did answer: a policy that drains for a hung engine must not drain for a diagnostic that ran too long."""

    def cut(request: Any) -> child.Result:
        parts = [{"part": "clock", "wall_ns": 5, "boot_ns": 5, "boot_id": "b"}, {"part": "engine", "version": "4.6.0", "driver": "575"}]
        return child.Result(None, "", "", "timeout", "".join(json.dumps(part) + "\n" for part in parts))

    monkeypatch.setattr(client, "ask", cut)
    report = node.run("2")
    assert (report.outcome, report.left, [t.code for t in report.troubles]) == ("failed", True, ["MON-DIAG"])


@pytest.mark.parametrize(("tcp", "here"), [("127.0.0.1:5555", True), ("localhost:5555", True), ("[::1]:5555", True), ("gpu9:5555", False)])
def test_which_host_is_meant(tcp: str, here: bool) -> None:
    assert Address(tcp=tcp).here is here
    assert Address(unix="/run/x").here


# -- /proc ---------------------------------------------------------------------------------


def process(root: Path, pid: int, name: str, parent: int, state: str = "S", exe: str = "") -> None:
    put(str(root), f"proc/{pid}/stat", f"{pid} ({name}) {state} {parent} {' '.join('0' * 17)} {pid * 10} 0 0\n")
    if exe:
        os.symlink(exe, root / f"proc/{pid}/exe")


def test_the_diagnostics_of_an_engine_and_what_they_started(tmp_path: Path) -> None:
    process(tmp_path, 1, "systemd", 0)
    assert nvvs.running(str(tmp_path)) is None  # no engine is seen: nothing is known
    process(tmp_path, 5, "nv-hostengine", 1)
    assert nvvs.running(str(tmp_path)) == []
    process(tmp_path, 6, "nvvs", 5)
    process(tmp_path, 7, "nvbandwidth", 6)
    process(tmp_path, 8, "a) b (c", 7)
    process(tmp_path, 9, "nvvs", 1)  # somebody's own program of that name
    process(tmp_path, 10, "nvvs", 5, state="Z")
    process(tmp_path, 11, "bash", 5)
    found = nvvs.running(str(tmp_path))
    assert found is not None
    assert sorted(p.pid for p in found) == [6, 7, 8]


@pytest.mark.parametrize("path", ["/usr/libexec/datacenter-gpu-manager-4/nvvs", "/usr/share/nvidia-validation-suite/nvvs (deleted)"])
def test_one_that_outlived_its_engine(tmp_path: Path, path: str) -> None:
    process(tmp_path, 6, "nvvs", 1, exe=path)
    assert [p.pid for p in nvvs.running(str(tmp_path)) or ()] == [6]


def test_one_of_an_embedded_engine(tmp_path: Path) -> None:
    process(tmp_path, 6, "nvvs", os.getpid())
    assert nvvs.running(str(tmp_path)) is None
    assert [p.pid for p in nvvs.running(str(tmp_path), embedded=True) or ()] == [6]


def test_a_number_that_was_given_out_again_is_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(tmp_path, 6, "nvvs", 5)
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    assert nvvs.kill(nvvs.Process(6, "nvvs", 5, 60), str(tmp_path))
    assert nvvs.kill(nvvs.Process(6, "nvvs", 5, 61), str(tmp_path))
    assert nvvs.kill(nvvs.Process(7, "nvvs", 5, 70), str(tmp_path))
    assert killed == [6]


# -- through dcgmi -------------------------------------------------------------------------


class Dcgmi:
    def __init__(self, folder: Path) -> None:
        self.path, self.play = str(folder / "dcgmi"), str(folder / "play.json")
        script = f'#!/bin/sh\nexec {sys.executable} -I {HERE}/dcgmi.py {self.play} "$@"\n'
        Path(self.path).write_text(script)
        os.chmod(self.path, 0o755)

    def plays(self, name: str = "", **said: Any) -> None:
        output = (SHAPES / f"{name}.json").read_text() if name else ""
        Path(self.play).write_text(json.dumps({"output": output, **said}))

    @property
    def called(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(Path(self.play + ".called").read_text())
        except FileNotFoundError:
            return {}
        return found

    @property
    def lives(self) -> bool:
        try:
            return Path(f"/proc/{self.called['pid']}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except (KeyError, OSError):
            return False


@pytest.fixture
def dcgmi(tmp_path: Path) -> Dcgmi:
    return Dcgmi(tmp_path)


def by_command(node: Node, dcgmi: Dcgmi, *tests: str, seconds: float = LONG_S, **more: Any) -> Report:
    return node.run(*tests, seconds=seconds, through="dcgmi", dcgmi=dcgmi.path, **more)


@pytest.mark.parametrize("version", ["3.1.8", "3.3.9", "4.0.0", "4.6.0"])
def test_dcgmi_says_the_same_in_every_generation(node: Node, dcgmi: Dcgmi, version: str) -> None:
    node.is_engine(version)
    dcgmi.plays(f"{version}-pcie-gpu3", rc=226, err="CUDA_VISIBLE_DEVICES is set {\n")
    report = by_command(node, dcgmi, "2")
    assert (report.outcome, report.why, report.through, report.version) == ("done", "", "dcgmi", version)
    assert failing(report) == {("pcie", node.uuids[3])}


def test_how_dcgmi_is_called(node: Node, dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    dcgmi.plays("4.6.0-pcie-gpu3", rc=226)
    by_command(node, dcgmi, "pcie", "memory", seconds=65, uuids=node.uuids[:2], parameters=("pcie.max_pcie_replays=80", "memory.x=1"))
    said = dcgmi.called["arguments"]
    limit = said.index("-t") + 1
    assert 50 < int(said.pop(limit)) <= 60
    asked = ["diag", "-j", "-r", "pcie,memory", "-i", "0,1", "-p", "pcie.max_pcie_replays=80;memory.x=1", "-t"]
    assert said == [*asked, "--host", f"unix://{node.world}"]
    assert "CUDA_VISIBLE_DEVICES" not in dcgmi.called["environment"]


@pytest.mark.parametrize(("version", "limited"), [("3.1.8", False), ("3.3.7", False), ("3.3.8", True), ("4.6.0", True), ("", True)])
def test_the_time_limit_is_given_to_those_that_take_one(version: str, limited: bool) -> None:
    line = diag_command.argv(Ask(("2",), ("u",)), [3], Address(tcp="127.0.0.1:5555"), version, 7.2)
    assert line[:7] == ["/usr/bin/dcgmi", "diag", "-j", "-r", "2", "-i", "3"]
    assert line[7:] == [*(["-t", "8"] if limited else []), "--host", "127.0.0.1:5555"]


@pytest.mark.parametrize(
    ("said", "outcome", "word"),
    [
        ({"output": "Segmentation fault"}, "failed", "no JSON"),
        ({"rc": 204, "err": "nvvs: not found\n"}, "not_run", "nvvs: not found"),
        ({"name": "unknown-root"}, "failed", "5.0.0"),
        ({"name": "4.6.0-no-nvvs", "rc": 204}, "not_run", "NVVS binary"),
        ({"rc": 226, "output": ""}, "failed", "nothing"),
    ],
)
def test_what_dcgmi_may_say_instead(node: Node, dcgmi: Dcgmi, said: dict[str, Any], outcome: str, word: str) -> None:
    dcgmi.plays(**said)
    report = by_command(node, dcgmi)
    assert (report.outcome, report.results, report.left) == (outcome, (), False)
    assert word in report.why


def test_without_the_command(node: Node) -> None:
    report = node.run(through="dcgmi", dcgmi="/nowhere/dcgmi")
    assert (report.outcome, report.left) == ("not_run", False)
    assert "/nowhere/dcgmi" in report.why


def test_auto_takes_dcgmi_where_the_engine_speaks_another_language(node: Node, dcgmi: Dcgmi) -> None:
    node.stub(diag_speaks=[])
    dcgmi.plays("4.6.0-pcie-gpu3", rc=226)
    assert node.run(dcgmi=dcgmi.path).through == "dcgmi"
    refused = node.run(through="api", dcgmi=dcgmi.path)
    assert (refused.outcome, refused.through) == ("failed", "api")
    node.stub()
    assert node.run(dcgmi=dcgmi.path).through == "api"


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_dcgmi_that_hangs_is_ended_with_what_it_began(node: Node, dcgmi: Dcgmi, stubborn: bool) -> None:
    dcgmi.plays("4.6.0-pcie-gpu3", seconds=100, stubborn=stubborn)
    reports: list[Report] = []
    seconds = node.short() + 2  # for what is begun beside it
    asking = threading.Thread(target=lambda: reports.append(by_command(node, dcgmi, seconds=seconds)))
    asking.start()
    assert until(lambda: dcgmi.lives)
    node.somebody_runs_one()  # the engine runs it, while dcgmi waits
    asking.join(LONG_S)
    (report,) = reports
    assert (report.outcome, report.results, report.left, report.through) == ("stopped", (), False, "dcgmi")
    assert until(lambda: not dcgmi.lives)
    assert node.nvvs == 0


def test_a_dcgmi_whose_reader_dies_is_told_to_stop(node: Node, dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    dcgmi.plays("4.6.0-pcie-gpu3", seconds=100)
    asking = threading.Thread(target=lambda: by_command(node, dcgmi))
    asking.start()
    assert until(lambda: dcgmi.lives)
    with open(f"/proc/{dcgmi.called['pid']}/status", encoding="ascii") as file:
        reader = next(int(line.split()[1]) for line in file if line.startswith("PPid:"))
    os.kill(reader, signal.SIGKILL)
    asking.join(LONG_S)
    assert until(lambda: not dcgmi.lives)
    assert os.path.exists(dcgmi.play + ".term")  # on which the real one stops the diagnostic in the engine


# -- the hook's side -----------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [-1, 0, diag.STOP_S, diag.STOP_S + 0.5])
def test_without_the_time_it_is_not_begun(node: Node, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(client, "ask", lambda request: pytest.fail("a reader was started"))
    report = node.run(seconds=seconds)
    assert (report.outcome, report.left) == ("not_run", False)
    assert "budget" in report.why
    assert diag.run("n1", node.engine, Ask(("1",), ()), LONG_S).outcome == "not_run"


def test_an_engine_that_is_not_there(node: Node) -> None:
    node.do("engine", behaviour="absent")
    report = node.run()
    assert (report.outcome, report.left) == ("failed", False)
    assert [t.code for t in report.troubles] == ["MON-ENGINE-ABSENT"]
    assert node.stop() == Stopped(True, False, True), "its processes are seen, and none of them is a diagnostic"
    for name in ("stat", "comm"):
        os.unlink(os.path.join(node.root, "proc/901", name))
    stopped = node.stop(node.short())
    assert (stopped.known, stopped.gone) == (False, False)
    assert [t.code for t in stopped.troubles] == ["MON-DIAG"]


GOOD = to_json(Report("done", ("2",), ("GPU-1",), through="api", started_ns=1, ended_ns=2))
RESULT = {"test": "memory", "entity": "node", "status": "pass", "errors": [], "info": ""}


@pytest.mark.parametrize(
    "lie",
    [
        {"outcome": "fine"},
        {"outcome": None},
        {"results": 7},
        {"results": [7]},
        {"results": [{**RESULT, "status": "great"}]},
        {"results": [{**RESULT, "entity": "GPU 3"}]},
        {"results": [{**RESULT, "errors": [{"text": "x", "code": "52"}]}]},
        {"results": [RESULT] * 5000},
        {"started_ns": "now"},
        {"another": 1},
        {"troubles": [{"code": 1}]},
    ],
)
def test_a_report_that_is_none(node: Node, monkeypatch: pytest.MonkeyPatch, lie: dict[str, Any]) -> None:
    def answered(request: Any) -> child.Result:
        parts = [{"part": "clock", "wall_ns": 5, "boot_ns": 5, "boot_id": "b"}, {"part": "diag", **GOOD, **lie}, {"part": "done"}]
        return child.Result(0, "", "", "", "".join(json.dumps(part) + "\n" for part in parts))

    monkeypatch.setattr(client, "ask", answered)
    report = node.run()
    assert (report.outcome, report.results, report.left) == ("failed", (), True)
    assert "MON-ENGINE-LIES" in {t.code for t in report.troubles}


def test_what_a_report_says_is_cleaned_and_about_what_was_asked(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {**GOOD, "why": "a\nb" + "x" * 900, "results": [{**RESULT, "info": "c\x1bd"}], "uuids": ["GPU-other"], "tests": ["4"]}

    def answered(request: Any) -> child.Result:
        parts = [{"part": "clock", "wall_ns": 5, "boot_ns": 5, "boot_id": "b"}, {"part": "diag", **said}, {"part": "done"}]
        return child.Result(0, "", "", "", "".join(json.dumps(part) + "\n" for part in parts))

    monkeypatch.setattr(client, "ask", answered)
    report = node.run("2")
    assert (report.tests, report.uuids) == (("2",), node.uuids)
    assert report.why.startswith("a b")
    assert len(report.why) <= 300
    assert report.results[0].info == "c d"
