"""The files beside slurm.conf: bounded reading, and Slurm's ``Key=Value`` lines."""

from __future__ import annotations

import os
import re
from typing import Final, Iterator, Optional

MAX_BYTES: Final = 1024 * 1024

# Slurm allows blanks around "=", double quotes around a value, and any case in keys.
_PAIR: Final = re.compile(r'([A-Za-z][A-Za-z0-9_.]*)[ \t]*=[ \t]*(?:"([^"]*)"|(\S*))')
_INCLUDE: Final = re.compile(r"[ \t]*include[ \t]+(\S.*)", re.IGNORECASE)
_COMMENT: Final = re.compile(r"(?<!\\)#.*")


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
