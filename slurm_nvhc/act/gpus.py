"""Keeping one GPU from jobs: the exclusion itself, and hiding it from the job of this prolog."""

from __future__ import annotations

from typing import Final, Mapping, Optional

from slurm_nvhc.act import narrow
from slurm_nvhc.act import steps as st
from slurm_nvhc.act.drains import drain
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.tools import Action, Done, Hands
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.protective import EXCLUDED, QUARANTINE, SUSPECTED, VERIFIED, Ended, Exclusion, Strike
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.model.times import iso


def exclude(hands: Hands, step: Step) -> Done:
    exclusion = _exclusion(hands, step, step.about or EXCLUDED)
    if hands.keep(lambda p: p.exclude(exclusion)):
        hands.deeds.append(step)
        hands.tools.log(f"excluded {step.why} ({step.uuid}) from jobs")
        return Done(step, True)
    # Not remembered, the next job would see the GPU: then the node is drained for it.
    drained = drain(hands, step)
    return Done(step, drained.ok, f"could not be recorded, so the node was to be drained instead: {drained.detail or 'done'}")


def hide(hands: Hands, step: Step) -> Done:
    tools = hands.tools
    try:
        if tools.job is None:
            raise MonitorError("exclusion file", "", "there is no job to narrow")
        narrow.write(tools.run_dir, tools.node, tools.job, tools.mapping, step.uuids, tools.constrain(), step.why)
    except MonitorError as exc:
        hands.troubles.append(Trouble("MON-INTERNAL", "hook", str(exc)))
        # The job would see the GPU: it must not run here, and the node is drained for it.
        drained = drain(hands, step)
        hands.fail_hook = hands.fail_hook or drained.ok
        return Done(step, False, f"{exc}; the node was to be drained instead: {drained.detail or 'done'}")
    tools.log(f"job {tools.job.job_id}: {step.why}")
    return Done(step, True)


def suspect(hands: Hands, step: Step) -> Done:
    return Done(step, hands.keep(lambda p: p.exclude(_exclusion(hands, step, SUSPECTED))))


def _exclusion(hands: Hands, step: Step, stage: str) -> Exclusion:
    now_ns = hands.tools.now_ns
    until_ns = now_ns + round(hands.tools.policy.quarantine.max_age_s * 1e9) if step.way == QUARANTINE else 0
    return Exclusion(step.uuid, step.code, step.why, "nvhc", now_ns, stage, step.way, step.slot, until_ns)


def end_exclusion(hands: Hands, step: Step) -> Done:
    """One that ended by itself. An administrator may just have ended it too: then there is nothing left to do."""
    excluded = _known(hands, step.uuid)
    if excluded is None:
        return Done(step, True, "it is ended already")
    ended = Ended(excluded, step.about, "nvhc", step.why, hands.tools.now_ns)
    if not hands.keep(lambda p: p.end_exclusion(ended)):
        return Done(step, False)
    hands.tools.log(f"GPU {step.uuid} is not {excluded.stage} any more: {step.why}")
    return Done(step, True)


def verify(hands: Hands, step: Step) -> Done:
    excluded = _known(hands, step.uuid)
    if excluded is None or excluded.stage != EXCLUDED:
        return Done(step, True, "it is not excluded any more, or verified already")
    why = f"{excluded.why}; verified {iso(hands.tools.now_ns)}: {step.why}"
    hands.tools.log(f"the fault of GPU {step.uuid} was proven: {step.why}")
    return Done(step, hands.keep(lambda p: p.change_exclusion(excluded._replace(stage=VERIFIED, why=why))))


def new_slot(hands: Hands, step: Step) -> Done:
    excluded = _known(hands, step.uuid)
    if excluded is None:
        return Done(step, True, "it is not excluded any more")
    return Done(step, hands.keep(lambda p: p.change_exclusion(excluded._replace(slot=step.slot))))


def hold_lost(hands: Hands, step: Step) -> Done:
    """By a reboot is no fault of anybody's; each other loss counts, see act/quarantine.py."""
    if not step.about:
        hands.keep(lambda p: p.add_strike(Strike(st.HOLD_LOST, step.uuid, hands.tools.now_ns)))
        hands.tools.log(f"the placeholder job {step.job} is gone: {step.why}")
    return Done(step, hands.keep(lambda p: p.end_hold(step.uuid)))


def _known(hands: Hands, uuid: str) -> Optional[Exclusion]:
    found: list[Exclusion] = []
    hands.keep(lambda p: found.extend(e for e in p.exclusions() if e.uuid == uuid))
    return found[0] if found else None


ACTIONS: Final[Mapping[str, Action]] = {
    st.EXCLUDE: exclude,
    st.SUSPECT: suspect,
    st.NARROW: hide,
    st.VERIFY: verify,
    st.NEW_SLOT: new_slot,
    st.END_EXCLUSION: end_exclusion,
    st.HOLD_LOST: hold_lost,
}
