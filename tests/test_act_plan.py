"""act/plan.py and act/wish.py: ownership, limits, idempotence."""

from __future__ import annotations

from typing import Any

import pytest
from act_fakes import IDLE, T0, decision, drained, finding, given, job, kinds, mapping, policy, proposal, uuid
from hypothesis import given as hyp
from hypothesis import settings
from hypothesis import strategies as st

from slurm_nvhc.act import steps as sp
from slurm_nvhc.act.plan import PlanInput, Step, needs_node_state, plan, reason_findings
from slurm_nvhc.model.finding import Decision
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Exclusion, Intent, OwnDrain
from slurm_nvhc.policy.compiled import Drain, Narrow, Rule

FAULT = decision(proposal())
OF_JOB = decision(proposal("narrow", of_job=True))
KEY = f"NVL-STORM {uuid(3)}"
NARROW = policy(Narrow(enabled=True))
OWN = OwnDrain("nvhc: ours", T0 - 1, True, (KEY,))


def only(steps: tuple[Step, ...], kind: str) -> Step:
    found = [s for s in steps if s.kind == kind]
    assert len(found) == 1, kinds(steps)
    return found[0]


def excluded(*numbers: int) -> dict[str, Exclusion]:
    return {uuid(n): Exclusion(uuid(n), "MEM-UNCORRECTABLE", "why", "nvhc", T0) for n in numbers}


# --- when Slurm is asked at all


def test_a_healthy_path_asks_and_does_nothing() -> None:
    for hook in ("prolog", "epilog", "health_check"):
        inp = given(decision(), hook=hook, node_state=None)
        assert not needs_node_state(inp)
        assert plan(inp) == ()


def test_what_only_tells_does_not_ask_slurm() -> None:
    assert not needs_node_state(given(decision(proposal("notify"), proposal("note"), observed=(proposal(),))))


def test_a_gpu_that_is_excluded_does_not_ask_slurm() -> None:
    assert not needs_node_state(given(FAULT, policy=NARROW))


@pytest.mark.parametrize("change", [{"own": OWN}, {"intents": (Intent("drain", "nvhc: x", T0),)}, {"decision": FAULT}])
def test_faults_drains_and_intents_ask(change: dict[str, Any]) -> None:
    assert needs_node_state(given(**change) if "decision" not in change else given(FAULT))


# --- draining


def test_a_rule_that_asks_for_a_drain_is_never_narrowed() -> None:
    for exclusions in ({}, excluded(3)):
        strict = decision(proposal("drain"))
        assert kinds(plan(given(strict, policy=NARROW, exclusions=exclusions))) == [sp.DRAIN]
    both = decision(proposal("drain", finding("MEM-SRAM", 5)), proposal("narrow", finding("MEM-REMAP-FAILED", 3)))
    steps = plan(given(both, policy=NARROW))
    assert [(s.kind, s.uuid) for s in steps] == [(sp.EXCLUDE, uuid(3)), (sp.DRAIN, "")]
    assert [k.split()[0] for k in steps[1].keys] == ["MEM-SRAM"]


def test_an_exclusion_of_a_card_that_left_does_not_count() -> None:
    gone = {"GPU-gone": Exclusion("GPU-gone", "NVL-STORM", "w", "nvhc", T0)}
    assert kinds(plan(given(FAULT, policy=NARROW, exclusions=gone))) == [sp.EXCLUDE]


def test_events_open_when_the_node_was_last_out_are_settled_by_whoever_resumed_it() -> None:
    sticky = decision(proposal("drain", finding("XID-FATAL", idents=("GPU-x|79|49",)), of_job=True))
    resumed = given(sticky, hook="prolog", seen_out=("GPU-x|79|49",))
    assert kinds(plan(resumed)) == [sp.ACCEPT]
    assert kinds(plan(resumed._replace(node_state=drained("ADMIN: x")))) == [sp.KEEP, sp.FAIL_JOB]
    again = decision(proposal("drain", finding("XID-FATAL", idents=(f"GPU-x|79|{49 + 61 * 10**9}",)), of_job=True))
    assert kinds(plan(resumed._replace(decision=again))) == [sp.ACCEPT, sp.DRAIN, sp.FAIL_JOB], "it came again since"


@pytest.mark.parametrize(("resume", "standing", "resumes"), [("own", False, True), ("standing", False, False), ("standing", True, True)])
def test_resume_of_what_a_reading_can_prove(resume: str, standing: bool, resumes: bool) -> None:
    own = OURS._replace(standing=standing)
    healing = policy(drain=Drain(resume=resume, resume_passes=2))
    inp = given(decision(), hook="health_check", job=None, policy=healing, own=own, node_state=seen(own.reason), clean_passes=2)
    assert (sp.RESUME in kinds(plan(inp))) is resumes


def test_a_fault_drains() -> None:
    inp = given(FAULT)
    inp = inp._replace(reason="nvhc: rendered")
    assert plan(inp) == (Step(sp.DRAIN, reason="nvhc: rendered", keys=(KEY,), policy="test", soft=True),)


def test_without_a_rendered_reason_a_plain_one_is_used() -> None:
    assert plan(given(FAULT))[0].reason == "nvhc: NVL-STORM gpu3 GPU-00000003… is bad"


@pytest.mark.parametrize("hook", ["epilog", "health_check"])
def test_only_a_prolog_fails_the_job(hook: str) -> None:
    assert kinds(plan(given(OF_JOB, hook=hook))) == [sp.DRAIN]


def test_a_fault_on_the_jobs_gpu_in_the_prolog_drains_and_fails_the_job() -> None:
    assert kinds(plan(given(OF_JOB, hook="prolog"))) == [sp.DRAIN, sp.FAIL_JOB]


def test_a_fault_on_anothers_gpu_in_the_prolog_only_drains() -> None:
    assert kinds(plan(given(FAULT, hook="prolog"))) == [sp.DRAIN]


def test_a_gpu_that_was_given_to_the_job_and_is_gone_fails_the_job() -> None:
    for lost in (finding("GPU-LOST", 3), finding("GPU-LOST", 3, entity="pci:0000:5e:00.0")):
        inp = given(decision(proposal("narrow", lost)), hook="prolog", mapping=mapping(2, 3, missing=(3,)))
        assert kinds(plan(inp)) == [sp.DRAIN, sp.FAIL_JOB]
    other = given(decision(proposal("narrow", finding("GPU-LOST", 5))), hook="prolog", mapping=mapping(2, 3, missing=(3,)))
    assert kinds(plan(other)) == [sp.DRAIN]


def test_an_unknown_state_is_remembered_and_the_job_let_through() -> None:
    steps = plan(given(OF_JOB, hook="prolog", node_state=None))
    assert kinds(steps) == [sp.INTENT, sp.NOTE]
    assert steps[0].keys == (KEY,)


def test_an_intent_is_remembered_once() -> None:
    pending = (Intent("drain", "nvhc: x", T0, (KEY,)),)
    assert plan(given(FAULT, node_state=None, intents=pending)) == ()


def test_an_intent_is_completed_by_a_later_run() -> None:
    pending = (Intent("drain", "nvhc: first", T0, (KEY,), ("GPU-x|79|49",)),)
    assert plan(given(decision(), intents=pending)) == (
        Step(sp.DRAIN, reason="nvhc: first", keys=(KEY,), idents=("GPU-x|79|49",), policy="test", soft=True),
    )


def test_an_intent_and_a_new_fault_are_one_drain() -> None:
    pending = (Intent("drain", "nvhc: first", T0, ("NVL-CRC x",)), Intent("drain", "nvhc: second", T0, ("GPU-LOST y",)))
    step = only(plan(given(FAULT, intents=pending)), sp.DRAIN)
    assert step.reason == "nvhc: first; also GPU-LOST y, NVL-STORM gpu3"
    assert step.keys == ("NVL-CRC x", "GPU-LOST y", KEY)


@pytest.mark.parametrize(
    ("intent", "change"),
    [
        ({}, {"policy": policy()._replace(mode="observe")}),
        ({}, {"policy": policy()._replace(rules={"x": Rule("x", "NVL-STORM", "reading", (), action="drain", mode="off")})}),
        ({}, {"policy": policy()._replace(rules={"x": Rule("x", "NVL-STORM", "reading", (), action="notify")})}),
        ({"keys": ("MON-ENGINE-HUNG monitor:engine",)}, {}),
        ({"keys": (f"GPU-EXCLUDED {uuid(3)}",)}, {}),
        ({"since_ns": T0 - 25 * 3600 * 10**9}, {}),
        ({"standing": True}, {"hook": "health_check", "job": None, "judged_ok": frozenset({uuid(3)})}),
        ({"events": True, "idents": (f"{uuid(3)}|119|{T0 - 9}", f"{uuid(3)}|79|{T0 - 8}")}, {"booted_ns": T0 - 1}),
    ],
)
def test_a_drain_that_could_not_be_placed_is_not_placed_without_another_look(intent: dict[str, Any], change: dict[str, Any]) -> None:
    """slurmctld comes back after maintenance: a cluster's old intents must not be a cluster's drain."""
    pending = (Intent("drain", "nvhc: x", T0, (KEY,))._replace(**intent),)
    assert kinds(plan(given(decision(), intents=pending)._replace(**change))) == [sp.END_INTENT]
    assert kinds(plan(given(decision(), intents=pending, node_state=None)._replace(**change))) == [sp.END_INTENT]


def test_a_standing_fault_that_shows_again_is_drained_for() -> None:
    pending = (Intent("drain", "nvhc: x", T0, (KEY,), standing=True),)
    assert kinds(plan(given(FAULT, hook="health_check", job=None, intents=pending))) == [sp.DRAIN]
    assert kinds(plan(given(decision(), intents=pending))) == [sp.DRAIN], "a job's epilog does not judge every GPU"
    assert kinds(plan(given(decision(), hook="health_check", job=None, intents=pending))) == [sp.DRAIN], "no data is no cure"


def test_a_drain_asked_for_by_an_overlay_is_asked_for_as_long_as_the_policy_stays() -> None:
    elsewhere = policy()._replace(rules={"x": Rule("x", "NVL-STORM", "reading", (), action="drain", mode="observe")})
    pending = (Intent("drain", "nvhc: x", T0, (KEY,), policy="test"),)
    assert kinds(plan(given(decision(), policy=elsewhere, intents=pending))) == [sp.DRAIN]
    assert kinds(plan(given(decision(), policy=elsewhere._replace(hash="edited"), intents=pending))) == [sp.END_INTENT]


def test_a_storm_beside_an_xid_is_not_ended_by_a_reboot() -> None:
    pending = (Intent("drain", "nvhc: x", T0, (KEY, "XID-FATAL y"), (f"{uuid(3)}|119|{T0 - 9}",)),)
    assert kinds(plan(given(decision(), intents=pending, booted_ns=T0 - 1))) == [sp.DRAIN]


def test_a_drain_to_which_a_fault_came_that_readings_do_not_show_is_not_standing() -> None:
    own = OWN._replace(standing=True, keys=("MEM-REMAP-FAILED x",))
    step = only(plan(given(FAULT, node_state=drained(own.reason), own=own)), sp.OWN)
    assert not step.standing
    longer = only(plan(given(FAULT, node_state=drained(own.reason), own=own, policy=policy(drain=Drain(extend=True)))), sp.EXTEND)
    assert not longer.standing


@pytest.mark.parametrize(("absolute", "idents", "standing"), [(True, (), True), (False, (), False), (True, ("GPU-x|79|49",), False)])
def test_only_what_every_reading_shows_is_standing(absolute: bool, idents: tuple[str, ...], standing: bool) -> None:
    fault = finding(idents=idents)._replace(absolute=absolute)
    assert only(plan(given(decision(proposal("narrow", fault)), node_state=None)), sp.INTENT).standing is standing


def test_observe_mode_hides_nothing_and_keeps_no_job_away() -> None:
    watching = policy(Narrow(enabled=True))._replace(mode="observe")
    assert plan(given(decision(), hook="prolog", policy=watching, exclusions=excluded(3))) == ()
    assert plan(given(decision(), hook="prolog", policy=watching, job=job(3), mapping=mapping(3), exclusions=excluded(3))) == ()


@pytest.mark.parametrize(
    "state", [drained("ADMIN: psu"), drained("Prolog error"), drained("nvhc: by an older ledger"), drained("", "MIXED")]
)
def test_R64_R65_a_foreign_drain_is_left_alone(state: NodeState) -> None:
    assert kinds(plan(given(FAULT, node_state=state))) == [sp.KEEP]
    assert kinds(plan(given(OF_JOB, hook="prolog", node_state=state))) == [sp.KEEP, sp.FAIL_JOB]
    pending = (Intent("drain", "nvhc: x", T0, (KEY,)),)
    assert kinds(plan(given(decision(), node_state=state, intents=pending))) == [sp.KEEP, sp.END_INTENT]


def test_a_node_that_is_only_down_comes_back_by_itself_so_the_drain_is_remembered() -> None:
    down = NodeState("DOWN", frozenset({"NOT_RESPONDING"}), "Not responding")
    steps = plan(given(FAULT, hook="health_check", job=None, node_state=down))
    assert kinds(steps) == [sp.KEEP, sp.INTENT]
    pending = (Intent("drain", steps[1].reason, T0, steps[1].keys),)
    assert kinds(plan(given(FAULT, hook="health_check", node_state=down, intents=pending))) == [sp.KEEP]
    assert kinds(plan(given(FAULT, node_state=down._replace(flags=frozenset({"DRAIN"}))))) == [sp.KEEP]


def test_our_own_drain_is_kept() -> None:
    assert kinds(plan(given(FAULT, node_state=drained("nvhc: ours"), own=OWN))) == [sp.KEEP]


def test_R65_a_second_fault_keeps_or_extends_our_reason() -> None:
    second = decision(proposal("narrow", finding("MEM-REMAP-FAILED", 5)))
    state = drained("nvhc: ours")
    assert kinds(plan(given(second, node_state=state, own=OWN))) == [sp.KEEP]
    extending = policy(drain=Drain(extend=True))
    step = only(plan(given(second, node_state=state, own=OWN, policy=extending)), sp.EXTEND)
    assert step.reason == "nvhc: ours; also MEM-REMAP-FAILED gpu5"
    assert step.keys == (KEY, f"MEM-REMAP-FAILED {uuid(5)}")
    assert kinds(plan(given(FAULT, node_state=state, own=OWN, policy=extending))) == [sp.KEEP]
    tight = policy(drain=Drain(extend=True, max_length=20))
    assert kinds(plan(given(second, node_state=state, own=OWN, policy=tight))) == [sp.KEEP]
    assert kinds(plan(given(second, node_state=drained("ADMIN"), own=None, policy=extending))) == [sp.KEEP]


def test_more_events_of_an_answered_kind_belong_to_the_drain() -> None:
    own = OWN._replace(idents=("GPU-x|79|49",))
    again = decision(proposal("narrow", finding(idents=("GPU-x|79|49", "GPU-x|79|50"))))
    step = only(plan(given(again, node_state=drained("nvhc: ours"), own=own)), sp.OWN)
    assert step.idents == ("GPU-x|79|50",), "one name covers all earlier occurrences"
    other = decision(proposal("narrow", finding("XID-FATAL", 5, idents=("GPU-x|79|57",))))
    assert kinds(plan(given(other, node_state=drained("nvhc: ours"), own=own))) == [sp.KEEP]


def test_a_request_that_was_applied_late_is_ours() -> None:
    pending = (Intent("drain", "nvhc: late", T0, (KEY,), ("GPU-x|79|49",)),)
    steps = plan(given(decision(), node_state=drained("nvhc: late"), intents=pending))
    assert kinds(steps) == [sp.OWN, sp.KEEP, sp.END_INTENT]
    assert steps[0] == Step(sp.OWN, reason="nvhc: late", why=steps[0].why, keys=(KEY,), idents=("GPU-x|79|49",), soft=True)


def test_a_late_extension_is_ours() -> None:
    pending = (Intent("drain", "nvhc: ours; also B y", T0, (KEY, "B y")),)
    steps = plan(given(decision(), node_state=drained("nvhc: ours; also B y"), own=OWN, intents=pending))
    assert kinds(steps) == [sp.OWN, sp.KEEP, sp.END_INTENT]


# --- the end of a drain


@pytest.mark.parametrize("left_over", ["", "nvhc: ours"])
def test_a_resume_by_somebody_ends_our_drain_whatever_reason_is_left(left_over: str) -> None:
    """24.11 keeps the reason of an ended drain, 22.05 does not."""
    steps = plan(given(decision(), node_state=NodeState("IDLE", frozenset(), left_over), own=OWN._replace(idents=("GPU-x|79|49",))))
    assert kinds(steps) == [sp.ACCEPT, sp.END_OWN]
    assert steps[0].idents == ("GPU-x|79|49",)


def test_events_of_an_ended_drain_need_no_second_one() -> None:
    sticky = decision(proposal("narrow", finding("XID-FATAL", idents=("GPU-x|79|49",)), of_job=True))
    own = OWN._replace(idents=("GPU-x|79|49",))
    assert kinds(plan(given(sticky, hook="prolog", node_state=IDLE, own=own))) == [sp.ACCEPT, sp.END_OWN]
    newer = decision(proposal("narrow", finding("XID-FATAL", idents=(f"GPU-x|79|{49 + 61 * 10**9}",))))
    assert kinds(plan(given(newer, node_state=IDLE, own=own))) == [sp.ACCEPT, sp.END_OWN, sp.DRAIN]


def test_a_lasting_fault_drains_again_after_a_resume() -> None:
    assert kinds(plan(given(FAULT, node_state=IDLE, own=OWN))) == [sp.END_OWN, sp.DRAIN]


def test_R64_another_reason_on_the_node_ends_our_ownership() -> None:
    assert kinds(plan(given(decision(), node_state=drained("ADMIN: mine now"), own=OWN))) == [sp.END_OWN]


def test_a_late_drain_that_was_ended_before_we_saw_it() -> None:
    """Only 24.11 shows it: the node is idle and still has the intent's reason."""
    pending = (Intent("drain", "nvhc: late", T0, (KEY,), ("GPU-x|79|49",)),)
    steps = plan(given(decision(), node_state=NodeState("IDLE", frozenset(), "nvhc: late"), intents=pending))
    assert kinds(steps) == [sp.ACCEPT, sp.END_INTENT]


RESUME = policy(drain=Drain(resume="own", resume_passes=3))
OURS = OWN._replace(stamp="root@1", idle=True, set_ns=T0 - 3600 * 10**9)  # an hour old


def seen(reason: str, base: str = "IDLE") -> NodeState:
    return drained(reason, base)._replace(stamp="root@1")


def resume_input(**changes: Any) -> PlanInput:
    base = {"hook": "health_check", "job": None, "policy": RESUME, "own": OURS, "node_state": seen("nvhc: ours"), "clean_passes": 3}
    return given(decision(), **{**base, **changes})


def test_resume_of_our_own_drain() -> None:
    assert kinds(plan(resume_input())) == [sp.RESUME]


@pytest.mark.parametrize(
    "change",
    [
        {"policy": policy()},
        {"clean_passes": 2},
        {"hook": "epilog"},
        {"own": None},
        {"own": OURS._replace(confirmed=False)},
        {"own": OURS._replace(reason="nvhc: other")},
        {"node_state": seen("ADMIN")},
        {"node_state": seen("nvhc: ours", "MIXED")},
        {"node_state": seen("nvhc: ours", "DOWN")},
        {"node_state": None},
        {"decision": decision(verdict="unknown")},
        {"decision": decision(proposal("note"))},
        {"intents": (Intent("drain", "nvhc: x", T0),)},
        {"node_state": NodeState("IDLE", frozenset({"DRAIN", "REBOOT_REQUESTED"}), "nvhc: ours", "root@1")},
    ],
)
def test_no_resume_of_anything_else(change: dict[str, Any]) -> None:
    assert sp.RESUME not in kinds(plan(resume_input()._replace(**change)))


# --- narrowing


def test_an_epilog_excludes_instead_of_draining() -> None:
    step = plan(given(FAULT, policy=NARROW))[0]
    assert (step.kind, step.uuid, step.code, step.keys) == (sp.EXCLUDE, uuid(3), "NVL-STORM", (KEY,))
    assert step.reason.startswith("nvhc: NVL-STORM gpu3")
    assert plan(given(FAULT, policy=NARROW, exclusions=excluded(3))) == ()


def test_R12_a_prolog_excludes_and_narrows() -> None:
    steps = plan(given(OF_JOB, hook="prolog", policy=NARROW, node_state=None))
    assert kinds(steps) == [sp.EXCLUDE, sp.NARROW]
    assert steps[1].uuids == (uuid(3),)
    assert steps[1].why == "gpu3 hidden from this job: NVL-STORM"


def test_an_excluded_gpu_of_the_job_is_narrowed_away() -> None:
    inp = given(decision(), hook="prolog", policy=NARROW, exclusions=excluded(3, 5), names={uuid(3): "gpu6"})
    steps = plan(inp)
    assert kinds(steps) == [sp.NARROW]
    assert steps[0].uuids == (uuid(3),)
    assert steps[0].why == "gpu6 hidden from this job: MEM-UNCORRECTABLE"
    assert not needs_node_state(inp)


def test_a_job_without_excluded_gpus_gets_nothing() -> None:
    assert plan(given(decision(), hook="prolog", policy=NARROW, exclusions=excluded(5))) == ()
    assert plan(given(decision(), hook="prolog", job=job(), mapping=mapping(), policy=NARROW, exclusions=excluded(5))) == ()
    assert plan(given(decision(), hook="epilog", policy=NARROW, exclusions=excluded(3))) == ()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"policy": policy()}, ""),
        ({"mapping": mapping(2, 3, exact=False)}, "not certain"),
        ({"mapping": mapping(2, 3)._replace(by_position={})}, "no position"),
        ({"exclusions": excluded(7)}, "2 GPUs would be excluded, 1 may be"),
        ({"node_gpus": 1}, "would be left on the node"),
        ({"decision": decision(proposal("narrow", finding("NVL-DOWN")))}, "NVL-DOWN is not a fault to narrow for"),
        ({"decision": decision(proposal("narrow", finding("NEVER-HEARD-OF")))}, "not a fault to narrow for"),
        ({"decision": decision(proposal("narrow", finding(), finding("GPU-LOST")))}, "GPU-LOST is not"),
        ({"decision": decision(proposal("narrow", finding("SITE-RULE", klass="node", entity="node")))}, "not of one GPU"),
    ],
)
def test_what_can_not_be_excluded_is_drained(change: dict[str, Any], why: str) -> None:
    inp = given(FAULT, policy=NARROW)._replace(**change)
    steps = plan(inp)
    assert kinds(steps) == [sp.DRAIN]
    assert why in steps[0].why
    assert bool(why) == bool(steps[0].why)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"job": job(2, 3, tasks=2)}, "one node and one task"),
        ({"job": job(2, 3, nodes=2)}, "one node and one task"),
        ({"job": job(2, 3, nodes=2, tasks=None)}, "one node and one task"),
        ({"job": job(3), "mapping": mapping(3)}, "0 of its GPUs would be left"),
        ({"policy": policy(Narrow(enabled=True, min_gpus=2))}, "1 of its GPUs would be left, 2 must be"),
        ({"policy": policy()}, ""),
        ({"mapping": mapping(2, 3, exact=False)}, "not certain"),
    ],
)
@pytest.mark.parametrize("known_before", [False, True])
def test_a_job_that_can_not_be_narrowed_is_kept_off(known_before: bool, change: dict[str, Any], why: str) -> None:
    inp = given(OF_JOB, hook="prolog", policy=NARROW)._replace(**change)
    if known_before:
        inp = inp._replace(decision=decision(), exclusions=excluded(3))
        assert needs_node_state(inp)
    steps = plan(inp)
    assert kinds(steps) == [sp.DRAIN, sp.FAIL_JOB]
    assert why in steps[0].why + steps[1].why
    assert steps[0].reason.startswith("nvhc: GPU-EXCLUDED GPU-00000003…" if known_before else "nvhc: NVL-STORM gpu3")


def test_a_job_that_asked_for_no_number_of_tasks_has_one_on_its_node() -> None:
    # Observed on 22.05: without -n, a hook gets SLURM_JOB_NUM_NODES=1 and no SLURM_JOB_NTASKS.
    assert kinds(plan(given(OF_JOB, hook="prolog", policy=NARROW, job=job(2, 3, nodes=1, tasks=None)))) == [sp.EXCLUDE, sp.NARROW]


def test_any_number_of_tasks_where_the_policy_says_so() -> None:
    wide = policy(Narrow(enabled=True, jobs="any"))
    assert kinds(plan(given(OF_JOB, hook="prolog", policy=wide, job=job(2, 3, nodes=4, tasks=32)))) == [sp.EXCLUDE, sp.NARROW]


def test_an_excluded_gpu_is_settled_where_the_policy_does_not_narrow() -> None:
    """Narrowing is opened per partition; a health check belongs to none and must not drain for what an epilog excluded."""
    assert plan(given(FAULT, hook="health_check", job=None, exclusions=excluded(3))) == ()
    worse = decision(proposal("narrow", finding("GPU-LOST")))
    assert kinds(plan(given(worse, hook="health_check", job=None, exclusions=excluded(3)))) == [sp.DRAIN]


def test_a_job_that_fails_is_not_narrowed_too() -> None:
    lost = decision(proposal("narrow", finding("GPU-LOST", 2), of_job=True))
    assert kinds(plan(given(lost, hook="prolog", policy=NARROW, exclusions=excluded(3)))) == [sp.DRAIN, sp.FAIL_JOB]


def test_a_drain_for_another_gpu_does_not_unhide_the_excluded_one() -> None:
    other = decision(proposal("narrow", finding("GPU-LOST", 6)))
    assert kinds(plan(given(other, hook="prolog", policy=NARROW, exclusions=excluded(3)))) == [sp.NARROW, sp.DRAIN]


# --- observe, monitor, telling


def test_observe_mode_only_notes() -> None:
    steps = plan(given(decision(observed=(proposal("narrow", of_job=True),), verdict="fail"), hook="prolog"))
    assert kinds(steps) == [sp.NOTE]
    assert steps[0].why == "observe mode: would drain for NVL-STORM gpu3"


def test_R40_monitor_trouble_may_drain_but_never_fails_a_job_nor_names_a_gpu() -> None:
    hung = finding("MON-ENGINE-HUNG", klass="monitor", entity="monitor:engine")
    inp = given(decision(proposal("narrow", hung, of_job=True)), hook="prolog", policy=NARROW)
    steps = plan(inp)
    assert kinds(steps) == [sp.DRAIN]
    assert steps[0].reason.startswith("nvhc: MON-ENGINE-HUNG engine: is bad")
    smuggled = proposal("narrow", hung, of_job=True)._replace(uuid=uuid(3))
    assert kinds(plan(given(decision(smuggled), hook="prolog", policy=NARROW))) == [sp.DRAIN]


def test_notify_and_note() -> None:
    assert kinds(plan(given(decision(proposal("notify"), proposal("note"), proposal("none"))))) == [sp.NOTIFY, sp.NOTE]


def test_reason_findings_are_those_that_drain() -> None:
    lost = finding("GPU-LOST", 6)
    both = decision(proposal("narrow", finding()), proposal("narrow", lost), proposal("notify", finding("XID-OTHER", 1)))
    assert reason_findings(given(both, policy=NARROW)) == (lost,)
    assert reason_findings(given(decision(proposal("notify")))) == ()


# --- properties

CODES = st.sampled_from(["NVL-STORM", "MEM-REMAP-FAILED", "GPU-LOST", "NVL-DOWN", "SITE-RULE"])


@st.composite
def proposals(draw: st.DrawFn) -> Any:
    monitor = draw(st.integers(0, 9)) == 0
    n = draw(st.integers(0, 7))
    found = []
    for _ in range(draw(st.integers(1, 2))):
        idents = tuple(draw(st.lists(st.sampled_from(["GPU-x|79|49", "GPU-x|79|50", "GPU-x|79|51"]), max_size=2)))
        found.append(finding("MON-READER", klass="monitor", entity="monitor:reader") if monitor else finding(draw(CODES), n, idents))
    return proposal(draw(st.sampled_from(["narrow", "drain", "notify", "note"])), *found, of_job=draw(st.booleans()))


@st.composite
def inputs(draw: st.DrawFn) -> PlanInput:
    positions = tuple(draw(st.lists(st.integers(0, 7), unique=True, max_size=8)))
    has_job = draw(st.booleans())
    reasons = st.sampled_from(["", "ADMIN", "nvhc: ours", "nvhc: i1", "Prolog error"])
    states = st.builds(
        NodeState, st.sampled_from(["IDLE", "MIXED", "DOWN"]), st.frozensets(st.sampled_from(["DRAIN", "NOT_RESPONDING", "FAIL"])), reasons
    )
    return given(
        Decision(
            draw(st.sampled_from(["ok", "unknown", "warn", "fail"])),
            tuple(draw(st.lists(proposals(), max_size=3))),
            tuple(draw(st.lists(proposals(), max_size=2))),
        ),
        hook=draw(st.sampled_from(["prolog", "epilog", "health_check"])),
        job=job(*positions, tasks=draw(st.sampled_from([1, 2]))) if has_job else None,
        mapping=mapping(*positions, exact=draw(st.booleans())) if has_job else mapping(exact=draw(st.booleans())),
        node_state=draw(st.one_of(st.none(), states)),
        exclusions=excluded(*draw(st.lists(st.integers(0, 7), max_size=2))),
        own=draw(
            st.one_of(
                st.none(),
                st.builds(OwnDrain, st.just("nvhc: ours"), st.just(T0), st.booleans(), st.just((KEY,)), st.just(("GPU-x|79|49",))),
            )
        ),
        intents=draw(st.sampled_from([(), (Intent("drain", "nvhc: i1", T0, (KEY,), ("GPU-x|79|50",)),)])),
        policy=policy(
            Narrow(draw(st.booleans()), draw(st.integers(1, 3)), draw(st.integers(0, 3)), draw(st.sampled_from(["any", "single_task"]))),
            Drain(extend=draw(st.booleans()), resume=draw(st.sampled_from(["off", "own"])), max_length=draw(st.sampled_from([30, 250]))),
        ),
        clean_passes=draw(st.integers(0, 4)),
    )


@hyp(inputs())
@settings(max_examples=200)
def test_what_no_plan_does(inp: PlanInput) -> None:
    steps = plan(inp)
    state, limits = inp.node_state, inp.policy.narrow
    ours = {i.reason for i in inp.intents} | ({inp.own.reason} if inp.own else set())
    for step in steps:
        assert step.reason == "" or step.reason.startswith("nvhc:")
        assert "\n" not in step.reason
        assert len(step.reason) <= max(inp.policy.drain.max_length, max(map(len, ours), default=0))
        if step.kind == sp.DRAIN:
            assert state is not None
            assert not state.out
        if step.kind in (sp.EXTEND, sp.RESUME):  # a foreign drain is never touched
            assert state is not None
            assert state.out
            assert state.reason in ours
        if step.kind == sp.FAIL_JOB:
            assert inp.hook == "prolog"
            assert sp.DRAIN in kinds(steps) or (state is not None and state.out)
        if step.kind in (sp.NARROW, sp.EXCLUDE):
            assert limits.enabled
            assert inp.mapping.exact
        if step.kind == sp.NARROW:
            assert inp.hook == "prolog"
            assert sp.FAIL_JOB not in kinds(steps)
            left = set(inp.mapping.uuids) - set(step.uuids)
            assert len(left) >= limits.min_gpus
            assert set(step.uuids) <= set(inp.mapping.uuids)
    new = [s.uuid for s in steps if s.kind == sp.EXCLUDE]
    assert len(set(new)) == len(new)
    assert not new or len(set(inp.exclusions) | set(new)) <= limits.max_excluded
    if not inp.decision.proposals and not inp.exclusions and not inp.own and not inp.intents:  # observe mode
        assert set(kinds(steps)) <= {sp.NOTE, sp.SUSPECT}
    if inp.hook == "prolog" and not inp.policy.narrow.enabled:
        assert sp.NARROW not in kinds(steps)


@hyp(inputs())
@settings(max_examples=150)
def test_a_job_never_runs_with_a_gpu_that_it_should_not_see(inp: PlanInput) -> None:
    """In a prolog whose node state is known: each bad GPU of the job is hidden, or the job is failed."""
    if inp.hook != "prolog" or inp.job is None or inp.node_state is None:
        return
    steps = plan(inp)
    if sp.FAIL_JOB in kinds(steps):
        return
    settled = {i for s in steps if s.kind == sp.ACCEPT for i in s.idents}
    hidden = {u for s in steps if s.kind == sp.NARROW for u in s.uuids}
    if inp.job.positions is not None:
        assert not (set(inp.exclusions) & set(inp.mapping.uuids)) - hidden
    for p in inp.decision.proposals:
        live = [f for f in p.findings if f.klass != "monitor" and not (f.idents and settled.issuperset(f.idents))]
        if p.of_job and p.action in ("narrow", "drain") and live and p.uuid in inp.mapping.uuids:
            assert p.uuid in hidden
