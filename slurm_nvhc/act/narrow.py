"""The file that tells the task prolog which GPUs of a job are hidden.

``<run>/<node>/narrow/<job id>``, mode 0644 below directories of 0755: it is
read by a POSIX shell script that runs as the job's user. Lines, in this order:

    nvhc-narrow 1                       format and its version
    constrain yes|no|unknown            whether Slurm shows jobs only their own device files
    gpu POSITION UUID keep|hide|other   one per GPU of the node with a known position;
                                        "other" is not the job's
    text ...                            what the user is told, one line
    end                                 the file is whole
"""

from __future__ import annotations

import os
import re
from typing import Final, Iterable, Optional

from slurm_nvhc.act import words as wd
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.job import GpuMapping, Job
from slurm_nvhc.proc.files import write_atomic

MAX_TEXT: Final = 300
_JOB_ID: Final = re.compile(r"[0-9]{1,10}")
_UUID: Final = re.compile(r"GPU-[0-9A-Za-z-]{1,60}")
_CONSTRAIN: Final = {True: "yes", False: "no", None: "unknown"}


def path(run_dir: str, node: str, job_id: str) -> str:
    return os.path.join(run_dir, node, "narrow", job_id)


def text(job: Job, mapping: GpuMapping, hide: Iterable[str], constrain: Optional[bool], why: str) -> str:
    """The file's text. Raises MonitorError when it would not hide every GPU of ``hide``."""
    hidden = set(hide)
    given = set(mapping.uuids)
    lines = ["nvhc-narrow 1", f"constrain {_CONSTRAIN[constrain]}"]
    told: set[str] = set()
    for position, uuid in sorted(mapping.by_position.items()):
        if _UUID.fullmatch(uuid):
            lines.append(f"gpu {position} {uuid} {'hide' if uuid in hidden else 'keep' if uuid in given else 'other'}")
            told.add(uuid)
    if not hidden or not hidden <= told:
        raise MonitorError(f"exclusion file of job {job.job_id}", "", "a GPU to hide has no position")
    # A backslash would be an escape for the echo of some shells.
    lines += [f"text {wd.clean(why.replace(chr(92), '/'), MAX_TEXT)}", "end", ""]
    return "\n".join(lines)


def write(run_dir: str, node: str, job: Job, mapping: GpuMapping, hide: Iterable[str], constrain: Optional[bool], why: str) -> None:
    """Write it, whole or not at all. Raises MonitorError."""
    if not _JOB_ID.fullmatch(job.job_id):
        raise MonitorError("exclusion file", "", f"{wd.clean(job.job_id, 40)!r} is not a job id")
    target = path(run_dir, node, job.job_id)
    content = text(job, mapping, hide, constrain, why)
    try:
        _make_readable(run_dir, node)
        # Not synced: below /run, and jobs do not survive what it would not survive.
        write_atomic(target, content, mode=0o644, durable=False)
    except OSError as exc:
        raise MonitorError(target, "", exc.strerror or str(exc)) from exc


def _make_readable(run_dir: str, node: str) -> None:
    """The job's user must get through, whatever the umask of slurmd is."""
    for folder in (run_dir, os.path.join(run_dir, node), os.path.join(run_dir, node, "narrow")):
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            os.chmod(folder, 0o755)


def remove(run_dir: str, node: str, job_id: str) -> bool:
    """Remove a job's file; False when there was none or it can not be removed.

    For the epilog, and for a prolog that hides nothing: a requeued job keeps its id.
    """
    if not _JOB_ID.fullmatch(job_id):
        return False
    try:
        os.unlink(path(run_dir, node, job_id))
    except OSError:
        return False
    return True
