"""Which GPUs a placeholder job is to hold, whose hold is to end, and when the node is drained instead. Pure.

An excluded GPU with the way *quarantine* is kept from users because a job of ours
has it. The job is placed when nobody uses the GPU: in the epilog of the job that
had it, or by any later hook that finds it free. While a user's job has it, nothing
is done: that job's own epilog does it. Nothing starts on a node that is draining, so
none is placed there either.

A hold that is recorded and not to be found has been lost: by a reboot, or because
somebody cancelled it. It is made again at once, since until then users get the GPU;
one that is lost again and again is not to be kept, and the node is drained.
"""

from __future__ import annotations

from typing import Final, Iterable, Optional

from slurm_nvhc.act import steps as st
from slurm_nvhc.act import words as wd
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.wish import EPILOG, HEALTH_CHECK, PROLOG, PlanInput, Wish
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import placeholder
from slurm_nvhc.model.node_job import NodeJob
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import QUARANTINE, Exclusion, Intent
from slurm_nvhc.model.times import duration, iso

LOST: Final = "hold_lost"  # the kind of the strike
# A hold lost more often than this within an hour is not made again. Our judgement: an administrator who tidies up, or
# a restart of slurmctld that loses the fills, explains one or two; something that kills it each time does not stop.
MOST_LOST: Final = 3
LOST_WITHIN_NS: Final = 3600 * 10**9


def concerned(inp: PlanInput, wish: Wish) -> bool:
    """Whether the plan depends on the node's state and jobs. Not while a hold is recorded for this boot: health checks look after it."""
    mine = _excluded(inp)
    if (wish.exclude and inp.way == QUARANTINE) or any(uuid not in mine for uuid in inp.holds):
        return True
    for uuid in mine:
        hold = inp.holds.get(uuid)
        recorded = hold is not None and _this_boot(inp, hold.boot_id)
        if _here(inp, uuid) and (inp.hook == HEALTH_CHECK or not recorded or uuid in inp.mapping.uuids):
            return True
    return bool(unheld(inp))


def unheld(inp: PlanInput) -> dict[str, str]:
    """Excluded GPUs that the node has to be drained for -> why: no hold can be had or kept, or it is to be repaired."""
    out: dict[str, str] = {}
    if _only_watches(inp):
        return out
    for uuid, exclusion in _excluded(inp).items():
        if not _here(inp, uuid):
            continue
        if exclusion.until_ns and inp.now_ns >= exclusion.until_ns:
            out[uuid] = f"has been quarantined since {iso(exclusion.since_ns)}: repair it"
            continue
        if _held(inp, uuid) is not False:
            continue
        pending, lost = _pending(inp, uuid), _times_lost(inp, uuid)
        if lost > MOST_LOST:
            out[uuid] = f"can not be quarantined: its placeholder job was lost {lost} times within {duration(LOST_WITHIN_NS / 1e9)}"
        elif pending is not None and _in_vain(inp, pending) and not _down(inp) and not _used(inp, uuid):
            out[uuid] = f"could not be quarantined within {duration(inp.policy.quarantine.place_within_s)}"
    return out


def with_drains(inp: PlanInput, wish: Wish) -> Wish:
    """The wish with what quarantine can not do as a ground to drain."""
    return wish._replace(unheld=unheld(inp))


def steps(inp: PlanInput, wish: Wish, draining: bool) -> Iterable[Step]:
    """draining: the node is out once the steps before these are done."""
    for step in _steps(inp, wish, draining):
        if not _only_watches(inp) or step.kind in (st.HOLD_LOST, st.END_INTENT):
            yield step
        elif step.kind in (st.QUARANTINE, st.UNHOLD):
            what = "have a placeholder job hold" if step.kind == st.QUARANTINE else "end the placeholder job of"
            mode = "paused" if inp.pause is not None else "observe mode"
            yield Step(st.NOTE, uuid=step.uuid, why=f"{mode}: would {what} {inp.name(step.uuid)}", keys=step.keys)


def _steps(inp: PlanInput, wish: Wish, draining: bool) -> Iterable[Step]:
    mine = list(dict.fromkeys([*_excluded(inp), *(wish.exclude if inp.way == QUARANTINE else ())]))
    running = placeholder.held(inp.jobs or ())
    for uuid in dict.fromkeys([*inp.holds, *running]):
        if uuid not in mine:
            yield _unhold(inp, uuid, "the GPU is not excluded any more")
    for uuid in mine:
        if _here(inp, uuid):
            yield from _of_gpu(inp, wish, uuid, draining)


def _of_gpu(inp: PlanInput, wish: Wish, uuid: str, draining: bool) -> Iterable[Step]:
    state, pending, held = inp.node_state, _pending(inp, uuid), _held(inp, uuid)
    if held:
        if pending is not None:
            yield _settled(pending, "a placeholder job holds the GPU")
        if uuid in wish.unheld and state is not None and state.out and not _comes_back(state):
            # Not before the drain is seen in place: turned away by a limit, it would leave users the bad GPU.
            yield _unhold(inp, uuid, "the node is drained for it")
        elif state is not None and _reboots(state) and (state.out or _only_ours(inp)):
            # Slurm waits for the node's last job; the next health check after the boot makes the hold again.
            yield _unhold(inp, uuid, "the node is about to be rebooted")
    if held is not False:
        return
    if uuid in inp.holds:
        if _running(inp, uuid) and _this_boot(inp, inp.holds[uuid].boot_id):
            yield _unhold(inp, uuid, "its placeholder job holds another GPU")
        else:
            reboot = not _this_boot(inp, inp.holds[uuid].boot_id)
            why = "the node was rebooted" if reboot else "Slurm has no such job any more"
            about, job = "reboot" if reboot else "", inp.holds[uuid].job_id
            yield Step(st.HOLD_LOST, uuid=uuid, why=f"{inp.name(uuid)}: {why}", about=about, job=job)
    if draining or (state is not None and ((state.out and not _comes_back(state)) or _reboots(state))):
        if pending is not None:
            yield _settled(pending, "nothing starts on a node that is out")
        return
    used = _used(inp, uuid)
    if used:
        if pending is not None:
            yield _settled(pending, "a job uses the GPU: left to its epilog")
        return
    if pending is not None and pending.tries and not (_in_vain(inp, pending) and _down(inp)):
        return  # placeholder jobs are looking for it; what becomes of them is seen when their time is over
    # Not while it is unknown who has the GPU; in the epilog of the job that had it nobody else has.
    if state is not None and (used is False or _its_epilog(inp, uuid)):
        keys = (f"GPU-EXCLUDED {uuid}",)
        reason = reason_for(inp, wish, uuid, "could not be quarantined")
        yield Step(st.QUARANTINE, reason=reason, uuid=uuid, why=f"have a placeholder job hold {inp.name(uuid)}", keys=keys)


def reason_for(inp: PlanInput, wish: Wish, uuid: str, why: str) -> str:
    """The reason to drain with when this GPU can not be held."""
    exclusion = inp.exclusions.get(uuid)
    code = exclusion.code if exclusion is not None else wd.ordered(wish.exclude[uuid])[0].code
    since = f" since {iso(exclusion.since_ns)}" if exclusion is not None else ""
    text = f"{wd.PREFIX} GPU-EXCLUDED {inp.name(uuid)} {wd.short_uuid(uuid)} ({code}{since}) {why}"
    return wd.one_line(text, inp.policy.drain.max_length)


def told(inp: PlanInput, wish: Wish) -> Iterable[Step]:
    """A user's job was given a GPU that a placeholder job should hold: that must not happen, and is said aloud."""
    job = inp.job.job_id if inp.job is not None else "?"
    if inp.hook != PROLOG or inp.policy.mode == fd.OBSERVE:
        return
    for uuid in dict.fromkeys(inp.mapping.uuids):
        if uuid in _excluded(inp):
            why = f"job {job} was given {inp.name(uuid)} {wd.short_uuid(uuid)}, which is quarantined ({inp.exclusions[uuid].code})"
            yield Step(st.NOTIFY, uuid=uuid, why=f"{why}: no placeholder job held it", keys=(f"GPU-EXCLUDED {uuid}",))


def _unhold(inp: PlanInput, uuid: str, why: str) -> Step:
    hold = inp.holds.get(uuid) or None
    found = placeholder.held(inp.jobs or ()).get(uuid)
    job = hold.job_id if hold is not None else found.job_id if found is not None else ""
    return Step(st.UNHOLD, uuid=uuid, why=f"{inp.name(uuid)}: {why}", keys=(f"GPU-EXCLUDED {uuid}",), job=job)


def _settled(intent: Intent, why: str) -> Step:
    return Step(st.END_INTENT, reason=intent.reason, why=why, keys=intent.keys, about=QUARANTINE)


def _only_watches(inp: PlanInput) -> bool:
    return inp.policy.mode == fd.OBSERVE or inp.pause is not None


def _excluded(inp: PlanInput) -> dict[str, Exclusion]:
    return {uuid: e for uuid, e in inp.exclusions.items() if e.way == QUARANTINE}


def _here(inp: PlanInput, uuid: str) -> bool:
    """A GPU without a position can not be given out, and a placeholder job that has it could not tell."""
    return uuid in inp.mapping.by_position.values()


def _pending(inp: PlanInput, uuid: str) -> Optional[Intent]:
    return next((i for i in inp.intents if i.kind == QUARANTINE and i.reason == uuid), None)


def _in_vain(inp: PlanInput, intent: Intent) -> bool:
    """Placeholder jobs were submitted, and their time is over."""
    return bool(intent.tries) and inp.now_ns >= intent.next_ns


def _down(inp: PlanInput) -> bool:
    """Nothing starts there until the node registers, so nothing was placed in vain: new placeholder jobs wait for that moment."""
    return inp.node_state is not None and _comes_back(inp.node_state)


def _this_boot(inp: PlanInput, boot_id: str) -> bool:
    return not boot_id or not inp.boot_id or boot_id == inp.boot_id


def _times_lost(inp: PlanInput, uuid: str) -> int:
    return sum(s.kind == LOST and s.key == uuid and inp.now_ns - s.at_ns <= LOST_WITHIN_NS for s in inp.strikes)


def _running(inp: PlanInput, uuid: str) -> list[NodeJob]:
    """The placeholder jobs that the ledger, or the job itself, says to hold this GPU."""
    hold = inp.holds.get(uuid)
    ours = [job for job in inp.jobs or () if placeholder.is_ours(job) and job.state == "RUNNING"]
    return [job for job in ours if placeholder.holds(job) == uuid or (hold is not None and job.job_id == hold.job_id)]


def _held(inp: PlanInput, uuid: str) -> Optional[bool]:
    """Does a placeholder job hold the GPU? None: a hold is recorded, and Slurm did not say whether its job runs."""
    hold = inp.holds.get(uuid)
    if hold is not None and not _this_boot(inp, hold.boot_id):
        return False  # Slurm still shows the job as running until the node has registered
    if inp.jobs is None:
        return None if hold is not None else False
    # Slurm does not say for a moment after a restart which GPUs a job has: that is no sign of another one.
    return any(
        not job.positions or not inp.mapping.exact or any(inp.mapping.by_position.get(p) == uuid for p in job.positions)
        for job in _running(inp, uuid)
    )


def _used(inp: PlanInput, uuid: str) -> Optional[bool]:
    """Has a user's job the GPU, other than one that is ending? None: Slurm did not say."""
    if inp.jobs is None:
        return None
    position = next((p for p, u in inp.mapping.by_position.items() if u == uuid), None)
    return placeholder.user_of(position, inp.jobs, certain=_its_epilog(inp, uuid)) is not None


def _its_epilog(inp: PlanInput, uuid: str) -> bool:
    return inp.hook == EPILOG and inp.job is not None and uuid in inp.mapping.uuids


def _only_ours(inp: PlanInput) -> bool:
    return inp.jobs is not None and all(placeholder.is_ours(job) for job in inp.jobs)


def _reboots(state: NodeState) -> bool:
    return any(flag.startswith("REBOOT") for flag in state.flags)


def _comes_back(state: NodeState) -> bool:
    """A node that is only down takes jobs as soon as it registers: the hold is made before users come."""
    return state.base == "DOWN" and not state.flags & {"DRAIN", "FAIL"}
