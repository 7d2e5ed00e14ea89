"""May an active test use these GPUs here and now? Only in an allocation that owns them, or on a drained, empty node.

DCGM itself does not ask whether a GPU is busy, and its test then fails the hardware for it (go-dcgm#52, DCGM#224), or fails
the job that runs there. So every command that loads a GPU (`nvhc diag` from level 2 on, isolate, screen) asks here first.
Hooks know their ground from Slurm: a job's prolog and epilog run while its GPUs are allocated to it.
"""

from __future__ import annotations

import os
import time
from typing import Callable, Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.context import Context
from slurm_nvhc.model import placeholder
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.node_job import NodeJob
from slurm_nvhc.model.snapshot import OK, GpuIdentity, Snapshot
from slurm_nvhc.slurm import gres as gres_file
from slurm_nvhc.slurm.command import SlurmError
from slurm_nvhc.slurm.environment import MAX_NAME, clean
from slurm_nvhc.slurm.jobs import SlurmJobs
from slurm_nvhc.slurm.node import SlurmCommands

ALLOCATION: Final = "allocation"
DRAINED: Final = "drained"
NONE: Final = "none"
NEEDS_NONE: Final = "needs none"  # what loads no GPU may run beside jobs
RUNNING: Final = "RUNNING"
_DRAINED: Final = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"})
# Slurm's calls here: squeue, scontrol show job each, scontrol show node; an administrator waits for them.
SLURM_S: Final = 30.0
FREE_S: Final = 10.0  # so long the driver may take to clean up behind a command that was ended
_LOOK_S: Final = 0.5


class Ground(NamedTuple):
    """how: one of the four above. job: the allocation's id.

    uuids: GPUs that may be used, in the order of the snapshot; () when there are none.
    skipped: GPUs of this ground that are left alone -> why (busy, MIG, lost).
    why: one sentence: what the ground is, or why there is none.
    """

    how: str
    uuids: tuple[str, ...] = ()
    skipped: Mapping[str, str] = {}
    why: str = ""
    job: str = ""


def stand(context: Context, snapshot: Snapshot, environment: Mapping[str, str], wanted: Sequence[str] = ()) -> Ground:
    """The ground on which an active test would run. ``wanted``: UUIDs, () = all that the ground has. Never raises for Slurm's sake.

    environment: of the command: inside a job it names it (SLURM_JOB_ID); what the job owns is asked of Slurm, not taken from
    the environment, which anybody can set.
    """
    try:
        job_id = clean(environment.get("SLURM_JOB_ID", ""), MAX_NAME)
        found = _allocation(context, snapshot, job_id) if job_id else _drained(context, snapshot)
    except SlurmError as exc:
        return Ground(NONE, why=f"Slurm could not be asked whose the GPUs are: {exc}")
    if found.how == NONE:
        return found
    outside = [uuid for uuid in wanted if uuid not in found.uuids]
    if outside:
        return Ground(NONE, why=f"{', '.join(outside)}: not of this {'job' if found.how == ALLOCATION else 'node'}", job=found.job)
    owned = [uuid for uuid in found.uuids if not wanted or uuid in wanted]
    skipped = {uuid: why for uuid in owned if (why := left_alone(snapshot, uuid))}
    return found._replace(uuids=tuple(u for u in owned if u not in skipped), skipped=skipped)


def still(
    context: Context, look: Callable[[], Snapshot], environment: Mapping[str, str], uuids: Sequence[str]
) -> tuple[Snapshot, Ground, dict[str, str]]:
    """Before the next load: a look at the node, its ground now, and which of these GPUs may not be used any more -> why.

    Somebody may have resumed the node, or the job be over. A command that was ended may be gone before the driver has let go
    of its GPUs, so busy ones are given a moment.
    """
    until = time.monotonic() + FREE_S
    while True:
        snapshot = look()
        found = stand(context, snapshot, environment, [u for u in uuids if u in (snapshot.gpus or {})])
        none = found.why if found.how == NONE else ""
        whys = {u: none or left_alone(snapshot, u) or "not ours any more" for u in uuids if u not in found.uuids}
        if time.monotonic() > until or not any(why.startswith("busy") for why in whys.values()):
            return snapshot, found, whys
        time.sleep(_LOOK_S)


def left_alone(snapshot: Snapshot, uuid: str) -> str:
    """Why a GPU is no object for an active test even where it is ours, '' when it is one. Its processes are not told: they are unknown."""
    gpu = (snapshot.gpus or {}).get(uuid)
    if gpu is None:
        return "not seen by the engine"
    if gpu.status != OK:
        return "lost"
    if gpu.identity.mig:
        return "in MIG mode"
    count = rd.number(gpu.readings.get("gpu_processes"))
    if count is None:
        return "it can not be told whether processes compute on it"
    return f"busy: {count:g} processes compute on it" if count else ""


def _allocation(context: Context, snapshot: Snapshot, job_id: str) -> Ground:
    job = _jobs(context).job(job_id, context.node, SLURM_S)
    if job is None:
        return Ground(NONE, why=f"SLURM_JOB_ID is {job_id}, and Slurm knows no such job", job=job_id)
    if job.state != RUNNING:
        return Ground(NONE, why=f"job {job_id} is {job.state}", job=job_id)
    if os.geteuid() not in (0, job.uid):
        return Ground(NONE, why=f"job {job_id} is somebody else's", job=job_id)
    if not job.positions:
        why = f"job {job_id} has no GPU on {context.node}, or Slurm does not say which: ask for them with --gres=gpu:N"
        return Ground(NONE, why=why, job=job_id)
    gres = gres_file.read(context.slurm_conf, context.node)[0] if context.slurm_conf else None
    present = _identities(snapshot)
    known = context.book.protective().gpus
    mapping = gres_file.resolve(job.positions, gres, present, known, context.policy.slurm.job_gpus)
    # Where a GPU is missing, all that are left may be one more than the job has.
    whole = set(mapping.uuids) == {row.uuid for row in present} >= {row.uuid for row in known}
    if not mapping.exact and not whole:
        return Ground(NONE, why=f"which GPUs job {job_id} has is not certain: {mapping.why}", job=job_id)
    owned = [row.uuid for row in present if row.uuid in mapping.uuids]
    return Ground(ALLOCATION, tuple(owned), why=f"job {job_id} has {len(owned)} of {len(present)} GPUs", job=job_id)


def _drained(context: Context, snapshot: Snapshot) -> Ground:
    slurm = context.policy.slurm
    state = SlurmCommands(slurm.bin_dir, context.slurm_conf, slurm.timeout_s).node_state(context.node, SLURM_S)
    if not {state.base, *state.flags} & _DRAINED:
        # A node that is only down comes back by itself when its slurmd registers (ReturnToService).
        hint = f"run it in an allocation (salloc -w {context.node} --exclusive), or drain the node"
        return Ground(NONE, why=f"the node is {state.base}, and jobs may start on it: {hint}")
    # Our own placeholder job computes nothing: the GPU that it holds is the one that wants testing.
    others = [job for job in _jobs(context).of_node(context.node, SLURM_S) if not placeholder.is_ours(job)]
    if others:
        return Ground(NONE, why=f"the node is drained, and still has {_named(others)}")
    return Ground(DRAINED, tuple(row.uuid for row in _identities(snapshot)), why="the node is drained and has no job")


def _jobs(context: Context) -> SlurmJobs:
    slurm = context.policy.slurm
    return SlurmJobs(slurm.bin_dir, context.slurm_conf, slurm.timeout_s)


def _named(jobs: Sequence[NodeJob]) -> str:
    first: Optional[str] = jobs[0].job_id
    return f"job {first}" if len(jobs) == 1 else f"{len(jobs)} jobs, {first} among them"


def _identities(snapshot: Snapshot) -> list[GpuIdentity]:
    return [gpu.identity for gpu in (snapshot.gpus or {}).values()]
