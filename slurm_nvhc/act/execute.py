"""Do the steps of a plan once, in their order. Which module does which kind of step is said here and nowhere else."""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple

from slurm_nvhc.act import drains, gpus, jobs, placeholder, remedies
from slurm_nvhc.act import steps as st
from slurm_nvhc.act import words as wd
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.tools import Action, Done, Hands, Tools
from slurm_nvhc.model.protective import QUARANTINE
from slurm_nvhc.model.snapshot import Trouble

__all__ = ["Done", "Outcome", "Tools", "execute"]

_PLACE: Final = (st.DRAIN, st.OWN, st.RECOUNT)  # after these a job may be failed only if the node is out by us


class Outcome(NamedTuple):
    """fail_hook: the job must not run here. accepted: events that need no drain any more (for judge's memory).

    deeds: the drains and exclusions of this run that are in place.
    """

    done: tuple[Done, ...] = ()
    fail_hook: bool = False
    troubles: tuple[Trouble, ...] = ()
    deeds: tuple[Step, ...] = ()

    @property
    def accepted(self) -> tuple[str, ...]:
        return tuple(i for d in self.done if d.step.kind == st.ACCEPT for i in d.step.idents)


def execute(steps: tuple[Step, ...], tools: Tools) -> Outcome:
    """Never raises, whatever Slurm, the ledger, a file system or a fault of our own does."""
    hands = Hands(tools)
    done: list[Done] = []
    for step in steps:
        done.append(_do(hands, step))
        done += hands.also
        hands.also = []
    deeds = tuple(s for s in hands.deeds if s.kind != st.DRAIN or s.reason not in hands.taken_back)
    return Outcome(tuple(done), hands.fail_hook, tuple(dict.fromkeys(hands.troubles)), deeds)


def _do(hands: Hands, step: Step) -> Done:
    """A fault of our own in one step must not cost the others: the job may be about to start on a bad GPU."""
    try:
        return _ACTIONS.get(step.kind, _only_told)(hands, step)
    except Exception as exc:
        # What it had done before is seen by the next hook. Until then no drain is taken for placed.
        hands.not_out = hands.not_out or step.kind in _PLACE or step.way == QUARANTINE
        told = wd.clean(f"step {step.kind}: {type(exc).__name__}: {exc}", 200)
        hands.troubles.append(Trouble("MON-INTERNAL", "hook", told))
        return Done(step, False, told)


def _fail_job(hands: Hands, step: Step) -> Done:
    if hands.left or jobs.is_over(hands):
        return Done(step, True, "it does not start here: no need to fail it")
    if hands.not_out:
        # Slurm would drain the node itself, with a reason that says nothing, and hold the job (R57).
        return Done(step, False, "the node could not be drained: the job is let through, the drain is remembered")
    hands.fail_hook = True
    return Done(step, True)


def _notify(hands: Hands, step: Step) -> Done:
    hands.tools.log(f"notify: {step.why}")
    return Done(step, True)


def _accept(hands: Hands, step: Step) -> Done:
    # Kept before the drain or intent that answered these events is forgotten: killed in between, we would drain for them again.
    return Done(step, hands.keep(lambda p: p.settle(step.idents)))


def _only_told(hands: Hands, step: Step) -> Done:
    return Done(step, True)


_ACTIONS: Final[Mapping[str, Action]] = {
    **drains.ACTIONS,
    **gpus.ACTIONS,
    **jobs.ACTIONS,
    **placeholder.ACTIONS,
    **remedies.ACTIONS,
    st.ACCEPT: _accept,
    st.FAIL_JOB: _fail_job,
    st.NOTIFY: _notify,
}
