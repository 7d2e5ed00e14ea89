"""act/job_care.py, act/jobs.py, act/moved.py: a job that was given a bad GPU is moved, and what can go wrong on the way."""

from __future__ import annotations

from typing import Any

import pytest
from act_fakes import IDLE, T0, decision, drained, finding, job, kinds, mapping, proposal, uuid
from hypothesis import given as hyp
from hypothesis import strategies as st
from job_fakes import KILLED, OURS, Care, Killed, Queue, batch, caring

from slurm_nvhc.act import job_care, moved, outbox
from slurm_nvhc.act import steps as sp
from slurm_nvhc.model.node_job import NodeJob
from slurm_nvhc.model.protective import Exclusion, Pause, Strike
from slurm_nvhc.policy.compiled import Quarantine, Requeue
from slurm_nvhc.slurm.command import MISSING, REFUSED, TIMEOUT, UNREACHABLE

ON = caring(Requeue(enabled=True))
HOLDS = caring(Requeue(enabled=True), quarantine=Quarantine(enabled=True))
FAULT = decision(proposal("drain", of_job=True))
ONE_GPU = decision(proposal("narrow", of_job=True))
TAG = "nvhc: moved off n1 (NVL-STORM gpu3); 1 time, restart 1"


def care(job: NodeJob | None = None, **queue: Any) -> Care:
    return Care(Queue(job or batch(), **queue), ON)


def prolog(site: Care, **changes: Any):  # type: ignore[no-untyped-def]
    return site.run(changes.pop("what", FAULT), hook="prolog", **changes)


def stayed(site: Care) -> None:
    assert "requeue" not in site.queue.calls
    assert site.queue.jobs[OURS].restarts == 0


def test_a_batch_job_is_moved_once_the_node_is_out() -> None:
    site = care()
    steps, outcome = prolog(site)
    assert [k for k in kinds(steps) if k != sp.INTENT] == [sp.DRAIN, sp.REQUEUE, sp.FAIL_JOB]
    assert site.slurm.state.out
    assert not outcome.fail_hook, "the prolog of a job that was moved ends well, or Slurm would hold the job"
    assert all(d.ok for d in outcome.done), outcome
    moved_job = site.queue.jobs[OURS]
    assert (moved_job.restarts, moved_job.admin_comment, moved_job.excluded) == (1, TAG, "n1")
    assert site.ledger.pending == [], "nothing is left for the epilog"
    assert [(s.kind, s.key) for s in site.ledger.strikes if s.kind == "requeue"] == [("requeue", OURS)]
    assert any("moved job 8812" in line for line in site.lines)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"batch": False}, "not a batch job"),
        ({"requeue": False}, "does not allow"),
        ({"het": True}, "heterogeneous"),
        ({"uid": 0, "comment": "nvhc-hold"}, "placeholder"),
        ({"state": "SUSPENDED"}, "SUSPENDED"),
    ],
)
def test_what_slurm_would_not_move_is_failed_as_before(changes: dict[str, Any], why: str) -> None:
    site = care(batch(**changes))
    steps, outcome = prolog(site)
    assert sp.REQUEUE not in kinds(steps)
    assert any(s.kind == sp.NOTE and why in s.why for s in steps), steps
    if changes.get("state") is None:
        assert outcome.fail_hook
    stayed(site)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"alloc": False}, "no Alloc"),
        ({"alloc": None}, "not known whether PrologFlags"),
        ({"slurm_job": None}, "does not say"),
    ],
)
def test_not_without_alloc_and_not_blindly(changes: dict[str, Any], why: str) -> None:
    site = care()
    steps, outcome = prolog(site, **changes)
    assert any(s.kind == sp.NOTE and why in s.why for s in steps)
    assert outcome.fail_hook
    stayed(site)


def test_off_by_default_and_never_from_another_hook() -> None:
    site = Care(Queue(batch()), caring())
    steps, outcome = prolog(site)
    assert not any("moved" in s.why for s in steps)
    assert outcome.fail_hook
    stayed(site)
    site = care()
    site.run(FAULT, hook="epilog")
    site.run(FAULT, hook="health_check")
    stayed(site)


def test_a_job_is_moved_so_often_and_then_failed() -> None:
    for times, moves in ((1, True), (2, False), (9, False)):
        site = care(batch(admin_comment=f"nvhc: moved off n7 (XID-FATAL gpu0); {times} times, restart {times}"))
        steps, outcome = prolog(site)
        assert (sp.REQUEUE in kinds(steps)) == moves
        assert outcome.fail_hook != moves
        if not moves:
            stayed(site)
            assert [s.why for s in steps if s.kind == sp.ALERT] == [f"job 8812 is not moved: it was moved {times} times already, 2 may be"]


def test_a_node_moves_so_many_jobs_away_and_then_fails_them() -> None:
    day = 86400 * 10**9
    recent = [Strike("requeue", str(n), T0 - n) for n in range(5)]
    for strikes, moves in ((recent[:4], True), (recent, False), ([s._replace(at_ns=T0 - day) for s in recent], True)):
        site = care()
        site.ledger.strikes = list(strikes)
        steps, outcome = prolog(site)
        assert outcome.fail_hook != moves
        assert (sp.ALERT in kinds(steps)) != moves
        if not moves:
            stayed(site)


def test_another_nodes_count_is_seen_before_the_move() -> None:
    site = care()
    site.queue.meanwhile["job"] = lambda: site.queue.change(OURS, admin_comment="nvhc: moved off n7 (X gpu0); 2 times, restart 2")
    _, outcome = prolog(site)
    assert outcome.fail_hook
    stayed(site)


def test_an_admin_comment_that_can_not_be_read_is_no_count_of_zero() -> None:
    site = care(batch(admin_comment="nvhc: moved off n7, many times"))
    _, outcome = prolog(site)
    assert outcome.fail_hook
    stayed(site)


def test_a_job_that_is_cancelled_meanwhile_is_neither_moved_nor_failed() -> None:
    site = care()
    site.queue.meanwhile["job"] = site.queue.cancel
    _, outcome = prolog(site)
    assert not outcome.fail_hook, "Slurm would put the cancelled job back into its queue"
    stayed(site)
    assert site.ledger.strikes == [s for s in site.ledger.strikes if s.kind != "requeue"]


def test_a_job_that_is_cancelled_between_look_and_request_is_not_our_doing() -> None:
    # Slurm does requeue it then: the window between the two commands. When it refuses, nothing is held against it.
    site = care()
    site.queue.trouble["requeue"] = (REFUSED, False)
    site.queue.meanwhile["requeue"] = site.queue.cancel
    _, outcome = prolog(site)
    assert not outcome.fail_hook
    assert site.ledger.pending == []


@pytest.mark.parametrize("enabled", [True, False])
def test_a_cancelled_job_is_never_failed(enabled: bool) -> None:
    site = Care(Queue(batch(state="COMPLETING")), caring(Requeue(enabled=enabled)))
    _, outcome = prolog(site)
    assert site.slurm.state.out
    assert not outcome.fail_hook
    stayed(site)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_job_that_slurm_does_not_show_is_failed(enabled: bool) -> None:
    site = Care(Queue(batch()), caring(Requeue(enabled=enabled)))
    site.queue.meanwhile["job"] = site.queue.jobs.clear
    _, outcome = prolog(site)
    assert outcome.fail_hook
    site = care()
    site.queue.trouble["requeue"] = (REFUSED, False)
    site.queue.meanwhile["requeue"] = site.queue.jobs.clear
    assert prolog(site)[1].fail_hook


@pytest.mark.parametrize("kind", [TIMEOUT, UNREACHABLE])
def test_a_request_without_an_answer_is_looked_at(kind: str) -> None:
    site = care()
    site.queue.trouble["requeue"] = (kind, True)
    _, outcome = prolog(site)
    assert not outcome.fail_hook
    assert (site.queue.jobs[OURS].admin_comment, site.queue.calls.count("requeue")) == (TAG, 1)
    site = care()
    site.queue.trouble["requeue"] = (kind, False)
    _, outcome = prolog(site)
    assert outcome.fail_hook
    assert site.queue.calls.count("requeue") == 1
    assert [i.kind for i in site.ledger.pending] == [sp.EXCLUDE_NODE], "it may be applied late: the epilog will see"


def test_a_job_of_which_nothing_is_known_does_not_start_on_the_bad_gpu() -> None:
    site = care()
    site.queue.trouble["requeue"] = (TIMEOUT, True)
    site.queue.meanwhile["requeue"] = lambda: site.queue.trouble.update(job=(TIMEOUT, False))
    _, outcome = prolog(site)
    assert outcome.fail_hook
    assert {t.code for t in outcome.troubles} == {"MON-SLURM"}
    # Its epilog comes to it: Slurm requeued it once, whoever asked for that.
    site.queue.trouble.clear()
    site.run(hook="epilog")
    assert site.queue.jobs[OURS].admin_comment == TAG
    assert site.ledger.pending == []


def test_refused_is_failed() -> None:
    site = care()
    site.queue.trouble["requeue"] = (REFUSED, False)
    _, outcome = prolog(site)
    assert outcome.fail_hook
    assert site.ledger.pending == []


@pytest.mark.parametrize("behaviour", ["refuses", "hangs_at_update"])
def test_the_job_stays_where_the_node_can_not_be_drained(behaviour: str) -> None:
    site = care()
    inp = site.input(FAULT, hook="prolog")
    site.slurm.behaviour = behaviour
    outcome = site.do(sp_plan(inp), inp)
    assert not outcome.fail_hook
    stayed(site)


def sp_plan(inp: Any) -> Any:
    from slurm_nvhc.act.plan import plan

    return plan(inp)


def test_what_can_not_be_counted_is_not_moved() -> None:
    site = care()
    site.ledger.broken = True
    inp = site.input(FAULT, hook="prolog", own=None, intents=())
    outcome = site.do(sp_plan(inp), inp)
    assert site.slurm.state.out
    assert outcome.fail_hook
    stayed(site)


def test_an_administrators_drain_is_as_good() -> None:
    site = care()
    site.slurm.state = drained("ADMIN: psu")
    _, outcome = prolog(site)
    assert not outcome.fail_hook
    assert site.slurm.state == drained("ADMIN: psu")
    assert site.queue.jobs[OURS].restarts == 1


def test_two_nodes_that_move_the_same_job_count_it_once() -> None:
    first = care(batch(positions=(2, 3)))
    second = Care(first.queue, ON)
    # The other node comes first, between our look and our request.
    first.queue.meanwhile["requeue"] = lambda: prolog(second)
    _, outcome = prolog(first)
    assert not outcome.fail_hook
    moved_job = first.queue.jobs[OURS]
    assert moved_job.restarts == 1
    assert moved.count(moved_job.admin_comment) == 1


@pytest.mark.parametrize("call", ["alike", "excnodelist", "admincomment"])
@pytest.mark.parametrize("kind", [TIMEOUT, UNREACHABLE])
def test_what_its_prolog_could_not_tell_its_epilog_does(call: str, kind: str) -> None:
    site = care()
    site.queue.trouble[call] = (kind, False)
    _, outcome = prolog(site)
    assert not outcome.fail_hook
    assert [i.kind for i in site.ledger.pending] == [sp.EXCLUDE_NODE]
    site.queue.trouble.clear()
    site.run(hook="epilog", job=job(0)._replace(job_id="77"))
    assert len(site.ledger.pending) == 1, "only its own epilog: before it the job may still be here"
    steps, _ = site.run(hook="epilog")
    assert sp.EXCLUDE_NODE in kinds(steps)
    moved_job = site.queue.jobs[OURS]
    assert (moved_job.admin_comment, moved_job.excluded, site.ledger.pending) == (TAG, "n1", [])


def test_killed_right_after_the_request_it_is_still_counted_once() -> None:
    site = care()

    def kill() -> None:
        raise Killed

    def requeued_then_killed() -> None:
        site.queue.meanwhile["job"] = kill

    site.queue.meanwhile["requeue"] = requeued_then_killed
    with pytest.raises(Killed):
        prolog(site)
    assert site.queue.jobs[OURS].restarts == 1
    assert site.queue.jobs[OURS].admin_comment == ""
    for _ in range(2):
        site.run(hook="epilog")
    assert site.queue.jobs[OURS].admin_comment == TAG
    assert site.ledger.pending == []


@pytest.mark.parametrize("quarantined", [False, True])
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("kind", [TIMEOUT, UNREACHABLE, REFUSED, KILLED])
@pytest.mark.parametrize("call", range(1, 9))
def test_whatever_fails_at_whichever_call(call: int, kind: str, applied: bool, quarantined: bool) -> None:
    site = Care(Queue(batch()), HOLDS if quarantined else ON)
    site.queue.trouble_at[call] = (kind, applied)
    try:
        _, outcome = prolog(site, what=ONE_GPU if quarantined else FAULT)
    except Killed:
        outcome = None
    there = site.queue.jobs[OURS].restarts == 0
    if outcome is not None:
        assert outcome.fail_hook or not there, "it does not start on the bad GPU"
        assert site.slurm.state.out or not outcome.fail_hook, "Slurm would drain the node for a prolog that fails"
        assert site.slurm.state.out or not there
    site.run(hook="epilog")
    now = site.queue.jobs[OURS]
    assert [i for i in site.ledger.pending if i.kind == sp.EXCLUDE_NODE] == []
    assert now.restarts <= 1
    assert moved.count(now.admin_comment) == now.restarts or kind == REFUSED
    assert site.queue.calls.count("requeue") <= 1


def test_what_is_left_over_does_not_stay_for_ever() -> None:
    site = care()
    site.queue.trouble["admincomment"] = (UNREACHABLE, False)
    prolog(site)
    site.now_ns += outbox.age_ns(sp.EXCLUDE_NODE) + 1
    steps, _ = site.run(hook="epilog")
    assert sp.EXCLUDE_NODE not in kinds(steps)
    assert site.ledger.pending == []
    site = care()
    site.queue.trouble["admincomment"] = (UNREACHABLE, False)
    prolog(site)
    site.queue.jobs.clear()
    site.run(hook="epilog")
    assert site.ledger.pending == [], "the job is gone"


def test_what_others_wrote_is_kept() -> None:
    site = care(batch(admin_comment="ticket 4711\nsee wiki", excluded="n[7-8]"))
    prolog(site)
    moved_job = site.queue.jobs[OURS]
    assert moved_job.admin_comment == f"ticket 4711\nsee wiki; {TAG}"
    assert moved_job.excluded == "n[7-8],n1"


@pytest.mark.parametrize(
    ("changes", "others", "nodes"),
    [
        ({"required": "n1"}, ("n2", "n3"), 1),
        ({"reservation": "course"}, ("n2", "n3"), 1),
        ({}, (), 1),
        ({"excluded": "n[2-3]"}, ("n2", "n3"), 1),
        ({}, ("n2", "n3"), 3),
    ],
)
def test_a_job_is_not_left_without_a_node_it_can_run_on(changes: dict[str, Any], others: tuple[str, ...], nodes: int) -> None:
    """Slurm holds a job that excludes all of them."""
    site = care(batch(**changes), others=others)
    _, outcome = prolog(site, job=job(2, 3, nodes=nodes))
    assert not outcome.fail_hook
    moved_job = site.queue.jobs[OURS]
    assert (moved_job.restarts, moved_job.excluded) == (1, changes.get("excluded", ""))
    assert moved_job.admin_comment == TAG
    assert site.ledger.pending == []


def test_without_sinfo_the_node_is_not_excluded_and_the_job_is_moved_all_the_same() -> None:
    site = care()
    site.queue.trouble["alike"] = (MISSING, False)
    _, outcome = prolog(site)
    assert not outcome.fail_hook
    assert (site.queue.jobs[OURS].excluded, site.queue.jobs[OURS].admin_comment, site.ledger.pending) == ("", TAG, [])


# --- with quarantine: the node stays in service ----------------------------



def test_off_a_gpu_that_will_be_held_a_job_is_moved_without_a_drain() -> None:
    site = Care(Queue(batch()), HOLDS)
    steps, outcome = prolog(site, what=ONE_GPU)
    assert sp.DRAIN not in kinds(steps)
    assert kinds(steps).index(sp.EXCLUDE) < kinds(steps).index(sp.REQUEUE)
    assert not outcome.fail_hook
    assert site.slurm.state == IDLE
    assert uuid(3) in site.ledger.excluded
    assert site.queue.jobs[OURS].restarts == 1


@pytest.mark.parametrize("applied", [True, False])
def test_when_it_can_not_be_moved_then_the_node_is_drained_after_all(applied: bool) -> None:
    site = Care(Queue(batch()), HOLDS)
    site.queue.trouble["requeue"] = (REFUSED if not applied else TIMEOUT, False)
    _, outcome = prolog(site, what=ONE_GPU)
    assert site.slurm.state.out
    assert "NVL-STORM gpu3" in site.slurm.state.reason
    assert outcome.fail_hook


def test_when_it_can_not_be_drained_either_it_is_let_through() -> None:
    site = Care(Queue(batch()), HOLDS)
    site.queue.trouble["requeue"] = (REFUSED, False)
    inp = site.input(ONE_GPU, hook="prolog")
    site.slurm.behaviour = "refuses"
    outcome = site.do(sp_plan(inp), inp)
    assert not outcome.fail_hook, "Slurm would drain the node itself, with a reason that says nothing"


def test_a_moved_job_is_not_failed_where_slurm_falls_silent_then() -> None:
    site = care()
    site.queue.trouble["alike"] = (TIMEOUT, False)
    site.queue.meanwhile["alike"] = lambda: site.queue.trouble.update(job=(TIMEOUT, False))
    _, outcome = prolog(site)
    assert not outcome.fail_hook


def test_a_gpu_whose_hold_is_missing_moves_the_job_too() -> None:
    site = Care(Queue(batch()), HOLDS)
    site.ledger.excluded[uuid(3)] = Exclusion(uuid(3), "NVL-STORM", "gpu3", "nvhc", T0, way="quarantine")
    _, outcome = prolog(site, what=decision(), names={uuid(3): "gpu3"})
    assert (site.queue.jobs[OURS].restarts, outcome.fail_hook, site.slurm.state) == (1, False, IDLE)
    assert site.queue.jobs[OURS].admin_comment == TAG
    site.queue = Queue(batch(batch=False))
    _, outcome = prolog(site, what=decision())
    assert outcome.fail_hook
    assert site.slurm.state.out


# --- where nothing is done --------------------------------------------------


def test_observe_mode_and_a_pause_say_what_would_be_done() -> None:
    site = Care(Queue(batch()), ON._replace(mode="observe"))
    steps, outcome = prolog(site, what=decision(observed=(proposal("drain", of_job=True),)))
    assert set(kinds(steps)) == {sp.NOTE}
    assert any("would move job 8812" in s.why for s in steps)
    assert not outcome.fail_hook
    assert site.queue.calls == []
    site = care()
    steps, outcome = prolog(site, pause=Pause(T0 + 10**12, "driver", "ada", T0))
    assert set(kinds(steps)) == {sp.NOTE}
    assert any("would move this job 8812" in s.why for s in steps)
    assert not outcome.fail_hook
    assert [c for c in site.queue.calls if c != "job"] == []


def test_a_moved_jobs_epilog_does_nothing_in_observe_mode() -> None:
    site = care()
    site.queue.trouble["admincomment"] = (UNREACHABLE, False)
    prolog(site)
    site.queue.trouble.clear()
    site.policy = ON._replace(mode="observe")
    site.queue.calls = []
    site.run(hook="epilog")
    assert site.queue.calls == []


# --- the tag ----------------------------------------------------------------

words = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=30)


names = st.lists(st.sampled_from(["n1", "n22", "gpu-07"]), max_size=12)


@hyp(before=words.filter(lambda t: "nvhc: moved off" not in t), why=words, nodes=names)
def test_each_requeue_counts_once_and_what_others_wrote_stays(before: str, why: str, nodes: list[str]) -> None:
    comment = before
    for restart, node in enumerate(nodes, 1):
        comment = moved.tagged(comment, node, why, restart)
        assert moved.count(comment) == restart
        assert moved.tagged(comment, "n9", "other", restart) == comment
        assert comment.startswith(before.rstrip())
    after = moved.tagged(f"{comment} | by hand", "n1", why, len(nodes) + 1)
    assert moved.count(after) == len(nodes) + 1
    if nodes:
        assert after.endswith(" | by hand")


def test_the_tag_names_the_newest_nodes() -> None:
    comment = ""
    for restart in range(1, 13):
        comment = moved.tagged(comment, f"n{restart}", "X gpu0", restart)
    assert comment == "nvhc: moved off n5,n6,n7,n8,n9,n10,n11,n12 (X gpu0); 12 times, restart 12"


@pytest.mark.parametrize(
    "text", ["nvhc: moved off n1 (x); many times", "nvhc: moved off", "nvhc: moved off n1 (a); 1 time, restart 1; nvhc: moved off n2"]
)
def test_an_edited_tag_is_unreadable_and_left_alone(text: str) -> None:
    assert moved.count(text) is None
    assert moved.tagged(text, "n1", "x", 2) == text


def test_grounds_are_short_and_name_the_gpu() -> None:
    site = care()
    two = decision(proposal("drain", finding(n=2), finding("MEM-REMAP-FAILED", n=3), of_job=True))
    inp = site.input(two, hook="prolog", mapping=mapping(2, 3))
    step = next(s for s in sp_plan(inp) if s.kind == sp.REQUEUE)
    assert step.why == "NVL-STORM gpu2, MEM-REMAP-FAILED gpu3"
    assert job_care.grounds(inp._replace(exclusions={}), job_care_wish(inp)) == step.why


def job_care_wish(inp: Any) -> Any:
    from slurm_nvhc.act.wish import want

    return want(inp)
