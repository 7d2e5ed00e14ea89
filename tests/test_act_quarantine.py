"""Which GPUs a placeholder job is to hold, when a hold is lost, when it ends, and when the node is drained instead."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from act_fakes import IDLE, T0, Site, decision, drained, finding, given, job, kinds, mapping, policy, proposal, uuid
from hypothesis import given as hyp
from hypothesis import settings
from hypothesis import strategies as hs

from slurm_nvhc.act import quarantine
from slurm_nvhc.act import steps as st
from slurm_nvhc.act.plan import PlanInput, Step, needs_jobs, needs_node_state, plan
from slurm_nvhc.model import placeholder
from slurm_nvhc.model import protective as kept
from slurm_nvhc.model.node_job import NodeJob
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Exclusion, Hold, Intent, OwnDrain, Pause, Strike
from slurm_nvhc.policy import compiled as pol
from slurm_nvhc.policy.acting import Quarantine, Requeue

S = 10**9
ON = policy()._replace(quarantine=Quarantine(enabled=True, place_within_s=30.0))
BAD = uuid(3)
KEY = f"GPU-EXCLUDED {BAD}"
DOWN = NodeState("DOWN", frozenset({"NOT_RESPONDING"}), "Not responding")
FAULT = decision(proposal())
NOTHING = decision()


def excluded(n: int = 3, **changes: Any) -> dict[str, Exclusion]:
    one = Exclusion(uuid(n), "NVL-STORM", "gpu3 is bad", "nvhc", T0 - 60 * S, way=kept.QUARANTINE, until_ns=T0 + 86400 * S)
    return {uuid(n): one._replace(**changes)}


def users(*positions: int, job_id: str = "900", state: str = "RUNNING") -> NodeJob:
    return NodeJob(job_id, state, 1001, "train", positions=positions)


def holder(n: int = 3, job_id: str = "77", **changes: Any) -> NodeJob:
    one = NodeJob(job_id, "RUNNING", 0, placeholder.HOLD, comment=placeholder.COMMENT, admin_comment=placeholder.says(uuid(n)))
    return one._replace(**{"positions": (n,), **changes})


def hold(n: int = 3, job_id: str = "77", boot_id: str = "b1") -> dict[str, Hold]:
    return {uuid(n): Hold(uuid(n), job_id, T0 - 30 * S, boot_id)}


def pending(next_ns: int = T0 + 10 * S, tries: int = 1, n: int = 3) -> tuple[Intent, ...]:
    return (Intent("quarantine", uuid(n), T0 - 20 * S, (KEY,), tries=tries, next_ns=next_ns, policy="test"),)


def inp(what: Any = NOTHING, hook: str = "health_check", **changes: Any) -> PlanInput:
    base: dict[str, Any] = {"policy": ON, "alloc": True, "jobs": (), "boot_id": "b1", "exclusions": excluded(), "job": None}
    if hook != "health_check":
        base["job"] = job(0, 1)
        base["mapping"] = mapping(0, 1)
    else:
        base["mapping"] = mapping()
    return given(what, hook=hook, **{**base, **changes})


def only(steps: tuple[Step, ...], kind: str) -> Step:
    (step,) = [s for s in steps if s.kind == kind]
    return step


# --- placing


@pytest.mark.parametrize("hook", ["health_check", "epilog", "prolog"])
def test_a_free_gpu_is_held_by_whichever_hook_comes(hook: str) -> None:
    step = only(plan(inp(hook=hook)), st.QUARANTINE)
    assert (step.uuid, step.keys) == (BAD, (KEY,))
    assert step.reason == "nvhc: GPU-EXCLUDED GPU-00000003… GPU-00000003… (NVL-STORM since 2027-01-15T07:59:00Z) could not be quarantined"


def test_a_new_exclusion_is_held_in_the_epilog_of_its_job() -> None:
    own = users(2, 3, job_id="8812", state="COMPLETING")
    now = inp(FAULT, "epilog", exclusions={}, job=job(2, 3), mapping=mapping(2, 3), jobs=(own,))
    assert kinds(plan(now)) == [st.EXCLUDE, st.QUARANTINE]
    unknown = plan(now._replace(jobs=None))
    assert kinds(unknown) == [st.EXCLUDE, st.QUARANTINE], "Slurm did not say who uses it, and in its own epilog nobody else can"
    assert "gpu3" in only(unknown, st.QUARANTINE).reason


def test_a_gpu_in_use_is_left_to_the_epilog_of_its_job() -> None:
    busy = inp(jobs=(users(3),))
    assert plan(busy) == ()
    assert kinds(plan(busy._replace(jobs=(users(4),)))) == [st.QUARANTINE]
    assert kinds(plan(busy._replace(intents=pending()))) == [st.END_INTENT], "the time to place it does not run meanwhile"
    assert kinds(plan(busy._replace(intents=pending(next_ns=T0 - 1)))) == [st.END_INTENT], "nor does it lead to a drain"


def test_nothing_is_placed_while_it_is_unknown_who_has_the_gpu() -> None:
    assert plan(inp(jobs=None)) == ()
    assert plan(inp(jobs=(users(3)._replace(positions=None),))) == ()
    assert plan(inp(node_state=None, jobs=None)) == ()


REBOOTS = NodeState("IDLE", frozenset({"REBOOT_REQUESTED"}))


@pytest.mark.parametrize("state", [drained("nvhc: x"), drained("ADMIN: y", "MIXED"), NodeState("DOWN", frozenset({"DRAIN"})), REBOOTS])
def test_nothing_is_placed_on_a_node_that_starts_nothing(state: NodeState) -> None:
    assert st.QUARANTINE not in kinds(plan(inp(node_state=state)))
    assert st.END_INTENT in kinds(plan(inp(node_state=state, intents=pending())))


def test_a_node_that_is_only_down_gets_its_hold_before_users_come() -> None:
    assert kinds(plan(inp(node_state=DOWN))) == [st.QUARANTINE]
    assert plan(inp(node_state=DOWN, intents=pending(next_ns=T0 + 1))) == ()
    assert kinds(plan(inp(node_state=DOWN, intents=pending(next_ns=T0)))) == [st.QUARANTINE], "renewed for as long as it stays down"


def test_a_gpu_without_a_position_is_not_held() -> None:
    table = mapping()
    del table.by_position[3]
    assert plan(inp(mapping=table)) == ()
    assert not needs_node_state(inp(mapping=table, node_state=None))


def test_placeholder_jobs_that_look_for_it_are_let_work() -> None:
    assert plan(inp(intents=pending(next_ns=T0 + 1))) == ()
    for next_ns in (0, T0 + 10 * S):
        again = plan(inp(intents=pending(next_ns, tries=0)))
        assert kinds(again) == [st.QUARANTINE], "what could not even be submitted is tried again"


def test_two_gpus_are_two_steps() -> None:
    both = {**excluded(3), **excluded(5)}
    assert [s.uuid for s in plan(inp(exclusions=both)) if s.kind == st.QUARANTINE] == [uuid(3), uuid(5)]


def test_an_exclusion_that_hides_is_not_held() -> None:
    hidden = inp(exclusions=excluded(way=kept.NARROW))
    assert plan(hidden) == ()
    assert not needs_node_state(hidden._replace(node_state=None))


def test_the_policy_of_a_health_check_need_not_enable_it() -> None:
    """It is enabled for a partition, and a health check belongs to none."""
    assert kinds(plan(inp(policy=policy()))) == [st.QUARANTINE]


# --- held


def test_a_hold_in_place_needs_nothing() -> None:
    assert plan(inp(holds=hold(), jobs=(holder(), users(0)))) == ()
    assert kinds(plan(inp(holds=hold(), jobs=(holder(),), intents=pending()))) == [st.END_INTENT]


def test_what_the_job_itself_says_holds_without_the_ledger() -> None:
    assert plan(inp(jobs=(holder(),))) == ()


def test_hooks_of_jobs_do_not_ask_slurm_while_it_is_held() -> None:
    for hook in ("prolog", "epilog"):
        assert not needs_node_state(inp(hook=hook, holds=hold(), node_state=None, jobs=None))
        assert needs_node_state(inp(hook=hook, node_state=None, jobs=None)), "not held"
        assert needs_node_state(inp(hook=hook, holds=hold(boot_id="b0"), node_state=None, jobs=None)), "held before the boot"
        assert needs_node_state(inp(hook=hook, holds=hold(), mapping=mapping(2, 3), node_state=None, jobs=None)), "given to this job"
    check = inp(holds=hold(), node_state=None, jobs=None)
    assert needs_node_state(check)
    assert needs_jobs(check)
    assert not needs_jobs(inp(exclusions={}))


def test_a_hold_that_slurm_did_not_speak_of_is_not_lost() -> None:
    assert plan(inp(holds=hold(), jobs=None)) == ()


@pytest.mark.parametrize("jobs", [(), (holder(state="COMPLETING"),), (holder(state="PENDING"),), (holder(4, "78"),)])
def test_a_lost_hold_is_made_again(jobs: tuple[NodeJob, ...]) -> None:
    steps = [s for s in plan(inp(holds=hold(), jobs=jobs)) if s.uuid == BAD]
    assert kinds(tuple(steps)) == [st.HOLD_LOST, st.QUARANTINE]
    assert (steps[0].about, steps[0].job) == ("", "77")


def test_a_hold_of_before_the_boot_is_none_even_where_slurm_still_shows_it() -> None:
    steps = plan(inp(holds=hold(boot_id="b0"), jobs=(holder(),), node_state=DOWN))
    assert kinds(steps) == [st.HOLD_LOST, st.QUARANTINE]
    assert steps[0].about == "reboot"


def test_a_hold_on_another_gpu_is_ended_first() -> None:
    """gres.conf was changed under it: its position is another card now."""
    steps = plan(inp(holds=hold(), jobs=(holder(positions=(4,)),)))
    assert kinds(steps) == [st.UNHOLD, st.QUARANTINE]
    assert plan(inp(holds=hold(), jobs=(holder(positions=None),))) == (), "after a restart Slurm does not say for a moment"
    assumed = mapping(exact=False)
    assert plan(inp(holds=hold(), jobs=(holder(positions=(4,)),), mapping=assumed)) == (), "positions are not certain"


@pytest.mark.parametrize("other", [users(3), holder(uid=1001), holder(comment="mine")])
def test_a_lost_hold_of_which_a_user_has_the_gpu_waits_for_the_epilog(other: NodeJob) -> None:
    """Users can set any comment, and root's other jobs have another one: neither is ours, though the number is."""
    assert kinds(plan(inp(holds=hold(), jobs=(other,)))) == [st.HOLD_LOST]


def test_losses_are_counted_but_not_those_by_a_reboot() -> None:
    for about, count in (("", 1), ("reboot", 0)):
        site = Site()
        site.ledger.holds = hold()
        done = site.do((Step(st.HOLD_LOST, uuid=BAD, about=about, job="77"),), inp())
        assert done.done[0].ok
        assert site.ledger.holds == {}
        assert [(s.kind, s.key) for s in site.ledger.strikes] == [(quarantine.LOST, BAD)] * count


def test_a_hold_that_is_lost_again_and_again_is_a_drain() -> None:
    strikes = tuple(Strike(quarantine.LOST, BAD, T0 - n * 60 * S) for n in range(quarantine.MOST_LOST + 1))
    steps = plan(inp(strikes=strikes))
    assert kinds(steps) == [st.DRAIN]
    assert steps[0].reason.endswith("was lost 4 times within 1h")
    assert kinds(plan(inp(strikes=strikes[:-1]))) == [st.QUARANTINE]
    assert kinds(plan(inp(strikes=tuple(s._replace(key=uuid(4)) for s in strikes)))) == [st.QUARANTINE]
    assert kinds(plan(inp(strikes=tuple(s._replace(at_ns=T0 - 3601 * S) for s in strikes)))) == [st.QUARANTINE]
    assert plan(inp(strikes=strikes, holds=hold(), jobs=(holder(),))) == (), "it holds now"


# --- drained instead


@pytest.mark.parametrize("numbers", ["minor", "index"])
def test_where_numbers_are_no_positions_a_hold_could_not_be_told_from_one_of_another_gpu(numbers: str) -> None:
    other = ON._replace(slurm=pol.Slurm(job_gpus=numbers))
    steps = plan(inp(FAULT, exclusions={}, policy=other))
    assert st.EXCLUDE not in kinds(steps)
    assert "SLURM_JOB_GPUS does not hold positions" in only(steps, st.DRAIN).why
    assert st.EXCLUDE in kinds(plan(inp(FAULT, exclusions={})))


def test_a_gpu_not_held_in_time_drains_the_node_and_is_not_placed_again() -> None:
    late = inp(intents=pending(next_ns=T0))
    steps = plan(late)
    assert kinds(steps) == [st.DRAIN, st.END_INTENT]
    assert (steps[0].keys, steps[1].about) == ((KEY,), "quarantine")
    assert "gpu" in steps[0].reason.lower()
    assert steps[0].reason.endswith("could not be quarantined within 30s")
    assert not steps[0].standing
    assert kinds(plan(late._replace(jobs=None))) == [st.DRAIN, st.END_INTENT], "the ledger knows of no hold"
    assert needs_node_state(late._replace(node_state=None))


def test_the_drain_waits_for_slurm_like_any_other() -> None:
    steps = plan(inp(intents=pending(next_ns=T0), node_state=None, jobs=None))
    assert st.INTENT in kinds(steps)
    assert st.DRAIN not in kinds(steps)


def test_a_quarantine_that_is_too_old_is_a_drain_and_the_hold_ends() -> None:
    old: dict[str, Any] = {"exclusions": excluded(until_ns=T0), "holds": hold(), "jobs": (holder(),)}
    steps = plan(inp(**old))
    assert kinds(steps) == [st.DRAIN], "it holds until the drain is seen: a limit may turn that away"
    assert steps[0].reason.endswith("has been quarantined since 2027-01-15T07:59:00Z: repair it")
    own = OwnDrain(steps[0].reason, T0, True, steps[0].keys)
    assert kinds(plan(inp(**old, own=own, node_state=drained(own.reason, "MIXED"))))[-1] == st.UNHOLD
    limited = Intent("drain", own.reason, T0 - S, own.keys, tries=1, next_ns=T0 + S, limited="limit: 1 of 1", policy="test")
    assert plan(inp(**old, intents=(limited,))) == ()
    assert st.UNHOLD not in kinds(plan(inp(**old, node_state=DOWN))), "users come as soon as it registers"
    assert needs_jobs(inp(hook="epilog", exclusions=excluded(until_ns=T0), holds=hold(), jobs=None)), "which are to end it"
    assert not needs_jobs(inp(hook="epilog", holds=hold(), jobs=None))
    assert plan(inp(exclusions=excluded(until_ns=T0 + 1), holds=hold(), jobs=(holder(),))) == ()
    assert plan(inp(exclusions=excluded(until_ns=0), holds=hold(), jobs=(holder(),))) == ()


def test_once_the_node_is_out_nothing_more_is_done_about_it() -> None:
    out = drained("ADMIN: memory test")
    assert kinds(plan(inp(intents=pending(next_ns=T0), node_state=out))) == [st.KEEP, st.END_INTENT]
    assert plan(inp(node_state=out, holds=hold(), jobs=(holder(),))) == (), "the hold stays: users come back with a resume"


def test_another_fault_drains_and_nothing_is_placed() -> None:
    worse = decision(proposal("drain", finding("XID-FATAL", 5)))
    assert kinds(plan(inp(worse))) == [st.DRAIN]


# --- ending


def test_a_hold_ends_with_its_exclusion() -> None:
    for jobs in ((holder(),), (), None):
        steps = plan(inp(exclusions={}, holds=hold(), jobs=jobs))
        assert kinds(steps) == [st.UNHOLD]
        assert (steps[0].uuid, steps[0].job) == (BAD, "77")
    assert needs_node_state(inp(exclusions={}, holds=hold(), node_state=None))
    assert kinds(plan(inp(exclusions={}, jobs=(holder(),)))) == [st.UNHOLD], "one that the ledger does not know"
    assert plan(inp(exclusions={}, jobs=(holder(uid=1001),))) == (), "a user's that says the same"


def test_a_card_that_was_replaced_is_not_held_any_more() -> None:
    one = excluded(slot="0000:03:00.0")
    steps = plan(inp(exclusions=one, holds=hold(), jobs=(holder(),), slots={"0000:03:00.0": "GPU-new"}))
    assert kinds(steps) == [st.END_EXCLUSION, st.UNHOLD]


def test_the_hold_gives_way_to_a_reboot_that_slurm_waits_with() -> None:
    asap = NodeState("MIXED", frozenset({"DRAIN", "REBOOT_REQUESTED"}), "Reboot ASAP")
    later = NodeState("MIXED", frozenset({"REBOOT_REQUESTED"}))
    assert kinds(plan(inp(node_state=asap, holds=hold(), jobs=(holder(), users(0))))) == [st.UNHOLD]
    assert kinds(plan(inp(node_state=later, holds=hold(), jobs=(holder(),)))) == [st.UNHOLD]
    assert plan(inp(node_state=later, holds=hold(), jobs=(holder(), users(0)))) == (), "users' jobs still come"


# --- prologs


def test_a_job_that_was_given_it_all_the_same_does_not_run() -> None:
    own = users(2, 3, job_id="8812")
    steps = plan(inp(hook="prolog", job=job(2, 3), mapping=mapping(2, 3), jobs=(own,)))
    assert kinds(steps) == [st.DRAIN, st.NOTIFY, st.FAIL_JOB]
    assert "job 8812 was given GPU-00000003… GPU-00000003…, which is quarantined (NVL-STORM)" in only(steps, st.NOTIFY).why
    assert "no placeholder job holds it" in only(steps, st.FAIL_JOB).why
    ends = inp(hook="epilog", job=job(2, 3), mapping=mapping(2, 3), jobs=(own._replace(state="COMPLETING"),))
    assert kinds(plan(ends)) == [st.QUARANTINE], "said once, where it starts"
    watched = inp(hook="prolog", job=job(2, 3), mapping=mapping(2, 3), jobs=(own,), policy=ON._replace(mode="observe"))
    assert plan(watched) == (), "in observe mode nothing is kept from jobs"


def test_a_job_that_can_be_narrowed_runs_without_it() -> None:
    both = ON._replace(narrow=pol.Narrow(enabled=True))
    steps = plan(inp(hook="prolog", job=job(2, 3), mapping=mapping(2, 3), policy=both, jobs=(users(2, 3, job_id="8812"),)))
    assert kinds(steps) == [st.NARROW, st.NOTIFY]
    assert only(steps, st.NARROW).uuids == (BAD,)


def test_a_new_fault_in_the_prolog_drains_where_the_job_can_not_be_moved() -> None:
    own = users(2, 3, job_id="8812")
    now = inp(decision(proposal(of_job=True)), "prolog", exclusions={}, job=job(2, 3), mapping=mapping(2, 3), jobs=(own,))
    assert kinds(plan(now)) == [st.DRAIN, st.FAIL_JOB]


def test_a_new_fault_in_the_prolog_excludes_and_moves_the_job_where_that_is_allowed() -> None:
    moves = ON._replace(requeue=Requeue(enabled=True))
    own = users(2, 3, job_id="8812")._replace(batch=True, requeue=True)
    for exclusions, what, first in (({}, decision(proposal(of_job=True)), st.EXCLUDE), (excluded(), NOTHING, st.NOTIFY)):
        now = inp(what, "prolog", exclusions=exclusions, job=job(2, 3), mapping=mapping(2, 3), jobs=(own,), policy=moves, slurm_job=own)
        steps = plan(now)
        assert kinds(steps)[0] == first
        assert st.DRAIN not in kinds(steps)
        assert st.QUARANTINE not in kinds(steps), "the job has it still: its epilog has it held"
        assert only(steps, st.REQUEUE).way == kept.QUARANTINE
        assert only(steps, st.REQUEUE).reason.startswith("nvhc: "), "what to drain with if it can not be moved after all"
        assert st.DRAIN in kinds(plan(now._replace(slurm_job=own._replace(requeue=False))))


def test_a_job_that_is_moved_off_a_hidden_gpu_still_drains_the_node() -> None:
    """Nothing would keep the next job off it: only a placeholder job does."""
    hides = policy(pol.Narrow(enabled=True))._replace(requeue=Requeue(enabled=True))
    own = users(2, 3, job_id="8812")._replace(batch=True, requeue=True)
    many: dict[str, Any] = {"job": job(2, 3, tasks=2), "mapping": mapping(2, 3), "jobs": (own,), "slurm_job": own, "policy": hides}
    for exclusions, what in (({}, decision(proposal(of_job=True))), (excluded(way=kept.NARROW), NOTHING)):
        steps = plan(inp(what, "prolog", exclusions=exclusions, **many))
        assert st.DRAIN in kinds(steps)
        assert only(steps, st.REQUEUE).way == ""


# --- observe mode, pause


def test_in_observe_mode_and_in_a_pause_it_is_only_said() -> None:
    pause = Pause(T0 + 3600 * S, "driver", "ada", T0)
    for change in ({"policy": ON._replace(mode="observe")}, {"pause": pause}):
        for now in (inp(**change), inp(exclusions={}, holds=hold(), jobs=(holder(),), **change)):
            steps = plan(now)
            assert kinds(steps) == [st.NOTE]
            assert "would " in steps[0].why
        assert kinds(plan(inp(exclusions=excluded(until_ns=T0 - 1), holds=hold(), jobs=(holder(),), **change))) == []


# --- whatever happens


STATES = hs.sampled_from([None, IDLE, NodeState("MIXED", frozenset()), DOWN, drained("nvhc: x"), drained("ADMIN: y", "MIXED")])
ONE_JOB = hs.sampled_from(
    [users(3), users(0, 1), users(3, state="COMPLETING"), holder(), holder(positions=(4,)), holder(5, "78"), holder(state="PENDING")]
)
JOBS = hs.one_of(hs.none(), hs.lists(ONE_JOB, max_size=3, unique=True).map(tuple))
LOST_SOMETIMES = hs.integers(0, quarantine.MOST_LOST + 2)


@settings(max_examples=400, deadline=None)
@hyp(
    hook=hs.sampled_from(["prolog", "epilog", "health_check"]),
    state=STATES,
    jobs=JOBS,
    lost=LOST_SOMETIMES,
    has=hs.booleans(),
    is_excluded=hs.booleans(),
    boot=hs.sampled_from(["", "b0", "b1"]),
    record=hs.booleans(),
    wait=hs.sampled_from([None, 0, 5]),
    old=hs.booleans(),
)
def test_never_both_never_beside_a_user_never_another_gpus(
    hook: str, state: Optional[NodeState], jobs: Optional[tuple[NodeJob, ...]], lost: int, has: bool, is_excluded: bool, boot: str,
    record: bool, wait: Optional[int], old: bool,
) -> None:  # fmt: skip
    strikes = tuple(Strike(quarantine.LOST, BAD, T0) for _ in range(lost))
    one = excluded(until_ns=T0 - 1 if old else T0 + S) if is_excluded else {}
    mine: dict[str, Any] = {"job": job(2, 3), "mapping": mapping(2, 3)} if has and hook != "health_check" else {}
    now = inp(
        hook=hook, node_state=state, jobs=jobs, strikes=strikes, exclusions=one, holds=hold(boot_id=boot) if record else {},
        intents=() if wait is None else pending(next_ns=T0 + (wait - 1) * S), **mine,
    )  # fmt: skip
    steps = plan(now)
    placed = [s for s in steps if s.kind == st.QUARANTINE]
    drains = [s for s in steps if s.kind in (st.DRAIN, st.INTENT)]
    assert not (placed and drains), "never both"
    assert len(placed) <= 1
    if placed:
        assert is_excluded
        assert placed[0].uuid == BAD
        assert state is not None
        assert not state.flags & {"DRAIN"}
        assert placeholder.user_of(3, jobs or ()) is None
        if jobs is not None and boot != "b0":
            assert holder() not in jobs, "it is held"
    if not is_excluded:
        assert not drains
    for step in steps:
        if step.kind == st.UNHOLD:
            assert record or step.uuid in placeholder.held(jobs or ())
    # Doing it twice plans nothing new: a plan does not depend on having been made.
    assert plan(now) == steps
