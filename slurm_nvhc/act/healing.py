"""Ending our own drain when the node is well again. Pure. Off unless the policy says otherwise (drain.resume).

Everything must speak for it, and nothing may be unknown:

* it is our drain, by reason and stamp, and nothing else has happened to the node since that it could hide: a
  drained node whose epilog fails shows no trace of it (observed on 22.05 and 24.11), a reboot is somebody's work;
* what it was for was looked at again and found well, several times in a row and long enough after;
* no test of hardware stands failed on any GPU, and the diagnostic that the policy asks for has passed on every one;
* it has not come back too often: then only an administrator ends it.
"""

from __future__ import annotations

from typing import Final, Iterable

from slurm_nvhc.act import outbox
from slurm_nvhc.act import steps as st
from slurm_nvhc.act.ownership import same_drain
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.wish import HEALTH_CHECK, PlanInput, Wish
from slurm_nvhc.catalog import diags
from slurm_nvhc.catalog.findings import PROOFS
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import OwnDrain
from slurm_nvhc.model.times import duration

DAY_NS: Final = 86400 * 10**9
OFF: Final = "off"
STANDING: Final = "standing"
NOT_YET: Final = "our drain is not ended yet"
RESUMED: Final = "resume"  # Strike.kind
REBOOTED: Final = "reboot"  # Strike.kind of a reboot that we asked for
# Intents that say nothing about whether the node may be used.
_HARMLESS: Final = frozenset({st.RESUME, st.NOTIFY, st.EXCLUDE_NODE})


def steps(inp: PlanInput, wish: Wish) -> Iterable[Step]:
    own, state = inp.own, inp.node_state
    if state is None:
        return
    looks = own is not None and inp.hook == HEALTH_CHECK and same_drain(own, state)
    why = hindrance(inp, wish, own) if own is not None and looks else ""
    for intent in inp.intents:
        # A resume that got no answer and was done, or is not wanted any more. Otherwise it is tried again below.
        if intent.kind == st.RESUME and (own is None or intent.reason != own.reason or not same_drain(own, state) or why):
            yield Step(st.END_INTENT, reason=intent.reason, why=why or "the drain is over", keys=intent.keys, about=st.RESUME)
    if own is None or not looks or inp.policy.drain.resume == OFF:
        return
    waiting = [i for i in inp.intents if i.kind == st.RESUME and not outbox.due(i, inp.now_ns)]
    if why or waiting:
        why = why or "Slurm did not answer the last request, which is tried again later"
        yield Step(st.NOTE, why=f"{NOT_YET}: {why}", keys=own.keys)
    elif _used_up(inp, own):
        ended = f"{inp.policy.drain.resume_per_day} drains were ended by us within a day, and the fault came back"
        told = f"{ended}: only an administrator ends this one"
        yield Step(st.BAR, reason=own.reason, why=told, keys=own.keys)
        yield Step(st.ALERT, reason=own.reason, why=told, keys=own.keys)
    else:
        passes = f"{inp.clean_passes} health checks in a row found well what it was for"
        yield Step(st.RESUME, reason=own.reason, why=passes, keys=own.keys)


def hindrance(inp: PlanInput, wish: Wish, own: OwnDrain) -> str:
    """Why our drain is not to be ended now, the first thing that speaks against it; '' when nothing does."""
    drain, state = inp.policy.drain, inp.node_state
    if drain.resume == OFF or drain.resume_per_day < 1:
        return "the policy ends none"
    if drain.resume == STANDING and not own.standing:
        return "the policy ends only drains for what every reading shows"
    if own.barred:
        return "it came back too often: only an administrator ends it"
    if state is None or not own.confirmed:
        return "the node's state in Slurm is not known"
    if not resumable(state, own):
        return f"the node is {'+'.join([state.base, *sorted(state.flags)])}, and it must be idle and drained by nothing but our drain"
    if inp.booted_ns > own.set_ns and not any(s.kind == REBOOTED and s.at_ns >= own.set_ns for s in inp.strikes):
        return "somebody rebooted the node since"
    if inp.epilog_alone is not True and not (own.idle and inp.jobs_ended == 0):
        # Not by our own epilogs alone: one of somebody else that runs before ours and fails keeps ours from running.
        return "a job ended here since, and a prolog or epilog of somebody else may have failed: that leaves no trace on a drained node"
    if wish.keys or inp.decision.verdict != fd.OK:
        return f"the node's verdict is {inp.decision.verdict}"
    if any(intent.kind not in _HARMLESS for intent in inp.intents):
        return "something else is still to be done"
    if not drain.resume_diagnostic and any(key.partition(" ")[0] in PROOFS for key in own.keys):
        return "a diagnostic found what it is for, and the policy asks for none before a resume (drain.resume_diagnostic)"
    if inp.clean_passes < max(1, drain.resume_passes):
        return f"{inp.clean_passes} of {max(1, drain.resume_passes)} health checks in a row found well what it was for"
    if inp.diag_failed:
        # Whatever the drain was for, and by whichever rule: an idle node shows no errors, and a test has.
        return f"a diagnostic has failed, and not passed after that, on {', '.join(map(inp.name, inp.diag_failed))}"
    left_s = drain.resume_after_s - (inp.now_ns - own.set_ns) / 1e9
    return f"{duration(left_s)} of {duration(drain.resume_after_s)} are left" if left_s > 0 else _untested(inp)


def _untested(inp: PlanInput) -> str:
    """What the policy wants tested before, and how to come by it; '' when nothing is wanted, or all of it has passed."""
    asked = inp.policy.drain.resume_diagnostic
    if not asked or inp.untested == ():
        return ""
    option = f"--level {asked[0]}" if asked[0] in diags.LEVELS else f"--tests {','.join(asked)}"
    where = "the node's GPUs are not known" if inp.untested is None else f"it has not on {', '.join(map(inp.name, inp.untested))}"
    return f"diagnostic {diags.told(asked)} must have passed on every GPU since, and {where}: run `nvhc diag {option}` on the node"


def resumable(state: NodeState, own: OwnDrain) -> bool:
    """Idle, drained, by this drain of ours and by nothing else (no reboot asked for, not down, not failing)."""
    return state.base == "IDLE" and state.flags == {"DRAIN"} and bool(own.stamp) and own.stamp == state.stamp and same_drain(own, state)


def _used_up(inp: PlanInput, own: OwnDrain) -> bool:
    """So many resumes of ours within a day, one that is still tried not counted twice."""
    trying = any(i.kind == st.RESUME and i.reason == own.reason for i in inp.intents)
    resumed = sum(s.kind == RESUMED and inp.now_ns - s.at_ns < DAY_NS for s in inp.strikes)
    return resumed - trying >= inp.policy.drain.resume_per_day
