"""Ending our own drain: only ours, only when everything speaks for it, and not too often."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from act_fakes import IDLE, T0, Site, Slurm, decision, drained, finding, given, kinds, policy, proposal, uuid

from slurm_nvhc.act import steps as st
from slurm_nvhc.act.passes import passed
from slurm_nvhc.act.plan import PlanInput, plan
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Intent, OwnDrain, Pause, Strike
from slurm_nvhc.model.reading import NOT_FOUND, NoData
from slurm_nvhc.model.snapshot import LOST, OK, GpuIdentity, GpuState, Snapshot
from slurm_nvhc.policy.compiled import Drain, Rule
from slurm_nvhc.slurm.node import TIMEOUT, SlurmError

HOUR_NS = 3600 * 10**9
OWN = OwnDrain("nvhc: ours", T0 - HOUR_NS, True, (f"NVL-STORM {uuid(3)}",), ("GPU-x|79|49",), stamp="root@1", idle=True)
HEALING = policy(drain=Drain(resume="own", resume_passes=3, resume_after_s=1800, resume_per_day=2))


def state(base: str = "IDLE", *flags: str, reason: str = "nvhc: ours", stamp: str = "root@1") -> NodeState:
    return NodeState(base, frozenset({"DRAIN", *flags}), reason, stamp)


def well(**changes: Any) -> PlanInput:
    """A health check that may end our drain."""
    base = {"hook": "health_check", "job": None, "policy": HEALING, "own": OWN, "node_state": state(), "clean_passes": 3}
    return given(decision(), **{**base, **changes})


def strikes(*hours_ago: float, kind: str = "resume") -> tuple[Strike, ...]:
    return tuple(Strike(kind, "", T0 - round(h * HOUR_NS)) for h in hours_ago)


def told(inp: PlanInput) -> str:
    return " ".join(step.why for step in plan(inp) if step.kind == st.NOTE)


def test_all_that_speaks_for_it() -> None:
    (step,) = plan(well())
    assert (step.kind, step.reason, step.keys) == (st.RESUME, "nvhc: ours", OWN.keys)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"node_state": state(stamp="root@2")}, ""),
        ({"node_state": state(stamp="")}, "idle and drained by nothing but our drain"),
        ({"own": OWN._replace(stamp="")}, "idle and drained by nothing but our drain"),
        ({"own": OWN._replace(confirmed=False)}, "not known"),
        ({"own": OWN._replace(barred=True)}, "only an administrator"),
        ({"node_state": state("MIXED")}, "MIXED+DRAIN"),
        ({"node_state": state("IDLE", "NOT_RESPONDING")}, "NOT_RESPONDING"),
        ({"node_state": state("IDLE", "REBOOT_REQUESTED")}, "REBOOT_REQUESTED"),
        ({"node_state": state("IDLE", "FAIL")}, "FAIL"),
        ({"booted_ns": OWN.set_ns + 1}, "rebooted"),
        ({"jobs_ended": 1}, "a job ended here"),
        ({"jobs_ended": 1, "epilog_alone": False}, "leaves no trace"),
        ({"jobs_ended": None}, "a job ended here"),
        ({"own": OWN._replace(idle=False)}, "a job ended here"),
        ({"decision": decision(verdict="unknown")}, "verdict is unknown"),
        ({"decision": decision(verdict="warn")}, "verdict is warn"),
        ({"intents": (Intent("reboot", "nvhc: ours", T0),)}, "something else"),
        ({"clean_passes": 2}, "2 of 3 health checks"),
        ({"now_ns": OWN.set_ns + 1799 * 10**9}, "1s of 30m are left"),
        ({"diag_failed": (uuid(5), uuid(6))}, "a diagnostic has failed, and not passed after that, on GPU-00000005…, GPU-00000006…"),
        ({"policy": policy(drain=Drain(resume="standing"))}, "every reading shows"),
        ({"policy": policy(drain=Drain(resume="own", resume_per_day=0))}, "the policy ends none"),
    ],
)
def test_what_speaks_against_it(change: dict[str, Any], why: str) -> None:
    steps = plan(well(**change))
    assert not {st.RESUME, st.BAR} & set(kinds(steps))
    assert why in told(well(**change))


TESTING = HEALING._replace(drain=HEALING.drain._replace(resume_diagnostic=("2",)))


@pytest.mark.parametrize(
    ("tests", "untested", "why"),
    [
        (("2",), (uuid(5),), "diagnostic level 2 must have passed on every GPU since, and it has not on GPU-00000005"),
        (("2",), (uuid(5),), "run `nvhc diag --level 2` on the node"),
        (("memory", "pcie"), (uuid(5),), "diagnostic memory, pcie must have passed"),
        (("memory", "pcie"), (uuid(5),), "run `nvhc diag --tests memory,pcie` on the node"),
        (("2",), None, "the node's GPUs are not known"),
    ],
)
def test_the_diagnostic_that_the_policy_asks_for_comes_first(tests: tuple[str, ...], untested: Any, why: str) -> None:
    asking = HEALING._replace(drain=HEALING.drain._replace(resume_diagnostic=tests))
    inp = well(policy=asking, untested=untested)
    assert kinds(plan(inp)) == [st.NOTE]
    assert why in told(inp)
    assert kinds(plan(inp._replace(untested=()))) == [st.RESUME]
    assert kinds(plan(well(untested=untested))) == [st.RESUME], "without the policy's asking nothing is"


def test_a_diagnostic_is_no_ground_to_end_a_drain_sooner() -> None:
    for change in ({"clean_passes": 2}, {"jobs_ended": 1}, {"decision": decision(verdict="warn")}, {"now_ns": OWN.set_ns + 1}):
        assert kinds(plan(well(policy=TESTING, untested=(), **change))) == [st.NOTE]


@pytest.mark.parametrize("change", [{"jobs_ended": 7}, {"jobs_ended": None}, {"own": OWN._replace(idle=False)}])
def test_jobs_may_end_where_no_epilog_of_others_can_fail(change: dict[str, Any]) -> None:
    assert kinds(plan(well(epilog_alone=True, **change))) == [st.RESUME]


def test_a_reboot_that_we_asked_for_is_none_of_somebody_else() -> None:
    rebooted = {"booted_ns": OWN.set_ns + HOUR_NS // 2}
    assert kinds(plan(well(strikes=strikes(0.7, kind="reboot"), **rebooted))) == [st.RESUME]
    assert st.RESUME not in kinds(plan(well(strikes=strikes(1.5, kind="reboot"), **rebooted))), "that one was for an earlier drain"


def test_the_same_reason_set_anew_is_not_ours() -> None:
    inp = well(node_state=state(stamp="ada@2"))
    steps = plan(inp)
    assert kinds(steps) == [st.ACCEPT, st.END_OWN]
    assert "drained the node anew" in steps[1].why
    assert kinds(plan(inp._replace(own=None))) == []
    fault = decision(proposal("drain", finding("MEM-SRAM", 5)))
    assert kinds(plan(inp._replace(decision=fault))) == [st.ACCEPT, st.END_OWN, st.KEEP], "its reason is never changed"


def test_the_stamp_is_kept_when_it_is_seen_first() -> None:
    inp = well(own=OWN._replace(stamp=""), policy=policy())
    (step,) = plan(inp)
    assert (step.kind, step.stamp) == (st.OWN, "root@1")
    site = Site()
    site.ledger.own = OWN._replace(stamp="", barred=True)
    site.do((step,), inp)
    assert site.ledger.own == OWN._replace(barred=True), "nothing else of it changes, not its age either"


def test_too_often_is_for_an_administrator_and_said_once() -> None:
    inp = well(strikes=strikes(1, 20))
    steps = plan(inp)
    assert kinds(steps) == [st.BAR, st.ALERT]
    site = Site(slurm=Slurm(stamps=True))
    site.slurm.state, site.ledger.own = state(), OWN
    site.do(steps, inp)
    assert site.ledger.own == OWN._replace(barred=True)
    assert site.slurm.updates == []
    later = well(own=site.ledger.own, now_ns=T0 + 30 * HOUR_NS, strikes=())
    assert kinds(plan(later)) == [st.NOTE], "also once the strikes are old"


def test_strikes_of_another_day_and_kind_do_not_count() -> None:
    assert kinds(plan(well(strikes=(*strikes(1, 25, 30), *strikes(0.1, 0.2, kind="requeue"))))) == [st.RESUME]


# --- doing it


class Hesitant(Slurm):
    """``answers``: what a resume does: "late" applies it and does not answer, "hangs" applies it at wake_up."""

    def __init__(self, answer: str) -> None:
        super().__init__(stamps=True)
        self.answer = answer
        self.state = state()
        self.waiting = False

    def resume(self, node: str, timeout_s: Optional[float] = None) -> None:
        self.updates.append("resume")
        if self.answer == "late":
            self.someone_resumes()
        self.waiting = self.answer == "hangs"
        raise SlurmError(TIMEOUT, "scontrol", "update", "Socket timed out")


def site_of(slurm: Slurm) -> Site:
    site = Site(slurm=slurm)
    site.ledger.own = OWN
    return site


def carry_out(site: Site, **changes: Any) -> tuple[list[str], list[bool]]:
    inp = well(
        node_state=site.slurm.state, own=site.ledger.own, intents=tuple(site.ledger.pending), strikes=tuple(site.ledger.strikes), **changes
    )
    steps = plan(inp)
    return kinds(steps), [d.ok for d in site.do(steps, inp).done]


@pytest.mark.parametrize("keeps_reason", [True, False])
def test_a_resume(keeps_reason: bool) -> None:
    site = site_of(Slurm(keeps_reason, stamps=True))
    site.slurm.state = state()
    assert carry_out(site) == ([st.RESUME], [True])
    assert (site.slurm.state.out, site.ledger.own, site.ledger.pending) == (False, None, [])
    assert [s.kind for s in site.ledger.strikes] == ["resume"]
    assert carry_out(site)[0] == [], "the reason that 24.11 keeps is no drain"


def test_read_again_just_before() -> None:
    for other in (drained("ADMIN"), state(stamp="ada@9"), state("MIXED"), state("DOWN"), IDLE):
        site = site_of(Slurm(stamps=True))
        site.slurm.state, site.slurm.before_update = state(), other
        inp = well(node_state=site.slurm.state)
        site.do(plan(inp), inp)
        assert (site.slurm.state, site.slurm.updates, site.ledger.strikes, site.ledger.pending) == (other, [], [], [])


def test_a_resume_that_was_applied_and_not_answered() -> None:
    site = site_of(Hesitant("late"))
    assert carry_out(site) == ([st.RESUME], [True])
    assert (site.ledger.own, site.ledger.pending, len(site.ledger.strikes)) == (None, [], 1)


def test_a_resume_that_may_yet_be_applied_is_looked_up_before_it_is_tried_again() -> None:
    site = site_of(Hesitant("hangs"))
    assert carry_out(site) == ([st.RESUME], [False])
    assert (site.ledger.own, [i.kind for i in site.ledger.pending], len(site.ledger.strikes)) == (OWN, ["resume"], 1)
    assert carry_out(site)[0] == [st.NOTE], "not at once again"
    later = T0 + HOUR_NS
    assert carry_out(site, now_ns=later)[0] == [st.RESUME]
    assert len(site.ledger.strikes) == 1, "one resume, tried twice"
    site.slurm.someone_resumes()
    site.ledger.pending = [site.ledger.pending[0]]
    assert carry_out(site, now_ns=later)[0] == [st.ACCEPT, st.END_OWN, st.END_INTENT]
    assert (site.ledger.own, site.ledger.pending) == (None, [])


class Deadly(Slurm):
    """The hook is killed while it waits for the answer."""

    def resume(self, node: str, timeout_s: Optional[float] = None) -> None:
        raise KeyboardInterrupt


def test_a_resume_whose_hook_is_killed_counts_once_and_bars_nothing() -> None:
    once = HEALING._replace(drain=HEALING.drain._replace(resume_per_day=1))
    site = site_of(Deadly(stamps=True))
    site.slurm.state = state()
    for _hook in range(2):
        with pytest.raises(KeyboardInterrupt):
            carry_out(site, policy=once)
        assert [s.kind for s in site.ledger.strikes] == ["resume"]
    site.slurm.__class__ = Slurm
    assert carry_out(site, policy=once) == ([st.RESUME], [True])
    assert (site.slurm.state.out, len(site.ledger.strikes)) == (False, 1)


def test_a_fault_that_came_back_ends_the_wish_to_resume() -> None:
    site = site_of(Hesitant("hangs"))
    carry_out(site)
    assert st.END_INTENT in carry_out(site, decision=decision(verdict="fail"))[0]
    assert site.ledger.pending == []


def test_what_can_not_be_written_down_is_not_done() -> None:
    site = site_of(Slurm(stamps=True))
    site.slurm.state = state()
    inp = well(node_state=site.slurm.state)
    site.ledger.add_intent = _broken  # type: ignore[method-assign]
    assert [d.ok for d in site.do(plan(inp), inp).done] == [False]
    assert site.slurm.updates == []


def _broken(intent: Intent) -> None:
    from slurm_nvhc.errors import MonitorError

    raise MonitorError("ledger", "", "disk full")


def test_in_observe_mode_and_in_a_pause_it_is_only_said() -> None:
    observing = well(policy=HEALING._replace(mode="observe"))
    assert told(observing).startswith("observe mode: would resume")
    paused = well(pause=Pause(T0 + HOUR_NS, "driver", "ada", T0))
    assert told(paused).startswith("paused until 2027-01-15T09:00:00Z: would resume")
    barred = well(policy=HEALING._replace(mode="observe"), strikes=strikes(1, 2))
    assert "would leave its end to an administrator" in told(barred)
    for inp in (observing, paused, barred):
        assert set(kinds(plan(inp))) == {st.NOTE}


def test_placing_a_drain_keeps_its_stamp() -> None:
    site = Site(slurm=Slurm(stamps=True))
    site.run(decision(proposal("drain")))
    assert site.ledger.own is not None
    assert site.ledger.own.stamp == "root@1" == site.slurm.state.stamp
    assert site.ledger.own.idle
    site = Site(slurm=Slurm(stamps=True))
    site.slurm.state = NodeState("IDLE", frozenset({"COMPLETING"}))
    site.run(decision(proposal("drain")))
    assert site.ledger.own is not None
    assert not site.ledger.own.idle, "the job of this epilog has not ended yet"


# --- what counts as a pass

RULES = {
    "storm": Rule("storm", "NVL-STORM", "reading", ("nvlink_replay",), action="drain"),
    "xid": Rule("xid", "XID-FATAL", "event", (), action="drain"),
    "lost": Rule("lost", "GPU-LOST", "presence", (), action="drain"),
    "switch": Rule("switch", "SWITCH-RESET", "reading", ("switch_reset_required",), action="drain"),
}
PASSING = policy()._replace(rules=RULES)
GPU = GpuState(GpuIdentity(uuid(3), "0000:4b:00.0"), OK, {}, {11: {"nvlink_replay": 5}})


def snapshot(gpu: GpuState = GPU, **changes: Any) -> Snapshot:
    parts = {"switch:0000:c3:00.0": {"switch_reset_required": 0}, "node": {}}
    return Snapshot("n1", "sim", "", "b", T0, 1, gpus={uuid(3): gpu}, parts=parts, events_known=True)._replace(**changes)


def look(
    *keys: str, shot: Optional[Snapshot] = None, rules: Any = PASSING, verdict: str = "ok", gpu: str = "ok", excluded: Any = ()
) -> bool:
    return passed(OWN._replace(keys=keys), rules, shot or snapshot(), verdict, {uuid(3): gpu}, excluded)


def test_what_was_looked_at_and_found_well_passes() -> None:
    assert look(f"NVL-STORM {uuid(3)}/link11")
    assert look(f"NVL-STORM {uuid(3)}", f"XID-FATAL {uuid(3)}", f"GPU-LOST {uuid(3)}", "SWITCH-RESET switch:0000:c3:00.0")
    assert look("XID-FATAL pci:0000:4b:00.0")
    assert look("GPU-LOST node")
    assert look(f"GPU-EXCLUDED {uuid(3)}")
    assert look("MON-ENGINE-HUNG monitor:engine")


def test_what_was_not_looked_at_does_not() -> None:
    storm = f"NVL-STORM {uuid(3)}/link11"
    off = PASSING._replace(rules={**RULES, "storm": RULES["storm"]._replace(mode="off")})
    assert not look(storm, verdict="unknown")
    assert not look(storm, gpu="unknown")
    assert not look(storm, rules=off), "no rule looks any more"
    assert not look(storm, shot=snapshot(GPU._replace(links={}))), "the link is not there"
    assert not look(storm, shot=snapshot(GPU._replace(links={11: {"nvlink_replay": NoData(NOT_FOUND)}})))
    assert not look(storm, shot=snapshot(GPU._replace(status=LOST)))
    assert not look(storm, shot=snapshot(gpus={}))
    assert not look(storm, shot=snapshot(gpus=None))
    assert not look(storm, f"NVL-STORM {uuid(4)}"), "one of two"
    assert not look(f"XID-FATAL {uuid(3)}", shot=snapshot(events_known=False))
    assert not look("SWITCH-RESET switch:0000:c3:00.0", shot=snapshot(parts={}))
    assert not look(f"GPU-EXCLUDED {uuid(3)}", excluded=(uuid(3),))
    assert not look("MON-ENGINE-HUNG monitor:engine", shot=snapshot(gpus=None))
    assert not look()
