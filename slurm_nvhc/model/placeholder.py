"""How a placeholder job of ours is known: by hooks, by the planner, by an administrator's squeue.

By user and comment together: users can set any comment, and root's other jobs have another one. Both are in
the environment of Prolog and Epilog (the job's name is not), in `scontrol show job`, and survive a restart of
slurmctld. The names are for people and for cancelling what is left over.
"""

from __future__ import annotations

from typing import Final, Iterable, Optional

from slurm_nvhc.model.node_job import NodeJob

COMMENT: Final = "nvhc-hold"
HOLD: Final = "nvhc-hold"  # the name of a job that holds its GPU; its AdminComment says which
ENDING: Final = "nvhc-hold-end"  # of one that has found no GPU to hold and clears up
_FILL: Final = "nvhc-hold-fill-"
_HOLDS: Final = "nvhc: holds "
# States in which a job uses its GPUs, or is about to.
_USING: Final = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})


def fill_name(node: str) -> str:
    """The name of jobs that look for a GPU to hold on ``node``: pending ones are known by nothing else."""
    return _FILL + node


def is_placeholder(uid: Optional[int], comment: str) -> bool:
    return uid == 0 and comment.strip() == COMMENT


def is_ours(job: NodeJob) -> bool:
    return is_placeholder(job.uid, job.comment)


def says(uuid: str) -> str:
    """The AdminComment of the job that holds this GPU."""
    return _HOLDS + uuid


def holds(job: NodeJob) -> str:
    """The UUID of the GPU that a job of ours says it holds; '' while it looks for one."""
    return job.admin_comment.removeprefix(_HOLDS).strip() if job.admin_comment.startswith(_HOLDS) else ""


def held(jobs: Iterable[NodeJob]) -> dict[str, NodeJob]:
    """UUID -> the running placeholder job that holds it."""
    return {holds(job): job for job in jobs if is_ours(job) and job.state == "RUNNING" and holds(job)}


def user_of(position: Optional[int], jobs: Iterable[NodeJob], certain: bool = False) -> Optional[NodeJob]:
    """Whose job uses the GPU at ``position``; not ours, and not one that is ending: its epilog is about to give it up.

    A job of which Slurm does not say which GPUs it has counts as one that has it (22.05 does so for about a second after a
    restart of slurmctld). certain: only who is known to have it: in the epilog of the job that had it nobody else can.
    """
    for job in jobs:
        if is_ours(job) or job.state not in _USING:
            continue
        if job.positions is None:
            if not certain:
                return job
        elif position in job.positions or (position is None and job.positions):
            return job
    return None
