"""A fault of our own in the middle of a run costs that one thing, not the protection that was decided before or comes after."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from act_fakes import Site as Played
from act_fakes import decision, kinds, proposal
from site_ import Site

from slurm_nvhc import pipeline
from slurm_nvhc.act import drains, execute
from slurm_nvhc.act import steps as st
from slurm_nvhc.act.plan import plan
from slurm_nvhc.act.steps import Step
from slurm_nvhc.hooks import __main__ as main

OF_JOB = decision(proposal("drain", of_job=True))
DRAINS = {
    "defaults": False,
    "rules": {"remap": {"finding": "MEM-REMAP-FAILED", "field": "row_remap_failure", "fail": {"value_is": 1}, "action": "drain"}},
}


def breaks(*_arguments: Any) -> Any:
    raise KeyError("a fault of our own")


def broken(monkeypatch: pytest.MonkeyPatch, *steps: str) -> None:
    monkeypatch.setattr(execute, "_ACTIONS", {**execute._ACTIONS, **dict.fromkeys(steps, breaks)})


def test_a_step_that_breaks_does_not_keep_the_others_from_being_done(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, st.ACCEPT)
    site = Played()
    inp = site.input(OF_JOB, hook="prolog")
    outcome = site.do((Step(st.ACCEPT, idents=("x|79|1",)), *plan(inp)), inp)
    assert site.slurm.state.out
    assert outcome.fail_hook
    assert [t.code for t in outcome.troubles] == ["MON-INTERNAL"]
    assert not outcome.done[0].ok


def test_a_drain_that_breaks_fails_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm would drain the node itself, with a reason that says nothing, and hold the job."""
    broken(monkeypatch, st.DRAIN)
    site = Played()
    steps, outcome = site.run(OF_JOB, hook="prolog")
    assert kinds(steps)[-1] == st.FAIL_JOB
    assert not outcome.fail_hook
    assert outcome.deeds == ()


def test_no_step_of_a_plan_is_lost_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drains.blast, "room", breaks)
    site = Played()
    _steps, outcome = site.run(OF_JOB, hook="prolog")
    assert not outcome.fail_hook
    assert [i.kind for i in site.ledger.pending] == ["drain"], "the next hook tries again"


@pytest.mark.parametrize("name", ["_keep_start", "_count_looks", "_keep_watch", "_user_report", "_remember", "_log"])
def test_what_was_decided_is_kept_when_writing_it_down_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    site = Site(tmp_path)
    site.write_policy(DRAINS)
    reason = site.slurm()
    with site.edit() as world:
        world.set("g0.395", 1)
    lines: list[str] = []
    assert callable(getattr(pipeline, name))
    monkeypatch.setattr(pipeline, name, breaks)
    monkeypatch.setattr(pipeline.log, "warning", lines.append)
    monkeypatch.setattr(main, "_STARTED", time.monotonic())  # the budget of a process that begins now
    monkeypatch.setattr(main, "_limit", lambda seconds: None)  # no alarm in the test's own process
    monkeypatch.setattr(main.signal, "signal", lambda *_arguments: None)
    monkeypatch.setattr(main.os, "environ", site.environment(8812))
    code = main.main(site.arguments("prolog")[4:])
    assert "MEM-REMAP-FAILED" in reason.read_text()
    assert code == main.FAIL_ON_PURPOSE, "the job does not start on it"
    assert any("MON-INTERNAL" in line and "KeyError" in line for line in lines)


def test_nobody_waits_for_a_program_of_the_site(tmp_path: Path) -> None:
    """The node's lock is free while it runs: the prolog of another job would spend half of its time on it."""
    site = Site(tmp_path)
    program = tmp_path / "on_drain"
    program.write_text(f"#!/bin/sh\nflock -n {tmp_path}/state/n1/act.lock echo free || echo held\n")
    program.chmod(0o755)
    site.write_policy({**DRAINS, "site_hooks": {"on_drain": str(program)}})
    site.slurm()
    with site.edit() as world:
        world.set("g0.395", 1)
    site.hook("prolog", 8812)
    (told,) = site.last("prolog").outcome["told"]
    assert (told["ok"], told["told"]) == (True, "free")


def test_a_disk_that_is_slow_lets_no_job_start_on_a_fault(tmp_path: Path) -> None:
    """The launcher lets the job start when it has to kill the hook; what was decided before counts."""
    site = Site(tmp_path)
    site.write_policy({**DRAINS, "budgets": {"prolog": "15s"}})
    reason = site.slurm()
    with site.edit() as world:
        world.set("g0.395", 1)
    hangs = "import sys, time\nfrom slurm_nvhc import pipeline\nfrom slurm_nvhc.hooks import __main__ as hooks\n"
    hangs += "pipeline._remember = lambda result, key: time.sleep(60)\nsys.exit(hooks.main(sys.argv[1:]))\n"
    python, hook = site.arguments("prolog")[0], site.arguments("prolog")[4:]
    done = site.run([python, "-c", hangs, *hook], site.environment(8812))
    assert done.returncode == main.FAIL_ON_PURPOSE
    assert "MEM-REMAP-FAILED" in reason.read_text()
    assert "MEM-REMAP-FAILED gpu0" in done.stderr
