"""The ways to keep just one GPU from jobs, and what stands against each. Pure; for hooks and for `nvhc gpu exclude`.

A GPU is taken out alone only where that can be kept up and hits the right one:
the exclusion survives a reboot, the GPU's position is certain, and enough GPUs
are left. Everything else falls to the drain.
"""

from __future__ import annotations

from typing import AbstractSet, NamedTuple, Optional

from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.job import GpuMapping
from slurm_nvhc.model.protective import NARROW, QUARANTINE
from slurm_nvhc.policy.compiled import Policy
from slurm_nvhc.slurm.gres import POSITION

NOT_DURABLE = "the state directory does not survive a reboot, so no exclusion would"

NOT_POSITIONS = "the policy says that SLURM_JOB_GPUS does not hold positions, by which Slurm names a job's GPUs"


class Ground(NamedTuple):
    """What the ways depend on. node_gpus: how many the node has; durable, alloc: as in PlanInput."""

    policy: Policy
    mapping: GpuMapping
    node_gpus: int
    durable: bool
    alloc: Optional[bool]


def wanted(policy: Policy) -> str:
    """The way that the policy takes for ``action: narrow``; '' when it is the drain."""
    if policy.quarantine.enabled:
        return QUARANTINE
    return NARROW if policy.narrow.enabled else ""


def told(action: str, policy: Policy) -> str:
    """What a rule's action comes to under a policy, as a verb."""
    return {"": fd.DRAIN, NARROW: fd.NARROW, QUARANTINE: "quarantine"}[wanted(policy)] if action == fd.NARROW else action


def hindrance(ground: Ground, way: str, uuid: str, excluded: AbstractSet[str]) -> str:
    """Why this GPU can not be taken out alone by ``way``; '' when it can.

    excluded: the GPUs here that would be excluded then, this one among them.
    """
    narrow, quarantine = ground.policy.narrow, ground.policy.quarantine
    if way == QUARANTINE and not quarantine.enabled:
        return "quarantine is off"
    if way != QUARANTINE and not narrow.enabled:
        return "narrowing is off"
    if not ground.durable:
        return NOT_DURABLE
    if not ground.mapping.exact:
        return f"the GPU's position is not certain ({ground.mapping.why})"
    if uuid not in ground.mapping.by_position.values():
        return "the GPU has no position in Slurm"
    if way == QUARANTINE and ground.policy.slurm.job_gpus != POSITION:
        # What Slurm says of a job's GPUs (IDX) counts positions: by other numbers the hold would seem to be on another GPU.
        return NOT_POSITIONS
    if way == QUARANTINE and not ground.alloc:
        # Without it the prolog of a placeholder job runs only once its script is started, and a user's may not run at all.
        return "PrologFlags has no Alloc" if ground.alloc is not None else "it is not known whether PrologFlags has Alloc"
    most = quarantine.max_gpus if way == QUARANTINE else narrow.max_excluded
    least = quarantine.min_gpus if way == QUARANTINE else narrow.min_gpus
    if len(excluded) > most:
        return f"{len(excluded)} GPUs would be excluded, {most} may be"
    if ground.node_gpus - len(excluded) < least:
        return f"fewer than {least} GPUs would be left on the node"
    return ""
