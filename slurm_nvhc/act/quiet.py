"""Observe mode and maintenance: what would be done is said, and nothing is. Pure.

It is the last word on a plan: whatever a topic's module asks for, a step that changes something in Slurm, or
keeps a GPU or a node from jobs, becomes a note here. What only says what is so (a drain that somebody ended, an
intent that is overtaken) stays. In a pause a GPU that is excluded stays hidden from jobs; in observe mode nothing is.
"""

from __future__ import annotations

from typing import Final, Iterable, Mapping, Optional

from slurm_nvhc.act import steps as st
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.wish import PlanInput
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.protective import Pause
from slurm_nvhc.model.times import iso

# What would be done, as in "would drain".
_WOULD: Final[Mapping[str, str]] = {
    st.DRAIN: "drain",
    st.EXTEND: "extend the reason",
    st.INTENT: "drain",
    st.EXCLUDE: "exclude",
    st.FAIL_JOB: "fail this job",
    st.RESUME: "resume",
    st.BAR: "leave its end to an administrator",
    st.QUARANTINE: "have a placeholder job hold",
    st.UNHOLD: "end the placeholder job that holds",
    st.REQUEUE: "move this job",
    st.EXCLUDE_NODE: "keep job off this node",
    st.SIGNAL: "signal job",
    st.REBOOT: "reboot",
    st.RECOUNT: "count the drained nodes again",
}


def label(pause: Optional[Pause], mode: str) -> str:
    """Why nothing is done: "paused until 2026-12-01T14:00:00Z", "observe mode"; '' when things are done."""
    if pause is not None:
        return f"paused until {iso(pause.until_ns)}"
    return "observe mode" if mode == fd.OBSERVE else ""


def held_back(inp: PlanInput, steps: Iterable[Step]) -> tuple[Step, ...]:
    why = label(inp.pause, inp.policy.mode)
    if not why:
        return tuple(steps)
    out = []
    for step in steps:
        if step.kind in _WOULD or (step.kind == st.NARROW and not _stays_hidden(inp, step)):
            out.append(Step(st.NOTE, why=f"{why}: would {_told(inp, step)}", keys=step.keys, uuid=step.uuid, uuids=step.uuids))
        elif step.kind == st.NARROW:
            # Without a reason to fall back to: the node is not drained in a pause, not even for a GPU that can not be hidden.
            out.append(step._replace(reason=""))
        elif step.kind == st.ALERT:
            out.append(Step(st.NOTE, why=f"{why}: would alert: {step.why}", keys=step.keys))
        else:
            out.append(step)
    return tuple(dict.fromkeys(out))


def _stays_hidden(inp: PlanInput, step: Step) -> bool:
    return inp.pause is not None and inp.policy.mode != fd.OBSERVE and all(uuid in inp.exclusions for uuid in step.uuids)


def _told(inp: PlanInput, step: Step) -> str:
    verb = "hide" if step.kind == st.NARROW else _WOULD[step.kind]
    if step.kind in (st.DRAIN, st.EXTEND, st.INTENT):
        return f"{verb}: {step.reason}"
    what = step.job or (inp.name(step.uuid) if step.uuid else "")
    head = f"{verb} {what}" if what else verb
    return f"{head}: {step.why}" if step.why else head
