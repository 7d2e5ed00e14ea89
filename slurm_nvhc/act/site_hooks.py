"""Programs of the site that are told what was done: a ticket, a message, a reset by the site's own means.

Each gets one JSON document on standard input and may take ``timeout_s``, and no more than the hook has left. What it
does, says or fails at stops nothing of ours; a failure becomes a trouble, and the event is told again later
(spool and back-off: ``Intent`` of kind "notify"), so a program may see an event twice: its ``id`` stays the same.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from typing import Any, Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.policy.acting import SiteHooks
from slurm_nvhc.proc import child
from slurm_nvhc.proc.files import make_private_dir, write_atomic

DRAIN: Final = "drain"
EXCLUDE: Final = "exclude"
RELEASE: Final = "release"
RESUME: Final = "resume"
REQUEUE: Final = "requeue"
REBOOT: Final = "reboot"
LIMIT: Final = "limit"
EVENTS: Final = (DRAIN, EXCLUDE, RELEASE, RESUME, REQUEUE, REBOOT, LIMIT)

SCHEMA: Final = 1
SPOOL: Final = "notify"  # folder of documents that are still to be told
LEAST_S: Final = 0.2  # with less time left no program is begun
MAX_TOLD: Final = 200  # characters kept of a program's last line
MOST_WAITING: Final = 50  # documents in the spool; our judgement: a site's program that fails for a day
_MAX_BYTES: Final = 256 * 1024
_ID: Final = re.compile(r"[a-z]{1,10}-[0-9]{1,20}-[0-9a-f]{8}")


class Ran(NamedTuple):
    """ok: it ended with 0. told: its last line, or what went wrong."""

    ok: bool
    told: str


def program(hooks: SiteHooks, event: str) -> str:
    """The path of the site's program for an event; '' = none."""
    return str(getattr(hooks, f"on_{event}", ""))


def ident(event: str, node: str, at_ns: int, what: Sequence[str]) -> str:
    """The name of one event: the same whenever it is told again."""
    text = "\0".join((event, node, *what))
    return f"{event}-{at_ns}-{zlib.crc32(text.encode('utf-8', 'replace')):08x}"


def is_ident(name: str) -> bool:
    """What may be a file's name in the spool."""
    return _ID.fullmatch(name) is not None


def unusable(path: str) -> str:
    """Why this program is not run; '' when it can be. It runs as root, so nobody else may be able to write it."""
    try:
        facts = os.stat(path)
    except OSError as exc:
        return exc.strerror or "can not be looked at"
    if not stat.S_ISREG(facts.st_mode):
        return "is not a file"
    if not os.access(path, os.X_OK):
        return "is not executable"
    if facts.st_uid not in (0, os.geteuid()):
        return f"belongs to uid {facts.st_uid}, not to root"
    if facts.st_mode & 0o022:
        return "can be written by others than root"
    return ""


def run(path: str, document: Mapping[str, Any], timeout_s: float) -> Ran:
    """Never raises. A program that takes longer is killed with its whole process group."""
    why_not = unusable(path)
    if why_not:
        return Ran(False, f"{path}: {why_not}")
    if timeout_s < LEAST_S:
        return Ran(False, f"{path}: not run: no time left in the hook's budget")
    done = child.run((path,), timeout_s, {"NVHC_EVENT": str(document.get("event", ""))}, stdin=json.dumps(document, default=str) + "\n")
    if done.problem == "timeout":
        return Ran(False, f"{path}: killed after {timeout_s:.1f} s")
    if done.problem:
        return Ran(False, f"{path}: {done.problem}")
    said = last_line(done.out) or last_line(done.err)
    if done.rc != 0:
        return Ran(False, f"{path}: exit status {done.rc}{f': {said}' if said else ''}")
    return Ran(True, said)


def last_line(text: str) -> str:
    lines = [line for line in text[-4096:].splitlines() if line.strip()]
    kept = "".join(c if c.isprintable() else " " for c in lines[-1]) if lines else ""
    return " ".join(kept.encode("utf-8", "replace").decode("utf-8").split())[:MAX_TOLD]


def trouble(event: str, told: str) -> Trouble:
    return Trouble("MON-SITE-HOOK", f"on_{event}", told)


# --- the spool -------------------------------------------------------------------------------


def keep(directory: str, document: Mapping[str, Any]) -> Optional[Trouble]:
    """Write a document down before its program is run, so that it can be told again."""
    folder = os.path.join(directory, SPOOL)
    try:
        make_private_dir(folder)
        waiting = sorted(n for n in os.listdir(folder) if n.endswith(".json"))
        for old in sorted(waiting, key=_moment)[: max(0, len(waiting) - MOST_WAITING + 1)]:
            os.unlink(os.path.join(folder, old))
        write_atomic(_path(directory, str(document["id"])), json.dumps(document, default=str) + "\n")
    except (OSError, ValueError) as exc:
        return trouble(str(document.get("event", "")), f"{folder}: can not be written: {getattr(exc, 'strerror', None) or exc}")
    return None


def kept(directory: str, name: str) -> Optional[dict[str, Any]]:
    """The document that is still to be told; None when there is none (any more). Raises MonitorError for damage."""
    if not is_ident(name):
        return None
    path = _path(directory, name)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            document = json.loads(file.read(_MAX_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as exc:
        raise MonitorError(path, "", f"can not be read: {exc}") from exc
    if not isinstance(document, dict) or document.get("event") not in EVENTS:
        raise MonitorError(path, "", "is not an event")
    return document


def drop(directory: str, name: str) -> None:
    """The event was told, or is too old to be told."""
    if is_ident(name):
        try:
            os.unlink(_path(directory, name))
        except OSError:
            pass  # not there, or the folder's own trouble tells


def _path(directory: str, name: str) -> str:
    if not is_ident(name):
        raise ValueError(f"{name!r} is no event's name")
    return os.path.join(directory, SPOOL, f"{name}.json")


def _moment(file_name: str) -> int:
    moment = file_name.split("-")[1] if file_name.count("-") == 2 else ""
    return int(moment) if moment.isascii() and moment.isdigit() else 0
