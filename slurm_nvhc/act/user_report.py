"""The file in which a job's user reads whether a fault touched the job: ``<dir>/<job id>.<node>.txt`` and ``.json``.

It is written by root into a folder that root alone may write, and belongs to the user, who alone can read it (0400).
No part of the path may be a symbolic link, nor be in the hands of anybody else: a hook that writes as root where a
user can plant links would write wherever that user likes. The folder is on a local disk: a file system that hangs
would hold up the epilog until its launcher ends it.
"""

from __future__ import annotations

import json
import os
import re
import stat
from typing import Any, Final, Mapping, NamedTuple

from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.job import Job
from slurm_nvhc.model.suspect import CLEAN, HIT, SUSPECTED, UNKNOWN, Touched, touched_to_json
from slurm_nvhc.model.times import duration, iso, minutes

SCHEMA: Final = 1
FOLDER_MODE: Final = 0o711  # names are not for everybody to list: they are job ids
MOST_PRUNED: Final = 500  # files deleted by one run
_JOB_ID: Final = re.compile(r"[0-9]{1,10}")
_FILE: Final = re.compile(r"(?:\.)?[0-9]{1,10}\.(?P<node>.+)\.(?:txt|json)(?:\.[0-9]+\.new)?")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_MEANS: Final[Mapping[str, str]] = {
    CLEAN: "No fault of this node touched the job, as far as counters and logs can tell. They do not see everything: "
    "a GPU that computes wrongly in silence leaves no trace in them.",
    UNKNOWN: "What happened to the job's GPUs could not be seen.",
    SUSPECTED: "Something was seen that may have touched the job.",
    HIT: "A fault was seen on what the job used, while it ran.",
}


class Span(NamedTuple):
    """The job's time on this node, ns UTC."""

    start_ns: int
    end_ns: int


def text(node: str, job: Job, span: Span, touched: Touched) -> str:
    """The report for people."""
    seconds = (span.end_ns - span.start_ns) / 1e9
    lines = [
        f"job {job.job_id} on {node}: {touched.verdict}",
        _MEANS.get(touched.verdict, ""),
        "",
        f"from {iso(span.start_ns)} to {iso(span.end_ns)} ({duration(seconds)}); all times are UTC",
        f"why: {touched.why}",
    ]
    if touched.minutes:
        lines += ["", "when:", *(f"  {minutes([(begin, end)], seconds)}  {what}" for begin, end, what in touched.minutes)]
    if touched.counters:
        lines += ["", "error counters that grew:", *(f"  {counter}" for counter in touched.counters)]
    return "\n".join([*lines, ""])


def document(node: str, job: Job, span: Span, touched: Touched) -> dict[str, Any]:
    """The same for programs."""
    return {"schema": SCHEMA, "node": node, "job": job.job_id, **span._asdict(), **touched_to_json(touched)}


def write(folder: str, node: str, job: Job, span: Span, touched: Touched) -> None:
    """Write both forms, each whole or not at all. Raises MonitorError."""
    if not _JOB_ID.fullmatch(job.job_id) or job.uid is None:
        raise MonitorError("report for a job's user", "", "the environment tells no job id or no user")
    content = {"txt": text(node, job, span, touched), "json": json.dumps(document(node, job, span, touched), indent=2) + "\n"}
    try:
        fd = _open_folder(folder)
        try:
            for suffix, words in content.items():
                _write(fd, f"{job.job_id}.{node}.{suffix}", words, job.uid)
        finally:
            os.close(fd)
    except OSError as exc:
        raise MonitorError(folder, "", exc.strerror or str(exc)) from exc


def prune(folder: str, node: str, keep_days: float, now_s: float) -> int:
    """Delete this node's reports that were written more than ``keep_days`` before now (s since 1970); returns how many.

    Their age is that of the inode's change: an owner can set a file's modification time to anything.
    Raises MonitorError. A folder that is not there has nothing to delete.
    """
    deleted = 0
    try:
        fd = _open_folder(folder, make=False)
    except FileNotFoundError:
        return 0
    except OSError as exc:
        raise MonitorError(folder, "", exc.strerror or str(exc)) from exc
    try:
        for name in os.listdir(fd):
            found = _FILE.fullmatch(name)
            if found is None or found["node"] != node or deleted >= MOST_PRUNED:
                continue
            if os.stat(name, dir_fd=fd, follow_symlinks=False).st_ctime < now_s - keep_days * 86400:
                os.unlink(name, dir_fd=fd)
                deleted += 1
    except OSError as exc:
        raise MonitorError(folder, "", exc.strerror or str(exc)) from exc
    finally:
        os.close(fd)
    return deleted


def _open_folder(folder: str, make: bool = True) -> int:
    """A descriptor of the folder, reached from / one step at a time without following a link. Raises OSError, MonitorError."""
    parts = [p for p in folder.split("/") if p]
    if ".." in parts or "." in parts or not folder.startswith("/"):
        raise MonitorError(folder, "", "is not a plain absolute path")
    fd = os.open("/", _FOLDER)
    for i, part in enumerate(parts):
        where, is_last = "/" + "/".join(parts[: i + 1]), i + 1 == len(parts)
        try:
            if is_last and make:
                _make(fd, part)
            deeper = os.open(part, _FOLDER, dir_fd=fd)
        except OSError as exc:
            if stat.S_ISLNK(_mode(part, fd)):
                raise MonitorError(where, "", "is a symbolic link", "give the path that it stands for") from exc
            raise
        finally:
            os.close(fd)
        fd = deeper
        problem = _unsafe(os.fstat(fd), is_last)
        if problem:
            os.close(fd)
            raise MonitorError(where, "", problem, "reports go where root alone can write")
    return fd


def _make(parent: int, name: str) -> None:
    try:
        os.mkdir(name, FOLDER_MODE, dir_fd=parent)
    except FileExistsError:
        return
    os.chmod(name, FOLDER_MODE, dir_fd=parent)  # whatever slurmd's umask is


def _mode(name: str, parent: int) -> int:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except OSError:
        return 0


def _unsafe(found: os.stat_result, is_last: bool) -> str:
    """Why a folder of the path is not safe to write in, or ''. Above the last one the sticky bit keeps others' hands off."""
    if found.st_uid not in (0, os.geteuid()):
        return f"belongs to user {found.st_uid}"
    if found.st_mode & 0o022 and (is_last or not found.st_mode & stat.S_ISVTX):
        return "can be written by others"
    return ""


def _write(folder: int, name: str, content: str, uid: int) -> None:
    """One file, the user's before it has its name. Raises OSError."""
    temporary = f".{name}.{os.getpid()}.new"
    data = content.encode("utf-8", "replace")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    _remove(folder, temporary)  # of a killed hook with our number
    fd = os.open(temporary, flags, 0o400, dir_fd=folder)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, 0o400)
            if uid != os.geteuid():
                os.fchown(fd, uid, -1)
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        _remove(folder, temporary)
        raise


def _remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        pass
