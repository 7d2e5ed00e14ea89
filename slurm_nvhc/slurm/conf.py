"""The files beside slurm.conf: bounded reading, and Slurm's ``Key=Value`` lines."""

from __future__ import annotations

import fnmatch
import os
import re
from typing import Collection, Final, Iterator, Optional

MAX_BYTES: Final = 1024 * 1024

# Slurm allows blanks around "=", double quotes around a value, and any case in keys.
_PAIR: Final = re.compile(r'([A-Za-z][A-Za-z0-9_.]*)[ \t]*=[ \t]*(?:"([^"]*)"|(\S*))')
_INCLUDE: Final = re.compile(r"[ \t]*include[ \t]+(\S.*)", re.IGNORECASE)
_COMMENT: Final = re.compile(r"(?<!\\)#.*")
_ALLOC: Final = frozenset({"alloc", "contain", "x11"})
_INCLUDE_DEPTH: Final = 5


def beside(slurm_conf: str, name: str) -> str:
    return os.path.join(os.path.dirname(slurm_conf), name)


def read(path: str) -> str:
    """The file's text; bytes that are not UTF-8 survive as surrogates. OSError, also for a file over 1 MiB."""
    # O_NONBLOCK: a named pipe in its place must not stop a hook.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data or b"") > MAX_BYTES:
        raise OSError(27, "is larger than 1 MiB", path)
    return (data or b"").decode("utf-8", "surrogateescape")


def lines(text: str) -> Iterator[str]:
    """Logical lines: continuation (a backslash at the end) joined, comments and empty lines gone."""
    held = ""
    for line in text.splitlines():
        stripped = _COMMENT.sub("", line).rstrip()
        if stripped.endswith("\\"):
            held += stripped[:-1]
            continue
        whole = (held + stripped).strip()
        held = ""
        if whole:
            yield whole
    if held.strip():
        yield held.strip()


def pairs(line: str) -> dict[str, str]:
    """The keys of one logical line, in lower case, with their values."""
    return {m.group(1).lower(): m.group(3) if m.group(2) is None else m.group(2) for m in _PAIR.finditer(line)}


def include(line: str) -> str:
    """The path that an Include line names, '' for any other line."""
    match = _INCLUDE.fullmatch(line)
    return match.group(1).strip() if match else ""


def prolog_alloc(slurm_conf: str) -> Optional[bool]:
    """Whether a prolog runs when its job is given the node, before anything of it starts; None when that can not be told.

    PrologFlags has Alloc, or a flag that implies it (Contain, X11). Without it the prolog runs with the first step or script,
    and not at all on a node that gets neither. The last PrologFlags line counts, also one of an included file.
    """
    flags, unsure = _prolog_flags(slurm_conf, os.path.dirname(slurm_conf), _INCLUDE_DEPTH)
    if flags is not None:
        return bool(_ALLOC & {flag.strip().lower() for flag in flags.split(",")})
    return None if unsure else False


def _prolog_flags(path: str, folder: str, depth: int) -> tuple[Optional[str], bool]:
    """(the value, None when no line has it; whether something could not be read)."""
    try:
        text = read(path)
    except (OSError, ValueError):
        return None, True
    flags: Optional[str] = None
    unsure = False
    for line in lines(text):
        included = include(line).strip('"')
        if not included:
            flags = pairs(line).get("prologflags", flags)
            continue
        inner, unread = _prolog_flags(os.path.join(folder, included), folder, depth - 1) if depth > 0 else (None, True)
        flags, unsure = inner if inner is not None else flags, unsure or unread
    return flags, unsure


def constrain_devices(slurm_conf: str) -> Optional[bool]:
    """Whether jobs see only their own device files; None when that can not be told.

    It decides the meaning of CUDA_VISIBLE_DEVICES in a task: counted within the
    job when True, node-wide when False. Slurm constrains only with
    ConstrainDevices=yes in cgroup.conf (default no) *and* the task/cgroup plugin.
    """
    try:
        cgroup = read(beside(slurm_conf, "cgroup.conf"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return None
    wanted, unsure = False, False
    for line in lines(cgroup):
        unsure = unsure or bool(include(line))
        value = pairs(line).get("constraindevices")
        if value is not None:
            wanted = value.lower() in ("yes", "true", "1", "up")
    if not wanted:
        return None if unsure else False
    try:
        text = read(slurm_conf)
    except (OSError, ValueError):
        return None
    plugin: Optional[str] = None
    for line in lines(text):
        plugin = pairs(line).get("taskplugin", plugin)
    # Not named here: it may stand in an included file, or be the version's default.
    return None if plugin is None else "cgroup" in plugin.lower()


def only_hooks(slurm_conf: str, ours: Collection[str]) -> Optional[bool]:
    """Whether every prolog and epilog that slurmd runs is one of ours, by the file's name; None when that can not be told.

    A hook of somebody else that fails drains the node, and on a node that is drained already leaves no trace of it
    (observed on 22.05 and 24.11).
    """
    named, unsure = _hook_paths(slurm_conf, os.path.dirname(slurm_conf), _INCLUDE_DEPTH)
    for path in named:
        folder, pattern = os.path.split(path)
        names = [pattern]
        if any(c in pattern for c in "*?["):
            try:
                names = fnmatch.filter(os.listdir(folder), pattern)
            except OSError:
                return None
        if any(name not in ours for name in names):
            return False
    return None if unsure else True


def _hook_paths(path: str, folder: str, depth: int) -> tuple[list[str], bool]:
    """(what all Prolog and Epilog lines name, also those that a later line overrides; whether something could not be read)."""
    try:
        text = read(path)
    except (OSError, ValueError):
        return [], True
    found: list[str] = []
    unsure = False
    for line in lines(text):
        included = include(line).strip('"')
        if included:
            inner, unread = _hook_paths(os.path.join(folder, included), folder, depth - 1) if depth > 0 else ([], True)
            found, unsure = [*found, *inner], unsure or unread
            continue
        values = pairs(line)
        found += [values[key] for key in ("prolog", "epilog") if values.get(key)]
    return found, unsure
