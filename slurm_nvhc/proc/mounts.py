"""Does a directory survive a reboot? From the kernel's list of mounts. Light imports only."""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple, Optional

MEMORY: Final = frozenset({"tmpfs", "ramfs", "rootfs", "devtmpfs"})
_MOUNTINFO: Final = "/proc/self/mountinfo"
_MAX_BYTES: Final = 4 * 1024 * 1024
_OCTAL: Final = re.compile(r"\\(\d{3})")


class Mount(NamedTuple):
    """kind: type of the file system. upper: where an overlay keeps what is written, '' for others and where it is not told."""

    point: str
    kind: str
    upper: str = ""


def parse(text: str) -> tuple[Mount, ...]:
    """The mounts of /proc/self/mountinfo, oldest first."""
    out = []
    for row in text.splitlines():
        left, _, right = row.partition(" - ")
        words, types = left.split(), right.split()
        if len(words) < 5 or not types:
            continue
        upper = ""
        for option in types[-1].split(",") if types[0] == "overlay" else ():
            if option.startswith("upperdir="):
                upper = _unescaped(option.partition("=")[2])
        out.append(Mount(_unescaped(words[4]), types[0], upper))
    return tuple(out)


def holding(mounts: tuple[Mount, ...], path: str) -> Optional[Mount]:
    """The mount that the (real) path lies on; of several on one point the last is on top."""
    best: Optional[Mount] = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def in_memory(mounts: tuple[Mount, ...], path: str) -> str:
    """Why what is written below ``path`` is lost at a reboot: 'tmpfs', 'overlay over tmpfs'; '' when it is not.

    A diskless node's root is often an overlay whose upper directory is in memory. An overlay that does not tell its upper
    directory, or one that can not be seen from here (a container's), is taken for durable: its host decides that.
    """
    mount = holding(mounts, path)
    if mount is None:
        return "an unknown file system"
    if mount.kind in MEMORY:
        return mount.kind
    if mount.kind == "overlay" and mount.upper:
        below = holding(tuple(m for m in mounts if m != mount), mount.upper)
        if below is not None and below.kind in MEMORY:
            return f"overlay over {below.kind}"
    return ""


def durable(path: str) -> bool:
    """Whether ``path`` is known to survive a reboot. Never raises; what can not be told is not relied upon."""
    try:
        fd = os.open(_MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
        content = b""
        try:
            while len(content) < _MAX_BYTES and (more := os.read(fd, 65536)):
                content += more
        finally:
            os.close(fd)
        return not in_memory(parse(content.decode("utf-8", "replace")), os.path.realpath(path))
    except OSError:
        return False


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), text)
