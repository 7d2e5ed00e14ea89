"""The signal before a drain: who gets it, that it is sent once, and what ends the wait."""

from __future__ import annotations

from typing import Any

import pytest
from act_fakes import IDLE, T0, decision, drained, finding, job, kinds, proposal, uuid
from job_fakes import Care, Queue, batch, caring

from slurm_nvhc.act import steps as sp
from slurm_nvhc.act.plan import needs_jobs, needs_node_state
from slurm_nvhc.model.node_job import NodeJob
from slurm_nvhc.model.protective import Pause
from slurm_nvhc.policy.compiled import Checkpoint
from slurm_nvhc.slurm.command import REFUSED, TIMEOUT, UNREACHABLE

GRACE_S = 300.0
ON = caring(checkpoint=Checkpoint(enabled=True, grace_s=GRACE_S))
FAULT = decision(proposal("drain", finding("MEM-REMAP-FAILED")))
NONE = decision()
CHECK: dict[str, Any] = {"hook": "health_check"}


def asked(job_id: str = "12", **changes: Any) -> NodeJob:
    return batch(job_id, **{"comment": "big run nvhc-checkpoint", **changes})


def site_with(*jobs: NodeJob) -> Care:
    return Care(Queue(*jobs), ON)


def later(site: Care, seconds: float) -> None:
    site.now_ns += round(seconds * 1e9)


def begun(*more: NodeJob) -> Care:
    site = site_with(asked(), *more)
    site.run(FAULT, **CHECK)
    assert site.queue.signals == ["USR1 12 batch"]
    assert site.slurm.state == IDLE
    return site


def waits(site: Care) -> None:
    assert not site.slurm.state.out
    assert [i.kind for i in site.ledger.pending] == [sp.DRAIN]


def out(site: Care) -> None:
    assert site.slurm.state.out, site.slurm.state
    assert [i for i in site.ledger.pending if i.kind == sp.DRAIN] == []
    assert site.queue.signals == ["USR1 12 batch"]


def test_the_drain_is_written_down_then_the_job_is_told_then_the_node_drained() -> None:
    site = site_with(asked())
    steps, outcome = site.run(FAULT, **CHECK)
    assert kinds(steps) == [sp.INTENT, sp.SIGNAL]
    assert all(d.ok for d in outcome.done)
    waits(site)
    assert site.ledger.pending[0].next_ns == T0 + round(GRACE_S * 1e9)
    for _ in range(3):
        later(site, 60)
        site.run(FAULT, **CHECK)
        waits(site)
    later(site, 121)
    site.run(FAULT, **CHECK)
    out(site)


def test_the_wait_ends_by_itself_where_the_fault_is_not_seen_again() -> None:
    site = begun()
    later(site, GRACE_S - 1)
    site.run(NONE, **CHECK)
    waits(site)
    later(site, 2)
    site.run(NONE, **CHECK)
    out(site)


def test_off_by_default() -> None:
    site = Care(Queue(asked()), caring())
    site.run(FAULT, **CHECK)
    assert site.slurm.state.out
    assert site.queue.signals == []
    assert not needs_jobs(site.input(FAULT, **CHECK))


@pytest.mark.parametrize(
    "job",
    [
        asked(comment=""),
        asked(comment="nvhc-checkpoints"),
        asked(comment="no-nvhc-checkpoint"),
        asked(constraint="nvhc-checkpoint", comment=""),
        asked(state="COMPLETING"),
        asked(state="SUSPENDED"),
        asked(positions=(0, 1)),
        asked(positions=()),
        asked(positions=None),
        asked(uid=0, comment="nvhc-hold"),
    ],
)
def test_nobody_else_gets_a_signal_and_the_node_is_drained_at_once(job: NodeJob) -> None:
    site = site_with(job)
    site.run(FAULT, **CHECK)
    assert site.queue.signals == []
    assert site.slurm.state.out


@pytest.mark.parametrize("comment", ["nvhc-checkpoint", "a,nvhc-checkpoint,b", " x  nvhc-checkpoint "])
def test_words_of_a_comment(comment: str) -> None:
    site = site_with(asked(comment=comment))
    site.run(FAULT, **CHECK)
    assert site.queue.signals == ["USR1 12 batch"]


def test_a_placeholder_job_is_none_that_could_save() -> None:
    site = site_with(asked(uid=0, comment="nvhc-hold", constraint="ckpt"))
    site.policy = caring(checkpoint=Checkpoint(enabled=True, constraint="ckpt", comment="nvhc-hold"))
    site.run(FAULT, **CHECK)
    assert site.queue.signals == []


@pytest.mark.parametrize(
    ("constraint", "told"), [("ckpt", True), ("h100&(ckpt|big)", True), ("[ckpt*2&h100*2]", True), ("ckpt2", False), ("", False)]
)
def test_a_feature_of_the_constraint(constraint: str, told: bool) -> None:
    site = site_with(asked(comment="", constraint=constraint))
    site.policy = caring(checkpoint=Checkpoint(enabled=True, constraint="ckpt", signal="TERM"))
    site.run(FAULT, **CHECK)
    assert site.queue.signals == (["TERM 12 batch"] if told else [])


def test_empty_words_ask_for_nothing() -> None:
    site = site_with(asked(comment="", constraint=""))
    site.policy = caring(checkpoint=Checkpoint(enabled=True, comment="", constraint=""))
    site.run(FAULT, **CHECK)
    assert site.queue.signals == []


def test_a_job_without_a_script_gets_it_in_its_steps() -> None:
    site = site_with(asked(batch=False))
    site.run(FAULT, **CHECK)
    assert site.queue.signals == ["USR1 12"]


def test_a_fault_of_the_node_concerns_every_job_with_gpus() -> None:
    fault = decision(proposal("drain", finding("SWITCH-LOST", klass="switch", entity="switch:0")))
    site = site_with(asked("12", positions=(0,)), asked("13_4", positions=None), asked("14", positions=()), batch("15"))
    site.run(fault, **CHECK)
    assert site.queue.signals == ["USR1 12 batch", "USR1 13_4 batch"]


def test_trouble_of_ours_signals_nobody() -> None:
    fault = decision(proposal("drain", finding("MON-ENGINE", klass="monitor", entity="monitor:engine")))
    site = site_with(asked())
    site.run(fault, **CHECK)
    assert site.queue.signals == []


def test_only_from_a_health_check() -> None:
    site = site_with(asked())
    site.run(FAULT, hook="epilog", jobs=tuple(site.queue.jobs.values()))
    assert site.queue.signals == []
    assert site.slurm.state.out


def test_where_jobs_can_not_be_asked_for_the_node_is_drained_at_once() -> None:
    site = site_with(asked())
    site.run(FAULT, **CHECK, jobs=None)
    assert site.queue.signals == []
    assert site.slurm.state.out


def test_a_new_job_ends_the_wait() -> None:
    site = begun()
    later(site, 10)
    inp = site.input(NONE, hook="prolog", job=job(0))
    assert needs_node_state(inp)
    _, outcome = site.run(NONE, hook="prolog", job=job(0)._replace(job_id="99"))
    out(site)
    assert not outcome.fail_hook, "nothing is wrong with what this job was given"


def test_the_end_of_the_job_ends_the_wait() -> None:
    site = begun()
    later(site, 10)
    site.run(NONE, hook="epilog", job=job(0)._replace(job_id="99"))
    waits(site)
    site.run(NONE, hook="epilog", job=job(2, 3)._replace(job_id="12"))
    out(site)
    site = begun()
    site.queue.jobs.clear()
    site.run(FAULT, **CHECK)
    out(site)


def test_with_two_jobs_the_last_one_ends_it() -> None:
    site = site_with(asked("12", positions=(2, 3)), asked("13", positions=(3,)))
    site.run(FAULT, **CHECK)
    assert site.queue.signals == ["USR1 12 batch", "USR1 13 batch"]
    site.run(NONE, hook="epilog", job=job(2, 3)._replace(job_id="12"))
    waits(site)
    del site.queue.jobs["12"]
    site.run(NONE, **CHECK)
    waits(site)
    last = {"hook": "epilog", "job": job(3)._replace(job_id="13")}
    assert needs_jobs(site.input(NONE, **last))
    site.queue.change("13", state="COMPLETING")
    site.run(NONE, **last, jobs=tuple(site.queue.jobs.values()))
    assert site.slurm.state.out


def test_a_task_of_an_array_is_known_by_its_number() -> None:
    task = asked("12_4", number="16")
    site = site_with(task)
    site.queue.jobs["16"] = task
    site.run(FAULT, **CHECK, jobs=(task,))
    assert site.queue.signals == ["USR1 12_4 batch"], "asked for by its number, signalled by the name that means it alone"
    site.run(NONE, **CHECK, jobs=(task,))
    waits(site)
    site.run(NONE, hook="epilog", job=job(2, 3)._replace(job_id="16"))
    assert site.slurm.state.out


def test_a_worse_fault_ends_it_and_a_lesser_one_joins() -> None:
    lesser = decision(*FAULT.proposals, proposal("drain", finding("NVL-STORM", n=2)))
    site = begun()
    later(site, 10)
    site.run(lesser, **CHECK)
    waits(site)
    assert len(site.ledger.pending) == 1
    assert site.queue.signals == ["USR1 12 batch"], "once"
    worse = decision(*FAULT.proposals, proposal("drain", finding("GPU-LOST", n=2)))
    steps, _ = site.run(worse, **CHECK)
    assert kinds(steps)[0] == sp.DRAIN
    out(site)
    site = begun()
    site.run(worse, **CHECK)
    out(site)


def test_any_new_fault_of_another_hook_ends_it() -> None:
    site = begun()
    site.run(decision(proposal("drain", finding("NVL-STORM", n=0), of_job=True)), hook="epilog", job=job(0)._replace(job_id="99"))
    out(site)


def test_who_cares_asks_slurm_and_others_do_not() -> None:
    site = begun()
    assert not needs_node_state(site.input(NONE, hook="epilog", job=job(0)._replace(job_id="99")))
    assert needs_node_state(site.input(NONE, hook="epilog", job=job(2, 3)._replace(job_id="12")))
    assert needs_jobs(site.input(NONE, **CHECK))


@pytest.mark.parametrize("kind", [TIMEOUT, UNREACHABLE, REFUSED])
@pytest.mark.parametrize("call", ["signal", "job"])
def test_a_job_that_could_not_be_told_gets_no_time(call: str, kind: str) -> None:
    site = site_with(asked())
    site.queue.trouble[call] = (kind, False)
    _, outcome = site.run(FAULT, **CHECK)
    assert [d.ok for d in outcome.done] == [True, False]
    assert site.slurm.state.out
    assert {t.code for t in outcome.troubles} == {"MON-SLURM"}
    site.queue.trouble.clear()
    site.run(FAULT, **CHECK)
    assert site.queue.signals == []


def test_what_can_not_be_counted_is_not_sent() -> None:
    site = site_with(asked())
    site.ledger.broken = True
    inp = site.input(FAULT, **CHECK, own=None, intents=())
    from slurm_nvhc.act.plan import plan

    site.do(plan(inp), inp)
    assert site.queue.signals == []
    assert site.slurm.state.out


def test_killed_between_intent_and_signal_there_is_no_wait() -> None:
    site = site_with(asked())
    site.killed_after = 1
    site.run(FAULT, **CHECK)
    waits(site)
    site.killed_after = None
    site.run(FAULT, **CHECK)
    assert site.slurm.state.out


def test_an_earlier_signal_gives_no_time_before_a_later_drain() -> None:
    site = begun(asked("13", positions=(3,), comment=""))
    later(site, GRACE_S + 1)
    site.run(FAULT, **CHECK)
    site.slurm.someone_resumes()
    site.run(NONE, **CHECK)
    later(site, 3600)
    site.queue.change("13", comment="nvhc-checkpoint")
    site.killed_after = 1
    steps, _ = site.run(FAULT, **CHECK)
    assert kinds(steps)[0] == sp.INTENT
    site.killed_after = None
    site.run(FAULT, **CHECK)
    assert site.slurm.state.out, "job 12 had its time, job 13 was not told"


def test_the_reason_of_an_ended_drain_that_still_shows_takes_no_time_away() -> None:
    """24.11 keeps it after a resume, and a standing fault has the same reason again."""
    site = begun()
    later(site, GRACE_S + 1)
    site.run(FAULT, **CHECK)
    site.slurm.someone_resumes()
    assert site.slurm.state.reason
    site.run(NONE, **CHECK)
    later(site, 3600)
    site.queue.jobs = {"13": asked("13")}
    site.run(FAULT, **CHECK)
    assert site.queue.signals == ["USR1 12 batch", "USR1 13 batch"]
    for _ in range(3):
        later(site, 60)
        site.run(FAULT, **CHECK)
        waits(site)
    later(site, GRACE_S)
    site.run(FAULT, **CHECK)
    assert site.slurm.state.out


def test_a_job_that_changed_its_mind_gets_none() -> None:
    site = site_with(asked())
    site.queue.meanwhile["job"] = lambda: site.queue.change("12", comment="")
    site.run(FAULT, **CHECK)
    assert site.queue.signals == []


def test_once_a_job_and_fault() -> None:
    site = begun()
    later(site, GRACE_S + 1)
    site.run(FAULT, **CHECK)
    out(site)
    site.slurm.someone_resumes()
    later(site, 3600)
    site.run(FAULT, **CHECK)
    assert site.queue.signals == ["USR1 12 batch"]
    assert site.slurm.state.out, "no second time"


def test_somebody_elses_drain_meanwhile_stays() -> None:
    site = begun()
    site.slurm.someone_drains("ADMIN: psu")
    later(site, GRACE_S + 1)
    site.run(FAULT, **CHECK)
    assert site.slurm.state == drained("ADMIN: psu")
    assert site.ledger.pending == []


def test_observe_mode_and_a_pause_signal_nobody() -> None:
    site = Care(Queue(asked()), ON._replace(mode="observe"))
    steps, _ = site.run(decision(observed=FAULT.proposals), **CHECK)
    assert set(kinds(steps)) == {sp.NOTE}
    assert any("would signal the jobs that opted in" in s.why for s in steps)
    site2 = site_with(asked())
    steps, _ = site2.run(FAULT, **CHECK, pause=Pause(T0 + 10**12, "driver", "ada", T0))
    assert set(kinds(steps)) == {sp.NOTE}
    assert any("would signal job 12" in s.why for s in steps)
    for quiet in (site, site2):
        assert quiet.queue.signals == []
        assert quiet.ledger.pending == []
        assert quiet.slurm.state == IDLE


def test_an_excluded_gpu_signals_nobody() -> None:
    site = site_with(asked(positions=(3,)))
    narrows = ON._replace(narrow=ON.narrow._replace(enabled=True))
    site.run(decision(proposal("narrow", finding("MEM-REMAP-FAILED"))), **CHECK, policy=narrows)
    assert uuid(3) in site.ledger.excluded
    assert site.queue.signals == []
