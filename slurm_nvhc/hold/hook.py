"""Prolog and epilog of a placeholder job: nothing is judged, no run is recorded, and the job is never failed.

The prolog tells the job which GPU it was given. Only an exact answer is given: a job that holds the wrong GPU would
leave users the bad one.
"""

from __future__ import annotations

from typing import Callable, Mapping

from slurm_nvhc.context import Context, Site, prepare
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.hold import place
from slurm_nvhc.hold.place import Place
from slurm_nvhc.judge import EPILOG, PROLOG
from slurm_nvhc.model.job import GpuMapping
from slurm_nvhc.model.placeholder import is_placeholder
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.proc import log
from slurm_nvhc.sense.client import read_snapshot
from slurm_nvhc.slurm import gres as gres_file
from slurm_nvhc.slurm.environment import node_name


def concerns(hook: str, environment: Mapping[str, str]) -> bool:
    """Whether this is a hook of a placeholder job. Decided from the environment alone, before anything is read."""
    uid = environment.get("SLURM_JOB_UID", "")
    return hook in (PROLOG, EPILOG) and is_placeholder(0 if uid.strip() == "0" else None, environment.get("SLURM_JOB_COMMENT", ""))


def attend(
    hook: str,
    site: Site,
    environment: Mapping[str, str],
    started: float,
    hostname: str,
    on_budget: Callable[[float], object] = lambda seconds: None,
) -> None:
    """The whole hook."""
    if hook == EPILOG:
        job_id = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID", "")
        place.remove(site.run, node_name(environment, hostname), job_id)
        return
    context = prepare(hook, site, environment, started, hostname)
    on_budget(context.budget.left_s())
    try:
        _tell(context)
    except (MonitorError, OSError) as exc:
        log.warning(f"prolog {context.node}: a placeholder job holds nothing: {exc}")
    finally:
        context.book.close()


def _tell(context: Context) -> None:
    """Raises MonitorError when it is not certain which GPU the job has, OSError when it can not be written down."""
    if context.job is None:
        raise MonitorError("placeholder job", "", "Slurm gave it no id")
    deadline_s = min(context.policy.engine.timeout_s, context.budget.sense_s())
    snapshot = read_snapshot(context.node, context.policy.engine, deadline_s, fields=())
    mapping = mapped(context, snapshot)
    place.write(context.site.run, context.node, context.job.job_id, placed(context.job.job_id, mapping, snapshot))


def mapped(context: Context, snapshot: Snapshot) -> GpuMapping:
    """As for any job (observation.py), from a reading of just now: after a reset or a reboot numbers may be others."""
    gres, _trouble = gres_file.read(context.slurm_conf, context.node)
    present = [gpu.identity for gpu in (snapshot.gpus or {}).values()]
    known = context.book.protective().gpus
    positions = context.job.positions if context.job is not None else None
    return gres_file.resolve(positions, gres, present, known, context.policy.slurm.job_gpus)


def placed(job_id: str, mapping: GpuMapping, snapshot: Snapshot) -> Place:
    """Raises MonitorError unless the job has exactly one GPU, which is present and known for certain."""
    thing = f"placeholder job {job_id}"
    if not mapping.exact:
        raise MonitorError(thing, "", f"which GPU it has is not certain ({mapping.why})")
    if len(mapping.uuids) != 1 or mapping.missing:
        raise MonitorError(thing, "", f"it has {len(mapping.uuids)} GPUs that answer, one was expected")
    return Place(mapping.uuids[0], snapshot.wall_ns, snapshot.boot_id, {uuid: n for n, uuid in mapping.by_position.items()})
