"""Jobs of a node that goes out: a batch job that was given a bad GPU is moved, one that opted in is told to save its work. Pure.

Moved is a job only by its prolog, before it has started anywhere; only with PrologFlags=Alloc, without which the other
nodes of the job, or this one, may have started it; only a batch job that Slurm may requeue; and only so often that no
job and no node goes round in a loop. What is not moved is failed or let through as without this.

A signal goes only to jobs that opted in: one that does not expect it dies of it (observed: the script ends, FAILED).
"""

from __future__ import annotations

from typing import Final, Iterable, Optional, Sequence

from slurm_nvhc.act import moved, outbox
from slurm_nvhc.act import steps as st
from slurm_nvhc.act import words as wd
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.wish import EPILOG, HEALTH_CHECK, PROLOG, PlanInput, Wish
from slurm_nvhc.catalog.findings import BY_CODE
from slurm_nvhc.model import entity as ent
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import placeholder, settled
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.node_job import NodeJob
from slurm_nvhc.model.protective import QUARANTINE, Intent, Strike
from slurm_nvhc.model.times import duration
from slurm_nvhc.policy.acting import Checkpoint, Requeue

MOVED: Final = "requeue"  # kinds of strikes
SIGNALLED: Final = "signal"
_STARTING: Final = frozenset({"RUNNING", "CONFIGURING"})  # of a job whose prolog runs: Slurm says RUNNING, Reason=Prolog


# --- moving a job ----------------------------------------------------------


def asks_for_job(inp: PlanInput, wish: Wish) -> bool:
    """Whether the plan depends on what Slurm says about the hook's own job."""
    return inp.hook == PROLOG and inp.job is not None and bool(wish.fail) and inp.policy.requeue.enabled and inp.alloc is True


def hindrance(inp: PlanInput) -> str:
    """Why the job of this prolog can not be moved; '' when it can, as far as is known now."""
    if not inp.policy.requeue.enabled:
        return "moving jobs is off"
    if inp.hook != PROLOG or inp.job is None:
        return "only a prolog moves jobs"
    if inp.alloc is not True:
        return "PrologFlags has no Alloc" if inp.alloc is not None else "it is not known whether PrologFlags has Alloc"
    return job_hindrance(inp.slurm_job) or beyond(inp)


def job_hindrance(job: Optional[NodeJob]) -> str:
    """Why Slurm would not, or should not, put this job back into its queue; '' when it may."""
    if job is None:
        return "Slurm does not say what kind of job it is"
    if placeholder.is_ours(job):
        return "it is a placeholder job"
    if job.state not in _STARTING:
        return f"its state is {wd.clean(job.state, 20)}"  # finished and cancelled jobs are never run again
    if not job.batch:
        return "it is not a batch job"
    if not job.requeue:
        return "its user does not allow to requeue it"
    if job.het:
        return "it is a component of a heterogeneous job"
    return ""


def over_job(job: NodeJob, limits: Requeue) -> str:
    """Why this job was moved often enough; '' when it was not."""
    times = moved.count(job.admin_comment)
    if times is None:
        return "its AdminComment does not tell how often it was moved"
    return f"it was moved {times} times already, {limits.per_job} may be" if times >= limits.per_job else ""


def beyond(inp: PlanInput) -> str:
    """The limit that keeps the job from being moved, '' = none."""
    limits = inp.policy.requeue
    young = [s for s in inp.strikes if s.kind == MOVED and inp.now_ns - s.at_ns < limits.within_s * 1e9]
    if len(young) >= limits.per_node:
        return f"{len(young)} jobs were moved off this node within {duration(limits.within_s)}, {limits.per_node} may be"
    # Its AdminComment may not tell of a move that was interrupted or made just before a pause; the ledger of this node does.
    mine = sum(1 for s in young if inp.job is not None and s.key == inp.job.job_id)
    if mine >= limits.per_job:
        return f"it was moved off this node {mine} times already, {limits.per_job} may be"
    return over_job(inp.slurm_job, limits) if inp.slurm_job is not None else ""


def move(inp: PlanInput, wish: Wish, drains: bool, reason: str) -> Iterable[Step]:
    """Before the job is failed: it is moved instead, or it is said why not.

    drains: the node is out once the steps before this one are done; otherwise ``reason`` is what to drain it with
            when the job can not be moved after all.
    """
    if not wish.fail or inp.hook != PROLOG or inp.job is None or not inp.policy.requeue.enabled:
        return
    why = hindrance(inp)
    job_id = inp.job.job_id
    if not why:
        keys = wish.keys or tuple(dict.fromkeys(wd.key(f) for fs in wish.exclude.values() for f in fs))
        step = Step(st.REQUEUE, reason=reason, why=grounds(inp, wish), keys=keys, idents=wish.idents, job=job_id, policy=inp.policy.hash)
        yield step._replace(standing=wish.standing, events=wish.events, way="" if drains else QUARANTINE)
    elif inp.slurm_job is not None and why == beyond(inp):
        yield Step(st.ALERT, why=f"job {job_id} is not moved: {why}", keys=wish.keys, job=job_id)
    else:
        yield Step(st.NOTE, why=f"job {job_id} is not moved: {why}", keys=wish.keys)


def grounds(inp: PlanInput, wish: Wish) -> str:
    """Why the job can not run here, in few words for its AdminComment: "NVL-STORM gpu3"."""
    found: Sequence[Finding] = (*wish.drain, *(f for fs in wish.exclude.values() for f in fs))
    told = [wd.brief(f) for f in wd.distinct(wd.ordered(found))] if found else []
    told += [f"{inp.exclusions[u].code} {inp.name(u)}" for u in inp.mapping.uuids if u in inp.exclusions and u not in wish.hide]
    return wd.clean(", ".join(dict.fromkeys(told)) or wish.fail, moved.MAX_WHY)


def would_move(inp: PlanInput, wish: Wish) -> Iterable[Step]:
    """In observe mode, ``wish`` being what would be wanted without it. Slurm is not asked: nothing hangs on the answer."""
    if wish.fail and inp.hook == PROLOG and inp.job is not None and inp.policy.requeue.enabled and inp.alloc is True:
        told = f"job {inp.job.job_id} to other nodes, if it may be requeued: {grounds(inp, wish)}"
        yield Step(st.NOTE, why=f"observe mode: would move {told}")


# --- what is left to do about a moved job ----------------------------------


def left_over(inp: PlanInput) -> Iterable[Step]:
    """Moved jobs of which this node does not know yet that they keep away from it: done by the job's own epilog."""
    for intent in inp.intents:
        if intent.kind != st.EXCLUDE_NODE:
            continue
        if inp.hook == EPILOG and inp.job is not None and inp.job.job_id == intent.reason and not outbox.expired(intent, inp.now_ns):
            yield Step(st.EXCLUDE_NODE, why=", ".join(intent.keys), keys=intent.keys, job=intent.reason)


# --- the signal ------------------------------------------------------------


def asks_for_jobs(inp: PlanInput, wish: Wish) -> bool:
    """Whether the plan depends on which jobs run on the node."""
    if inp.hook == EPILOG:
        return any(attends(inp, i) for i in inp.intents)  # the last of those who were given time?
    if inp.hook != HEALTH_CHECK or not inp.policy.checkpoint.enabled:
        return False
    return bool(_hardware(wish.drain)) or any(signalled(inp, i) for i in inp.intents)


def opted_in(job: NodeJob, checkpoint: Checkpoint) -> bool:
    """A running job that asked for the signal: by a word of its comment, or by a feature of its constraint."""
    if placeholder.is_ours(job) or job.state != "RUNNING":
        return False
    by_comment = bool(checkpoint.comment) and checkpoint.comment in job.comment.replace(",", " ").split()
    # A constraint is an expression: "h100&(ckpt|big)".
    features = "".join(c if c.isalnum() or c in "-_.:=%" else " " for c in job.constraint).split()
    return by_comment or (bool(checkpoint.constraint) and checkpoint.constraint in features)


def number(job: NodeJob) -> str:
    """The id that the job's hooks get: an epilog knows its task of an array by nothing else."""
    return job.number or job.job_id


def strike_key(job_id: str, key: str) -> str:
    return f"{job_id} {key}"


def put_off(inp: PlanInput, wish: Wish, drain: Step, waiting: Sequence[Intent]) -> Optional[list[Step]]:
    """Steps that take the place of ``drain`` for now; None when the drain is due.

    waiting: intents to drain that are not overtaken. Only while a grace runs that was given to jobs which are still there,
    and nothing came on top; a new job's prolog ends it, since that job would start on a node that is to go out.
    """
    begun = [i for i in waiting if signalled(inp, i)]
    if begun and len(begun) == len(waiting):
        return _still_waits(inp, wish, drain, begun)
    if waiting or inp.hook != HEALTH_CHECK or not asks_for_jobs(inp, wish) or inp.jobs is None:
        return None
    jobs = [job for job in inp.jobs if _to_signal(inp, wish, job)]
    if not jobs:
        return None
    grace_s = inp.policy.checkpoint.grace_s
    until_ns = inp.now_ns + round(grace_s * 1e9)
    told = ", ".join(job.job_id for job in jobs)
    why = f"the drain waits {duration(grace_s)} for job {told} to save its work"
    # 24.11 keeps the reason of a drain that was ended: the same reason, seen before this, is not this drain come and gone.
    state = inp.node_state
    gone = (state.stamp or "?") if state is not None and state.reason == drain.reason else ""
    steps = [drain._replace(kind=st.INTENT, why=why, next_ns=until_ns, stamp=gone)]
    signal = drain._replace(kind=st.SIGNAL, why=f"{inp.policy.checkpoint.signal}, {duration(grace_s)} before the drain")
    return [*steps, *(signal._replace(job=number(job)) for job in jobs)]


def signalled(inp: PlanInput, intent: Intent) -> frozenset[str]:
    """The jobs that were given time before this drain; none for one that waits for another reason."""
    if not _was_put_off(intent):
        return frozenset()
    ends = tuple(f" {key}" for key in intent.keys)
    since = [s for s in inp.strikes if s.kind == SIGNALLED and s.at_ns >= intent.since_ns]
    return frozenset(s.key.split(" ", 1)[0] for s in since if s.key.endswith(ends))


def _was_put_off(intent: Intent) -> bool:
    """Written down with a time to wait for, and neither turned away by a limit nor tried in vain (act/outbox.py)."""
    return intent.kind == st.DRAIN and intent.next_ns > intent.since_ns and not intent.limited and not intent.tries


def in_grace(inp: PlanInput, intent: Intent) -> bool:
    """Whether this drain still waits: not past its time, not for jobs that have ended, and not when a new job would start."""
    told = set(signalled(inp, intent))
    if inp.hook == EPILOG and inp.job is not None:
        told -= {inp.job.job_id}
    if inp.jobs is not None:
        told &= {number(job) for job in inp.jobs if job.state == "RUNNING"}
    return bool(told) and inp.hook != PROLOG and intent.next_ns > inp.now_ns


def attends(inp: PlanInput, intent: Intent) -> bool:
    """Whether this hook may end the wait before its time, and has to ask Slurm for it: not the epilog of any other job."""
    if not _was_put_off(intent):
        return False
    return inp.hook != EPILOG or (inp.job is not None and inp.job.job_id in signalled(inp, intent))


def _still_waits(inp: PlanInput, wish: Wish, drain: Step, begun: Sequence[Intent]) -> Optional[list[Step]]:
    if not all(in_grace(inp, i) for i in begun):
        return None
    new = [key for key in wish.keys if not any(key in i.keys for i in begun)]
    if any(inp.hook != HEALTH_CHECK or _hard(key) for key in new):
        return None
    if not new:
        return []
    # It joins what waits already, and gets no time of its own.
    first = begun[0]
    keys = tuple(dict.fromkeys([*first.keys, *new]))
    idents = settled.newest((*first.idents, *wish.idents))
    return [drain._replace(kind=st.INTENT, reason=first.reason, why="a further fault while the drain waits", keys=keys, idents=idents)]


def _hard(key: str) -> bool:
    code = BY_CODE.get(key.partition(" ")[0])
    return code is None or code.hard


def _hardware(findings: Iterable[Finding]) -> list[Finding]:
    return [f for f in findings if f.klass != "monitor"]


def _to_signal(inp: PlanInput, wish: Wish, job: NodeJob) -> bool:
    """Opted in, uses what is bad, and was not told of any of it before."""
    if not opted_in(job, inp.policy.checkpoint):
        return False
    bad = [f for f in _hardware(wish.drain) if _uses(inp, job, f)]
    told = {s.key for s in inp.strikes if s.kind == SIGNALLED}
    return bool(bad) and not any(strike_key(number(job), wd.key(f)) in told for f in bad)


def _uses(inp: PlanInput, job: NodeJob, finding: Finding) -> bool:
    """A fault of one GPU concerns the job that has it; one of the node or of a switch each job with GPUs."""
    uuid = ent.gpu_of(finding.entity)
    if not uuid:
        return job.positions is None or bool(job.positions)
    return any(inp.mapping.by_position.get(position) == uuid for position in job.positions or ())


def strikes(step: Step, now_ns: int) -> tuple[Strike, ...]:
    """What a signal leaves: once a job and fault."""
    return tuple(Strike(SIGNALLED, strike_key(step.job, key), now_ns) for key in step.keys)


def would_signal(inp: PlanInput, wish: Wish) -> Iterable[Step]:
    """In observe mode: said only where something would be drained; which jobs opted in is not asked."""
    if inp.hook == HEALTH_CHECK and inp.policy.checkpoint.enabled and _hardware(wish.drain):
        grace = duration(inp.policy.checkpoint.grace_s)
        yield Step(st.NOTE, why=f"observe mode: would signal the jobs that opted in and use it, {grace} before a drain", keys=wish.keys)


def observed(inp: PlanInput) -> Optional[PlanInput]:
    """The input as it would be if rules that only observe were enforced; None when none observes."""
    if not inp.decision.observed:
        return None
    decision = inp.decision._replace(proposals=(*inp.decision.proposals, *inp.decision.observed), observed=())
    return inp._replace(decision=decision, policy=inp.policy._replace(mode=fd.ENFORCE))
