"""Observe mode and maintenance, for everything that is ever done: nothing is changed, and what would have been done is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from act_fakes import T0, Site, Slurm, decision, drained, finding, given, job, kinds, mapping, policy, proposal, uuid
from site_ import Site as Node

from slurm_nvhc.act import quiet
from slurm_nvhc.act import steps as st
from slurm_nvhc.act.drains import drain
from slurm_nvhc.act.plan import plan
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.tools import Hands, Tools
from slurm_nvhc.model.protective import Exclusion, Intent, OwnDrain, Pause
from slurm_nvhc.policy import compiled as pol

# What only says how things are, whoever made them so: a drain that somebody ended, a card that was swapped.
SAYS = {
    st.OWN, st.END_INTENT, st.END_OWN, st.ACCEPT, st.SUSPECT, st.VERIFY, st.NEW_SLOT, st.END_EXCLUSION, st.HOLD_LOST, st.KEEP,
    st.NOTIFY, st.NOTE,
}  # fmt: skip
KINDS = sorted({value for name, value in vars(st).items() if name.isupper() and isinstance(value, str)})
DOES = [kind for kind in KINDS if kind not in SAYS]
NARROWING = pol.Narrow(enabled=True, jobs="any")
OBSERVE = {"policy": policy(NARROWING)._replace(mode="observe")}
PAUSED = {"policy": policy(NARROWING), "pause": Pause(T0 + 3600 * 10**9, "driver", "ada", T0)}
QUIET = [pytest.param(OBSERVE, "observe mode", id="observe"), pytest.param(PAUSED, "paused until 2027-01-15T09:00:00Z", id="pause")]


def excluded_of(n: int, way: str = "narrow") -> dict[str, Exclusion]:
    return {uuid(n): Exclusion(uuid(n), "NVL-STORM", "w", "nvhc", T0, way=way)}


def a_step(kind: str) -> Step:
    return Step(kind, reason="nvhc: a reason", uuid=uuid(3), why="because", keys=("NVL-STORM x",), uuids=(uuid(3),), job="8812")


@pytest.mark.parametrize(("change", "label"), QUIET)
@pytest.mark.parametrize("kind", DOES)
def test_every_deed_becomes_a_note(kind: str, change: dict[str, Any], label: str) -> None:
    (said,) = quiet.held_back(given(**change), [a_step(kind)])
    assert said.kind == st.NOTE
    assert said.why.startswith(f"{label}: would ")
    assert "nvhc: a reason" in said.why or "because" in said.why
    assert said.keys == ("NVL-STORM x",)


@pytest.mark.parametrize(("change", "label"), QUIET)
def test_what_only_says_how_things_are_stays(change: dict[str, Any], label: str) -> None:
    steps = tuple(a_step(kind) for kind in sorted(SAYS))
    assert quiet.held_back(given(**change), steps) == steps


def test_without_either_a_plan_is_left_alone() -> None:
    steps = tuple(a_step(kind) for kind in KINDS)
    assert quiet.held_back(given(), steps) == steps


def test_in_a_pause_an_excluded_gpu_stays_hidden() -> None:
    kept = {"exclusions": excluded_of(3)}
    hidden = Step(st.NARROW, reason="nvhc: x", uuids=(uuid(3),), why="w")
    (step,) = quiet.held_back(given(**PAUSED, **kept), [hidden])
    assert (step.kind, step.reason) == (st.NARROW, ""), "and no drain if it fails"
    (step,) = quiet.held_back(given(**PAUSED, **kept), [hidden._replace(uuids=(uuid(3), uuid(5)))])
    assert step.kind == st.NOTE
    both = {**PAUSED, "policy": policy(NARROWING)._replace(mode="observe")}
    assert quiet.held_back(given(**both, **kept), [hidden])[0].kind == st.NOTE


@pytest.mark.parametrize(("change", "label"), QUIET)
@pytest.mark.parametrize("hook", ["prolog", "epilog", "health_check"])
@pytest.mark.parametrize(
    "before",
    [
        {},
        {"own": OwnDrain("nvhc: ours", T0 - 10**13, True, ("NVL-STORM x",), stamp="root@1"), "node_state": drained("nvhc: ours")},
        {"intents": (Intent("drain", "nvhc: late", T0, ("NVL-STORM x",), policy="test"),)},
        {"intents": (Intent("withdraw", "nvhc: ours", T0),), "own": OwnDrain("nvhc: ours", T0, True), "node_state": drained("nvhc: ours")},
        {"exclusions": excluded_of(3)},
        {"exclusions": excluded_of(3, way="quarantine")},
    ],
    ids=["nothing", "own drain", "intent", "withdrawal", "exclusion", "quarantine"],
)
def test_whatever_was_before_nothing_in_slurm_is_changed(before: dict[str, Any], hook: str, change: dict[str, Any], label: str) -> None:
    # An old decision too, made before the pause was known: the plan's last word holds.
    fault = decision(proposal("narrow", finding("NVL-STORM", 2), of_job=True), proposal("drain", finding("GPU-LOST", 5)))
    site = Site(slurm=Slurm(stamps=True))
    inp = given(fault, hook=hook, job=job(2, 3), mapping=mapping(2, 3), **{**before, **change})
    site.slurm.state = inp.node_state
    steps = plan(inp)
    assert not set(kinds(steps)) & set(DOES) - {st.NARROW}
    assert any(s.why.startswith(f"{label}: would ") for s in steps if s.kind == st.NOTE) or hook != "health_check"
    outcome = site.do(steps, inp)
    assert (site.slurm.updates, outcome.fail_hook, site.ledger.pending, site.ledger.strikes) == ([], False, [], [])
    assert {e.stage for e in site.ledger.excluded.values()} <= {"suspected"}


def test_a_step_that_falls_back_to_a_drain_does_not_drain_either() -> None:
    site = Site()
    tools = Tools(site.slurm, "n1", site.ledger, "/nonexistent", None, mapping(), lambda: False, print, lambda: 5.0, T0, policy())
    done = drain(Hands(tools._replace(quiet="paused until then")), a_step(st.NARROW))
    assert (done.ok, site.slurm.updates, site.ledger.pending) == (False, [], [])
    assert "paused" in done.detail


# --- a whole node

EVERYTHING = {
    "mode": "observe",
    "defaults": False,
    "rules": {
        "remap": {"finding": "MEM-REMAP-FAILED", "field": "row_remap_failure", "fail": {"value_is": 1}, "action": "drain"},
        "storm": {"finding": "NVL-STORM", "field": "nvlink_replay", "fail": {"increase_above": 100}, "action": "narrow"},
        "fatal": {"finding": "XID-FATAL", "fail": {"xid": 79}, "action": "drain", "sticky": True},
    },
    "narrow": {"enabled": True, "jobs": "any"},
    "quarantine": {"enabled": True},
    "requeue": {"enabled": True},
    "checkpoint": {"enabled": True},
    "reboot": {"enabled": True},
    "drain": {"resume": "own", "extend": True},
}


def test_a_node_in_observe_mode(tmp_path: Path) -> None:
    site = Node(tmp_path, policy=EVERYTHING)
    Path(site.slurm_conf).write_text("ClusterName=test\nPrologFlags=Alloc\n")
    site.slurm()
    for name in ("sbatch", "scancel", "squeue", "sinfo"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/scontrol.calls\nexit 0\n')
        (tmp_path / name).chmod(0o755)
    site.hook("health_check")
    site.hook("prolog", 8812)
    with site.edit() as world:
        world.storm("g3.link11", "replay", 21200, 2460)
    site.hook("epilog", 8812)
    with site.edit() as world:
        world.set("g2.395", 1)
        world.xid("g1", 79)
    assert site.hook("prolog", 8813).returncode == 0
    site.hook("epilog", 8813)
    site.hook("health_check")
    changing = ("update", "requeue", "reboot", "create", "delete", "sbatch", "scancel")
    assert [call for call in site.calls() if call.startswith(changing)] == []
    with site.ledger() as ledger:
        kept = ledger.protective()
        runs = ledger.recent_runs(9)
    assert (kept.own_drain, kept.intents, kept.holds, kept.strikes) == (None, (), (), ())
    assert [e for e in kept.exclusions if e.stage != "suspected"] == []
    done = {step["kind"] for run in runs for step in run.steps}
    assert done <= SAYS
    text = site.nvhc("explain", "8812", code=None)
    assert "not done  observe mode: would quarantine for NVL-STORM gpu3" in text
    assert "observe mode: would drain for" in site.nvhc("explain", "8813", code=None)
    assert "MEM-REMAP-FAILED gpu2" in site.nvhc("explain", "node", code=None)
