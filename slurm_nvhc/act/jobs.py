"""Moving a job, keeping it off this node, and telling a job to save its work.

A job is moved only once its node is out (or its GPU excluded), and is counted before: what can not be counted is not
done. Its state is read again just before, since a job that was cancelled meanwhile must not run again (Slurm requeues
finished and cancelled jobs as well); and just after a request without an answer. When it is not certain that the job
left, it is failed.
"""

from __future__ import annotations

from typing import Final, Mapping, Optional

from slurm_nvhc.act import job_care, moved
from slurm_nvhc.act import steps as st
from slurm_nvhc.act.drains import drain
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.tools import Action, Done, Hands
from slurm_nvhc.model.node_job import NodeJob
from slurm_nvhc.model.protective import QUARANTINE, Intent, Strike
from slurm_nvhc.slurm import hostlist
from slurm_nvhc.slurm.node import MISSING, REFUSED, SlurmError

STAYS: Final = "stays"
MOVED: Final = "moved"
OVER: Final = "over"
UNKNOWN: Final = "unknown"  # Slurm answers and does not show it, which no job is in whose prolog runs


def where(now: Optional[NodeJob], before: NodeJob) -> str:
    """What became of a job that was RUNNING in its prolog: still there, back in the queue (by whomever), or at its end.

    Observed: a requeued job is COMPLETING, with one more restart, until its prologs and epilogs have ended, then PENDING;
    a cancelled one is COMPLETING with the restarts that it had.
    """
    if now is None:
        return UNKNOWN
    if now.restarts > before.restarts:
        return MOVED
    return STAYS if now.state in ("RUNNING", "CONFIGURING") else OVER


def move(hands: Hands, step: Step) -> Done:
    if hands.not_out:
        return Done(step, False, "the node could not be drained: the job stays, the next one would come here as well")
    done = _move(hands, step)
    if not hands.left and step.way == QUARANTINE:
        drained = drain(hands, step)
        hands.not_out = not drained.ok
        return done._replace(detail=f"{done.detail}; the node was to be drained instead: {drained.detail or 'done'}")
    return done


def _move(hands: Hands, step: Step) -> Done:
    tools, limits = hands.tools, hands.tools.policy.requeue
    try:
        before = _read(hands, step)
        if before is not None and where(before, before) == OVER:
            hands.left = True
            return Done(step, True, "the job is over: it does not start here")
        why = job_care.job_hindrance(before) or (job_care.over_job(before, limits) if before is not None else "")
        if why or before is None:
            return Done(step, False, f"not moved: {why}")
    except SlurmError as exc:
        return hands.failed(step, exc)
    # Both before it is tried: this counts, and by the intent the job's epilog completes what is interrupted here.
    intent = Intent(st.EXCLUDE_NODE, step.job, tools.now_ns, (step.why,), policy=step.policy)
    strike = Strike(job_care.MOVED, step.job, tools.now_ns)
    if not (hands.keep(lambda p: p.end_intent(intent)) and hands.keep(lambda p: p.add_intent(intent))):
        return Done(step, False, "not moved: it could not be written down")
    if not hands.keep(lambda p: p.add_strike(strike)):
        return Done(step, False, "not moved: it could not be counted")
    refused: Optional[SlurmError] = None
    try:
        hands.jobs().requeue(before.job_id, hands.time())
    except SlurmError as exc:
        refused = exc
    return _moved(hands, step, before, intent, refused)


def _moved(hands: Hands, step: Step, before: NodeJob, intent: Intent, refused: Optional[SlurmError]) -> Done:
    tools = hands.tools
    if refused is not None:
        try:
            became = where(_read(hands, step), before)
        except SlurmError as exc:
            hands.failed(step, exc)
            return hands.failed(step, refused)
        if became in (STAYS, UNKNOWN):
            if refused.kind == REFUSED and became == STAYS:
                hands.keep(lambda p: p.end_intent(intent))
                return Done(step, False, f"not moved: {refused}")
            return hands.failed(step, refused)
        if became == OVER:
            hands.left = True
            hands.keep(lambda p: p.end_intent(intent))
            return Done(step, True, "the job is over: it does not start here")
    hands.left = True
    tools.log(f"moved job {step.job} to other nodes: {step.why}")
    told = _tell(hands, step, step.why)
    return Done(step, True, "another node moved it at the same time" if refused is not None and refused.kind == REFUSED else told.detail)


def is_over(hands: Hands) -> bool:
    """Whether the prolog's job is at its end already, as far as Slurm says; then it must not be failed.

    Observed: Slurm puts a batch job that was cancelled during its prolog back into the queue (held) when that prolog fails.
    """
    tools = hands.tools
    if tools.job is None or tools.jobs is None:
        return False
    try:
        now = tools.jobs.job(tools.job.job_id, tools.node, hands.time())
    except SlurmError:
        return False
    return now is not None and where(now, now) == OVER


def exclude_node(hands: Hands, step: Step) -> Done:
    """In the moved job's epilog: what its prolog did not get done."""
    return _tell(hands, step, step.why)


def _tell(hands: Hands, step: Step, why: str) -> Done:
    """Keep the moved job off this node and tell its user, once. The intent ends when both are done, or can not be any more."""
    tools = hands.tools
    intent = Intent(st.EXCLUDE_NODE, step.job, tools.now_ns)
    try:
        job = _read(hands, step)
        if job is None or job.restarts == 0:
            hands.keep(lambda p: p.end_intent(intent))
            return Done(step, True, "the job is gone" if job is None else "the job was not requeued")
        settings, left_out = _settings(hands, job, why)
        refusals = []
        for setting in settings:  # one by one: where one is refused, the other still counts
            try:
                hands.jobs().update_job(job.job_id, (setting,), hands.time())
            except SlurmError as exc:
                if exc.kind != REFUSED:
                    raise
                refusals.append(f"{setting.partition('=')[0]}: {exc.problem}")
    except SlurmError as exc:
        return hands.failed(step, exc)
    hands.keep(lambda p: p.end_intent(intent))
    return Done(step, not refusals, "; ".join([*refusals, *([f"may come back to this node: {left_out}"] if left_out else [])]))


def _settings(hands: Hands, job: NodeJob, why: str) -> tuple[list[str], str]:
    """(what to set, why the node is not excluded for the job). Raises SlurmError."""
    out = []
    comment = moved.tagged(job.admin_comment, hands.tools.node, why, job.restarts)
    if comment != job.admin_comment:
        out.append(f"admincomment={comment}")
    if _names(job.excluded, hands.tools.node):
        return out, ""
    needed = _needed(hands, job)
    if not needed:
        out.append(f"excnodelist={f'{job.excluded},' if job.excluded else ''}{hands.tools.node}")
    return out, needed


def _needed(hands: Hands, job: NodeJob) -> str:
    """Why the job may need this node again; '' when enough others are like it.

    Slurm *holds* a job that excludes every node it could run on (observed: BadConstraints, priority 0).
    """
    tools = hands.tools
    if _names(job.required, tools.node):
        return "its user asked for this node"
    if job.reservation:
        return "it runs in a reservation"
    try:
        others = hands.jobs().alike(tools.node, job.partition, hands.time())
    except SlurmError as exc:
        if exc.kind not in (REFUSED, MISSING):
            raise
        return f"which nodes are like this one is not known ({exc.problem})"
    left = [name for name in others if not _names(job.excluded, name)]
    wanted = (tools.job.nodes if tools.job is not None else None) or 1
    return "" if len(left) >= wanted else f"{len(left)} nodes like this one would be left for it"


def _names(nodes: str, node: str) -> bool:
    try:
        return bool(nodes) and hostlist.contains(nodes, node)
    except ValueError:
        return False


def signal(hands: Hands, step: Step) -> Done:
    tools, policy = hands.tools, hands.tools.policy.checkpoint
    counted = [hands.keep(lambda p, s=strike: p.add_strike(s)) for strike in job_care.strikes(step, tools.now_ns)]  # type: ignore[misc]
    if not all(counted):
        return _due(hands, step, "it could not be written down, and would be sent again and again")
    try:
        job = _read(hands, step)
        if job is None or not job_care.opted_in(job, policy):
            return Done(step, True, "the job has ended, or does not want it any more")
        hands.jobs().signal(job.job_id, policy.signal, job.batch, hands.time())
    except SlurmError as exc:
        return _due(hands, step, hands.failed(step, exc).detail)
    tools.log(f"signal {policy.signal} to job {step.job}, {step.why}")
    return Done(step, True)


def _due(hands: Hands, step: Step, why: str) -> Done:
    """No time for a job that was not told: the drain that waits for it is placed now."""
    drained = drain(hands, step)
    hands.not_out = not drained.ok
    return Done(step, False, f"{why}; the node was to be drained at once: {drained.detail or 'done'}")


def _read(hands: Hands, step: Step) -> Optional[NodeJob]:
    """Raises SlurmError."""
    return hands.jobs().job(step.job, hands.tools.node, hands.time())


ACTIONS: Final[Mapping[str, Action]] = {st.REQUEUE: move, st.EXCLUDE_NODE: exclude_node, st.SIGNAL: signal}
