"""Diagnostics in hooks: when, on which GPUs, in which time; the mark of one that runs; what a dead run has left."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import patient
import pytest
from site_ import Site

from slurm_nvhc import diagnose, pipeline
from slurm_nvhc.context import Context, prepare
from slurm_nvhc.context import Site as Places
from slurm_nvhc.model import diag, tested
from slurm_nvhc.model.diag import Ask, Report
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.observation import read_now
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.proc.budget import Budget
from slurm_nvhc.record import lock


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Ask]:
    """What the engine was asked for."""
    out: list[Ask] = []
    real = diagnose.engine_diag.run

    def run(node: str, engine: Engine, ask: Ask, deadline_s: float) -> Report:
        out.append(ask)
        return real(node, engine, ask, deadline_s)

    monkeypatch.setattr(diagnose.engine_diag, "run", run)
    return out


def site(tmp_path: Path, **diagnostics: Any) -> Site:
    return Site(tmp_path, policy={"budgets": {"epilog": "600s", "prolog": "600s"}, "diagnostics": diagnostics})


def places(node: Site) -> Places:
    root = node.root
    return Places(str(node.config), str(root / "state"), str(root / "run"), str(node.slurm_conf))


def run(node: Site, hook: str, job: Optional[int] = None, gpus: str = "0,1", **more: str) -> pipeline.Result:
    result = pipeline.run_hook(hook, places(node), node.environment(job, gpus, **more), time.monotonic(), "n1")
    assert result is not None
    return result


def report(node: Site, hook: str) -> Optional[Report]:
    """What the ledger keeps of the last run's diagnostic."""
    last = node.last(hook)
    assert last is not None
    raw = last.outcome.get("diag")
    return None if raw is None else diag.from_json(raw)


def codes(result: pipeline.Result) -> dict[str, str]:
    return {f.code: f.verdict for f in result.observation.judgement.findings}


def uuid(node: Site, name: str) -> str:
    with node.edit() as world:
        return world.gpu(name).identity.uuid


def note(node: Site, key: str) -> str:
    with node.ledger() as ledger:
        return ledger.get(key)


def put(node: Site, key: str, text: str) -> None:
    with node.ledger() as ledger:
        ledger.put(key, text)


def running(node: Site) -> bool:
    with node.edit() as world:
        return world.diag.now(world.wall_ns) is not None


def context_of(node: Site, hook: str = "health_check", job: Optional[int] = None, gpus: str = "0,1") -> Context:
    return prepare(hook, places(node), node.environment(job, gpus), time.monotonic(), "n1")


def left_running(node: Site, gpus: tuple[str, ...] = ("g0",), tests: tuple[str, ...] = ("2",)) -> None:
    """A run of ours was killed in the middle."""
    uuids = tuple(uuid(node, name) for name in gpus)
    with node.edit() as world:
        world.diag_plan("running")
    put(node, diagnose.MARK, json.dumps(diagnose.Mark("epilog of job 4", 1, tests, uuids)._asdict()))


# --- when


def test_no_hook_runs_one_by_default(tmp_path: Path, asked: list[Ask]) -> None:
    node = site(tmp_path)
    with node.edit() as world:
        world.add("g0.link3.nvlink_replay", 10)
    run(node, "prolog", 5)
    with node.edit() as world:
        world.add("g0.link3.nvlink_replay", 100_000)
        world.advance(60)
    run(node, "epilog", 5, SLURM_JOB_EXIT_CODE="256")
    run(node, "health_check")
    assert asked == []
    assert report(node, "epilog") is None


def test_a_prolog_tests_the_job_s_gpus_and_a_job_s_gpus_only(tmp_path: Path, asked: list[Ask]) -> None:
    node = site(tmp_path, prolog=2)
    result = run(node, "prolog", 5, "2,3")
    two = (uuid(node, "g2"), uuid(node, "g3"))
    assert asked == [Ask(("2",), two)]
    found = report(node, "prolog")
    assert found is not None
    assert (found.outcome, found.tests, found.uuids, found.left) == (diag.DONE, ("2",), two, False)
    assert codes(result)["DIAG-PASS"] == "ok"
    assert result.verdict == "ok"
    assert note(node, diagnose.MARK) == ""
    known = tested.loads(note(node, f"diag:{two[0]}"))
    assert known is not None
    assert (known.status, known.tests, known.run) == ("pass", ("2",), "prolog of job 5")
    assert known.seconds == found.seconds > 100
    assert note(node, f"diag:{uuid(node, 'g0')}") == ""


def test_what_it_finds_acts_like_any_finding(tmp_path: Path) -> None:
    node = site(tmp_path, prolog=2)
    drained = node.slurm()
    with node.edit() as world:
        world.diag_result("memory", "fail", gpu="g1", error=58)
    result = run(node, "prolog", 5)
    assert codes(result)["DIAG-FAIL"] == "fail"
    assert result.fail_hook
    assert "DIAG-FAIL" in drained.read_text()
    assert result.observation.judgement.gpu_verdicts[uuid(node, "g1")] == "fail"


def test_what_it_said_is_among_the_evidence(tmp_path: Path) -> None:
    node = site(tmp_path, epilog=2, epilog_when="always")
    node.slurm()
    with node.edit() as world:
        world.diag_result("memory", "fail", gpu="g0", error=58)
    run(node, "epilog", 5)
    (bundle,) = (node.root / "state" / "n1" / "evidence").glob("*-DIAG-FAIL-*.json")
    told = json.loads(bundle.read_text())["diag"]
    assert diag.from_json(told) == report(node, "epilog")
    assert {r["status"] for r in told["results"] if r["test"] == "memory"} == {"fail", "pass"}


def test_an_epilog_tests_the_accused_gpu(tmp_path: Path, asked: list[Ask]) -> None:
    node = site(tmp_path, epilog=2)
    run(node, "prolog", 5)
    with node.edit() as world:
        world.advance(600)
    run(node, "epilog", 5)
    assert asked == [], "nothing accuses"
    run(node, "prolog", 6)
    with node.edit() as world:
        world.advance(600)
        world.add("g1.link3.nvlink_replay", 100_000)
        world.add("g5.link3.nvlink_replay", 100_000)
    result = run(node, "epilog", 6)
    assert asked == [Ask(("2",), (uuid(node, "g1"),))]
    assert {"DIAG-PASS", "NVL-STORM"} <= set(codes(result)), "a pass clears nothing"


def test_an_observed_rule_accuses_too_and_observe_mode_changes_nothing(tmp_path: Path, asked: list[Ask]) -> None:
    node = Site(tmp_path, policy={"mode": "observe", "budgets": {"epilog": "600s"}, "diagnostics": {"epilog": 2}})
    node.slurm()
    run(node, "prolog", 5)
    with node.edit() as world:
        world.advance(600)
        world.add("g1.link3.nvlink_replay", 100_000)
        world.diag_result("memory", "fail", gpu="g1", error=58)
    result = run(node, "epilog", 5)
    assert [ask.uuids for ask in asked] == [(uuid(node, "g1"),)]
    assert codes(result)["DIAG-FAIL"] == "fail"
    assert not (tmp_path / "drained").exists()


def test_after_a_job_that_failed(tmp_path: Path, asked: list[Ask]) -> None:
    node = site(tmp_path, epilog="memory", epilog_when="failed", exit_codes=[3])
    for job, status in ((5, "0"), (6, "256"), (7, "768")):
        run(node, "epilog", job, SLURM_JOB_EXIT_CODE=status)
    assert [ask.tests for ask in asked] == [("memory",)]
    run(node, "epilog", 8)
    assert len(asked) == 1, "an exit code that nobody knows"


def test_jobs_without_gpus_and_a_pause(tmp_path: Path, asked: list[Ask]) -> None:
    node = site(tmp_path, prolog=1, epilog=1, epilog_when="always")
    run(node, "prolog", 5, "")
    run(node, "epilog", 5, "")
    node.nvhc("pause", "--until", "1h", "--why", "engine")
    run(node, "prolog", 6)
    run(node, "epilog", 6)
    assert asked == []


def test_an_engine_that_does_not_answer_is_asked_for_nothing(tmp_path: Path, asked: list[Ask]) -> None:
    node = site(tmp_path, prolog=1)
    run(node, "prolog", 5)
    with node.edit() as world:
        world.engine("absent")
    run(node, "prolog", 6)
    assert len(asked) == 1
    assert report(node, "prolog") is None


# --- ground


def test_a_gpu_that_another_job_uses_is_left_alone(tmp_path: Path, asked: list[Ask]) -> None:
    """R39"""
    node = site(tmp_path, prolog=2)
    with node.edit() as world:
        world.set("g0.gpu_processes", 1)
    result = run(node, "prolog", 5, "1")
    assert [ask.uuids for ask in asked] == [(uuid(node, "g1"),)]
    assert result.verdict == "ok"
    result = run(node, "prolog", 6, "0,1")
    assert [ask.uuids for ask in asked[1:]] == [(uuid(node, "g1"),)]
    found = report(node, "prolog")
    assert found is not None
    assert {r.status for r in found.of(uuid(node, "g0"))} == {diag.BUSY}
    assert result.observation.judgement.gpu_verdicts[uuid(node, "g0")] == "unknown"
    assert result.observation.judgement.gpu_verdicts[uuid(node, "g1")] == "ok"
    assert node.calls() == []
    run(node, "prolog", 7, "0")
    assert len(asked) == 2
    found = report(node, "prolog")
    assert found is not None
    assert (found.outcome, found.why) == (diag.NOT_STARTED, "not run: gpu0 busy: 1 processes compute on it")


def test_processes_that_can_not_be_counted_are_not_none(tmp_path: Path, asked: list[Ask]) -> None:
    node = site(tmp_path, prolog=2)
    with node.edit() as world:
        world.set("g0.gpu_processes", "not_permitted")
    run(node, "prolog", 5, "0")
    assert asked == []


def test_level_1_loads_nothing_and_runs_beside_processes(tmp_path: Path, asked: list[Ask]) -> None:
    node = site(tmp_path, prolog=1)
    (tmp_path / "gres.conf").write_text("")
    with node.edit() as world:
        world.set("g0.gpu_processes", 1)
    run(node, "prolog", 5)
    assert [(ask.tests, len(ask.uuids)) for ask in asked] == [(("1",), 2)]


def test_gpus_that_are_not_certain_are_not_loaded(tmp_path: Path, asked: list[Ask]) -> None:
    node = site(tmp_path, prolog=2)
    (tmp_path / "gres.conf").write_text("")
    result = run(node, "prolog", 5)
    assert asked == []
    assert codes(result)["DIAG-NO-RESULT"] == "unknown"
    assert result.observation.given.diag is not None
    assert "which GPUs the job has is not certain" in result.observation.given.diag.why
    run(node, "prolog", 6, "0-7")
    assert len(asked) == 1, "all GPUs of the node are certain"
    with node.edit() as world:
        world.lose("g7", engine_lists=False)
    run(node, "prolog", 7, "0-6")
    assert len(asked) == 1, "the one that is gone may be among the job's, and one that is here somebody else's"


def test_mig_gpus_are_skipped(tmp_path: Path, asked: list[Ask]) -> None:
    node = site(tmp_path, prolog=2)
    with node.edit() as world:
        world.identify("g0", mig=True)
    result = run(node, "prolog", 5, "0")
    assert asked == []
    assert "DIAG-NO-RESULT" not in codes(result)


def test_an_excluded_gpu_does_not_make_the_job_wait(tmp_path: Path, asked: list[Ask]) -> None:
    narrow = {"enabled": True, "jobs": "any"}
    node = Site(tmp_path, policy={"budgets": {"prolog": "600s"}, "narrow": narrow, "diagnostics": {"prolog": 2}})
    run(node, "health_check")
    node.nvhc("gpu", "exclude", "gpu0", "--why", "test")
    run(node, "prolog", 5)
    assert [ask.uuids for ask in asked] == [(uuid(node, "g1"),)]


# --- time


def test_what_does_not_fit_is_not_run_and_said(tmp_path: Path, asked: list[Ask]) -> None:
    """R56"""
    node = Site(tmp_path, policy={"budgets": {"prolog": "60s"}, "diagnostics": {"prolog": 2}})
    result = run(node, "prolog", 5)
    assert asked == []
    assert not result.fail_hook
    assert codes(result) == {"DIAG-NO-RESULT": "unknown"}
    found = report(node, "prolog")
    assert found is not None
    assert found.outcome == diag.NOT_STARTED
    assert found.why.startswith("not run (budget): level 2 usually takes 300 s, ")
    left = int(found.why.split(", ")[1].split()[0])
    assert 0 < left <= 60 * 0.75 - diagnose.STOP_S - diagnose.LOOK_S, "the share for acting, the stop and a second look are kept"


def test_what_it_took_here_counts_more_than_what_is_usual(tmp_path: Path, asked: list[Ask]) -> None:
    node = Site(tmp_path, policy={"budgets": {"prolog": "100s"}, "diagnostics": {"prolog": 2}})
    context = context_of(node)
    quick = tested.Tested(1, ("2",), "pass", 40.0, "nvhc diag", took={"level 2": 40.0})
    for name in ("g0", "g1"):
        put(node, f"diag:{uuid(node, name)}", tested.dumps(quick))
    ask = Ask(("2",), (uuid(node, "g0"), uuid(node, "g1")))
    assert diagnose.usual_s(context, ask) == 50.0
    put(node, f"diag:{ask.uuids[1]}", tested.dumps(quick._replace(took={"level 1": 5.0, "level 2": 60.0})))
    assert diagnose.usual_s(context, ask) == 75.0, "the slowest"
    assert diagnose.usual_s(context, ask._replace(tests=("3",))) == 1800.0, "nor does another test"
    put(node, f"diag:{ask.uuids[1]}", tested.dumps(quick))
    with node.edit() as world:
        world.diag_plan(seconds=30)
    run(node, "prolog", 5)
    assert len(asked) == 1


@pytest.mark.parametrize(("hook", "tests", "kept"), [("prolog", "2", diagnose.LOOK_S), ("prolog", "1", 0.0), ("epilog", "2", 0.0)])
def test_a_prolog_keeps_time_to_read_the_node_again(tmp_path: Path, hook: str, tests: str, kept: float) -> None:
    """Else a test that had to be stopped would lay what it did to the counters to the job."""
    context = context_of(site(tmp_path), hook, 5)._replace(budget=Budget(100.0, lambda: 0.0))
    assert diagnose.LOOK_S > 0
    assert diagnose._time_s(context, Ask((tests,), ("GPU-x",))) == 75.0 - kept


def test_one_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    node = Site(tmp_path, policy={"budgets": {"prolog": "100s"}, "diagnostics": {"prolog": "memory"}})
    put(node, f"diag:{uuid(node, 'g0')}", tested.dumps(tested.Tested(1, ("memory",), "pass", 10.0, "x", took={"memory": 10.0})))
    with node.edit() as world:
        world.diag_plan("hangs")
    result = run(node, "prolog", 5, "0")
    found = report(node, "prolog")
    assert found is not None
    assert (found.outcome, found.left) == (diag.STOPPED, False)
    assert not running(node)
    assert note(node, diagnose.MARK) == ""
    assert codes(result)["DIAG-NO-RESULT"] == "unknown"
    assert not result.fail_hook

def test_different_models_are_one_report(tmp_path: Path, asked: list[Ask]) -> None:
    models = {"NVIDIA A100*": {"diagnostics": {"prolog": 2}}}
    node = Site(tmp_path, policy={"budgets": {"prolog": "100s"}, "diagnostics": {"prolog": 1}, "models": models})
    with node.edit() as world:
        world.identify("g1", model="NVIDIA A100-SXM4-40GB")
    run(node, "prolog", 5)
    one, two = uuid(node, "g0"), uuid(node, "g1")
    assert asked == [Ask(("1",), (one,))]
    found = report(node, "prolog")
    assert found is not None
    assert (found.outcome, found.tests, found.uuids) == (diag.NOT_STARTED, ("1", "2"), (one, two))
    assert found.of(one), "what the one said is kept"
    assert "level 2 usually takes 300 s" in found.why


# --- the job's start comes after a test


def test_what_a_prolog_s_test_does_to_the_counters_is_not_the_job_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = site(tmp_path, prolog=2)
    before = diagnose.engine_diag.run

    def loads(name: str, engine: Engine, ask: Ask, deadline_s: float) -> Report:
        with node.edit() as world:
            world.add("g0.thermal_violation_ns", 10**9)
        return before(name, engine, ask, deadline_s)

    monkeypatch.setattr(diagnose.engine_diag, "run", loads)
    result = run(node, "prolog", 5)
    with node.ledger() as ledger:
        kept = ledger.baseline("5")
    assert kept is not None
    assert kept[1].gpus is not None
    assert kept[1].wall_ns == result.observation.snapshot.wall_ns
    assert kept[1].gpus[uuid(node, "g0")].readings["thermal_violation_ns"] >= 10**9
    assert result.observation.given.diag is not None
    assert kept[1].wall_ns >= result.observation.given.diag.ended_ns
    last = node.last("prolog")
    assert last is not None
    assert last.id == kept[0], "one run of it is kept"


def test_what_was_logged_before_the_test_is_still_told(tmp_path: Path) -> None:
    node = site(tmp_path, prolog=2)
    run(node, "prolog", 4)
    with node.edit() as world:
        world.advance(60)
        world.xid("g0", 94)
    result = run(node, "prolog", 5)
    assert result.observation.given.diag is not None
    assert [event.code for event in result.observation.snapshot.events] == [94], "the second look reads the log from where the first did"


def test_nothing_waits_for_a_test_once_the_job_can_not_run_here(tmp_path: Path, asked: list[Ask]) -> None:
    node = site(tmp_path, prolog=2)
    node.slurm()
    with node.edit() as world:
        world.set("g5.row_remap_failure", 1)
    assert not run(node, "prolog", 4).fail_hook
    assert len(asked) == 1, "not this job's"
    assert run(node, "prolog", 5, "4,5").fail_hook
    assert len(asked) == 1


def test_the_start_is_kept_before_a_test_that_may_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = site(tmp_path, prolog=2)

    def dies(*_given: Any) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr(diagnose.engine_diag, "run", dies)
    with pytest.raises(KeyboardInterrupt):
        run(node, "prolog", 5)
    with node.ledger() as ledger:
        assert ledger.baseline("5") is not None
    assert json.loads(note(node, diagnose.MARK))["by"] == "prolog of job 5"


def test_a_fault_of_our_own_costs_no_protection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = site(tmp_path, epilog=2)
    drained = node.slurm()
    run(node, "prolog", 5)
    with node.edit() as world:
        world.advance(600)
        world.set("g1.row_remap_failure", 1)
    monkeypatch.setattr(diagnose, "_of_job", lambda *given: 1 / 0)
    run(node, "epilog", 5)
    assert "MEM-REMAP-FAILED" in drained.read_text()


# --- the mark, and what a dead run has left


@pytest.mark.parametrize("hook", ["prolog", "epilog", "health_check"])
def test_the_next_hook_ends_what_a_dead_run_has_left(tmp_path: Path, hook: str) -> None:
    node = site(tmp_path)
    left_running(node, gpus=("g7",))
    result = run(node, hook, None if hook == "health_check" else 5)
    assert not running(node)
    assert note(node, diagnose.MARK) == ""
    assert "MON-DIAG" not in codes(result)


def test_what_can_not_be_ended_is_a_monitor_finding_and_tried_again(tmp_path: Path) -> None:
    node = site(tmp_path)
    drained = node.slurm()
    left_running(node)
    with node.edit() as world:
        world.diag.running = world.diag.running._replace(stubborn=True)
    result = run(node, "prolog", 5)
    assert codes(result)["MON-DIAG"] == "unknown"
    assert not result.fail_hook
    assert not drained.exists()
    assert set(result.observation.judgement.gpu_verdicts.values()) == {"ok"}, "it convicts no GPU"
    assert note(node, diagnose.MARK) != ""
    with node.edit() as world:
        world.diag.running = None
    assert "MON-DIAG" not in codes(run(node, "prolog", 6))
    assert note(node, diagnose.MARK) == ""


def test_a_living_run_of_others_goes_on(tmp_path: Path) -> None:
    node = site(tmp_path, epilog=2, epilog_when="always")
    left_running(node, gpus=("g7",))
    with lock.held(str(tmp_path / "state/n1" / diagnose.LOCK), 1.0) as ours:
        assert ours
        result = run(node, "prolog", 5)
        assert running(node)
        assert note(node, diagnose.MARK) != ""
        assert result.verdict == "ok"
        run(node, "health_check")
        assert running(node)
        run(node, "epilog", 5)
        assert running(node), "one at a time"
    found = report(node, "epilog")
    assert found is not None
    assert (found.outcome, found.why) == (diag.NOT_STARTED, "not run: one is running already, begun by epilog of job 4")


@pytest.mark.parametrize("hook", ["prolog", "epilog"])
def test_no_job_runs_beside_a_test_of_its_gpus(tmp_path: Path, hook: str) -> None:
    """Somebody resumed a node on which `nvhc diag --level 4` runs; or it goes on when its allocation is over."""
    node = site(tmp_path)
    run(node, "health_check")
    left_running(node, gpus=("g1", "g7"), tests=("4",))
    with lock.held(str(tmp_path / "state/n1" / diagnose.LOCK), 1.0) as ours:
        assert ours
        run(node, hook, 5)
        assert not running(node)
        left_running(node, gpus=("g1",), tests=("1",))
        run(node, hook, 5)
        assert running(node), "level 1 is in nobody's way"
        left_running(node, gpus=("g7",), tests=("4",))
        (tmp_path / "gres.conf").write_text("")
        run(node, hook, 5)
        assert not running(node), "it can not be told whether it is this job's"


def test_somebody_else_s_is_let_run(tmp_path: Path) -> None:
    """An administrator's own `dcgmi diag`: the engine refuses a second one, and nothing is known of the GPU that was not before."""
    node = site(tmp_path, prolog=1)
    known = tested.dumps(tested.Tested(1, ("1",), "pass", 4.0, "before", {"1": 1}))
    put(node, f"diag:{uuid(node, 'g0')}", known)
    with node.edit() as world:
        world.diag_plan("running")
    result = run(node, "prolog", 5, "0")
    found = report(node, "prolog")
    assert found is not None
    assert (found.outcome, codes(result)) == (diag.NOT_STARTED, {"DIAG-NO-RESULT": "unknown"})
    assert running(node)
    assert (note(node, diagnose.MARK), note(node, f"diag:{uuid(node, 'g0')}")) == ("", known)


def test_a_mark_that_can_not_be_read_is_one(tmp_path: Path) -> None:
    node = site(tmp_path)
    left_running(node)
    put(node, diagnose.MARK, "{")
    run(node, "health_check")
    assert not running(node)
    assert note(node, diagnose.MARK) == ""


def test_a_run_ends_what_was_left_before_it_begins(tmp_path: Path) -> None:
    node = site(tmp_path)
    context = context_of(node)
    shot = read_now(context)
    left_running(node)
    found = diagnose.run(context, shot, Ask(("1",), (uuid(node, "g0"),)), 60.0, "nvhc diag by ada")
    assert found.outcome == diag.DONE
    with node.edit() as world:
        world.diag_plan("running")
        world.diag.running = world.diag.running._replace(stubborn=True)
    put(node, diagnose.MARK, "{}")
    found = diagnose.run(context, shot, Ask(("1",), (uuid(node, "g0"),)), 60.0, "nvhc diag by ada")
    assert (found.outcome, [t.code for t in found.troubles]) == (diag.NOT_STARTED, ["MON-DIAG"])
    assert "begun by an earlier run could not be ended" in found.why


def test_one_that_does_not_stop_keeps_its_mark(tmp_path: Path) -> None:
    node = site(tmp_path)
    context = context_of(node)
    with node.edit() as world:
        world.diag_plan("stubborn")
    found = diagnose.run(context, read_now(context), Ask(("1",), (uuid(node, "g0"),)), 20.0, "nvhc diag by ada")
    assert found.left
    assert json.loads(note(node, diagnose.MARK))["by"] == "nvhc diag by ada"


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_a_reader_that_died_leaves_none_where_there_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    node = site(tmp_path)
    context = context_of(node)
    shot = read_now(context)

    def dies(name: str, engine: Engine, ask: Ask, deadline_s: float) -> Report:
        with node.edit() as world:
            world.diag_plan("running")
        return Report(diag.FAILED, ask.tests, ask.uuids, why="the reader died", left=True, troubles=(Trouble("MON-DIAG", "engine", ""),))

    monkeypatch.setattr(diagnose.engine_diag, "run", dies)
    found = diagnose.run(context, shot, Ask(("2",), (uuid(node, "g0"),)), seconds, "nvhc diag")
    assert found.outcome == diag.FAILED
    assert found.left is running(node) is bool(note(node, diagnose.MARK)) is (seconds == 0)
    assert bool(found.troubles) is found.left, "what was ended does not run still"


def test_the_doctor_tells_one_that_was_left(tmp_path: Path) -> None:
    node = site(tmp_path)
    left_running(node)
    said = node.nvhc_json("doctor", code=None)
    (line,) = [row for row in said["lines"] if row["check"] == "engine.diag"]
    assert line["verdict"] == "warn"
    with lock.held(str(tmp_path / "state/n1" / diagnose.LOCK), 1.0):
        said = node.nvhc_json("doctor", code=None)
    (line,) = [row for row in said["lines"] if row["check"] == "engine.diag"]
    assert (line["verdict"], "begun by epilog of job 4" in line["found"]) == ("ok", True)
    assert note(node, diagnose.MARK) != "", "it only looks"


def test_what_can_not_be_marked_is_not_begun(tmp_path: Path, asked: list[Ask], monkeypatch: pytest.MonkeyPatch) -> None:
    node = site(tmp_path)
    context = context_of(node)
    monkeypatch.setattr(diagnose, "_put", lambda *given: False)
    found = diagnose.run(context, read_now(context), Ask(("1",), (uuid(node, "g0"),)), 60.0, "nvhc diag")
    assert (found.outcome, asked) == (diag.NOT_STARTED, [])


# --- as processes: killed in the middle, and two at once


class Started:
    """A hook as a process of its own, in the middle of its diagnostic."""

    def __init__(self, node: Site, hook: str, job: int, gpus: str) -> None:
        self.node = node
        env = node.environment(job, gpus)
        self.process = subprocess.Popen(node.arguments(hook), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        until(lambda: running(node), "the diagnostic runs")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(patient.PROCESS_S)


@pytest.fixture
def slow(tmp_path: Path) -> Site:
    """A node whose diagnostics take real time."""
    node = site(tmp_path, prolog="memory", epilog="memory", epilog_when="always")
    run(node, "health_check")
    with node.edit() as world:
        world.diag_plan(seconds=100, real_seconds=patient.PROCESS_S)
    return node


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_hook_that_is_killed_leaves_it_to_the_next_one(slow: Site, number: int) -> None:
    """R56: slurmd kills a hook that takes too long, and the engine goes on."""
    hook = Started(slow, "prolog", 5, "0,1")
    readers = children(hook.process.pid)
    assert readers
    assert hook.end(number) == (-number if number == signal.SIGKILL else 0)
    until(lambda: not any(map(alive, readers)), "no child is left")
    assert running(slow), "as a real engine does"
    assert json.loads(note(slow, diagnose.MARK))["by"] == "prolog of job 5"
    with slow.ledger() as ledger:
        assert ledger.baseline("5") is not None
    later_ones_are_quick(slow)
    assert slow.hook("epilog", 5, "0,1").returncode == 0
    assert not running(slow)
    assert note(slow, diagnose.MARK) == ""
    found = report(slow, "epilog")
    assert found is not None
    assert found.outcome == diag.DONE, "and can do its own"


def test_two_at_once(slow: Site) -> None:
    first = Started(slow, "epilog", 5, "0,1")
    slow.hook("prolog", 6, "2,3")
    assert running(slow), "the neighbour's test goes on"
    found = report(slow, "prolog")
    assert found is not None
    assert (found.outcome, found.why) == (diag.NOT_STARTED, "not run: one is running already, begun by epilog of job 5")
    later_ones_are_quick(slow)
    slow.hook("prolog", 7, "1,4")
    assert not running(slow), "but not into a job on its own GPUs"
    assert first.process.wait(patient.PROCESS_S) == 0
    found = report(slow, "epilog")
    assert found is not None
    assert (found.outcome, found.left) == (diag.STOPPED, False)
    assert note(slow, diagnose.MARK) == ""


def later_ones_are_quick(node: Site) -> None:
    with node.edit() as world:
        left = world.diag.running
        world.diag_plan(seconds=1)
        world.diag.running = left


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + patient.PROCESS_S
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and parent(int(p.name)) == pid]


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
