"""The job a hook runs for, as Slurm's environment describes it (slurm/environment.py makes it)."""

from __future__ import annotations

from typing import NamedTuple, Optional


class Job(NamedTuple):
    """Values that Slurm did not give are '' or None.

    positions:   SLURM_JOB_GPUS: positions in gres.conf's concatenated File list, not
                 minor numbers; None when the variable is absent (job without GPUs).
    exit_code:   SLURM_JOB_EXIT_CODE as given (wait status), epilog only.
    """

    job_id: str
    uid: Optional[int] = None
    user: str = ""
    partition: str = ""
    positions: Optional[tuple[int, ...]] = None
    visible: str = ""  # CUDA_VISIBLE_DEVICES as given
    nodes: Optional[int] = None
    tasks: Optional[int] = None
    comment: str = ""
    exit_code: Optional[int] = None


class GpuMapping(NamedTuple):
    """Which GPUs a job has.

    uuids:  the job's GPUs that exist, in the order of positions
    by_position: position -> uuid for the whole node, as far as known
    exact:  True when it rests on a File list; an assumed mapping may lead to a
            drain, never to narrowing
    missing: positions for which no GPU is present (the device of that minor is gone)
    why:    one sentence: what the mapping rests on
    """

    uuids: tuple[str, ...]
    by_position: dict[int, str]
    exact: bool
    missing: tuple[int, ...] = ()
    why: str = ""
