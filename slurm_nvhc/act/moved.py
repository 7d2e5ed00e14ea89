"""What a job's AdminComment says of being moved: counted in the job itself, so that every node of the cluster knows it. Pure.

    nvhc: moved off n1,n2 (NVL-STORM gpu3); 2 times, restart 2

Only root writes an AdminComment; whatever else it says is kept. A requeue has a number (Slurm's Restarts), and the tag
names the one that it counted last: however many hooks of however many nodes write it for one requeue, it counts once.
"""

from __future__ import annotations

import re
from typing import Final, Optional

from slurm_nvhc.act import words as wd

MAX_NODES: Final = 8  # named; the newest
MAX_WHY: Final = 80
_HEAD: Final = "nvhc: moved off "
_TAG: Final = re.compile(r"nvhc: moved off ([^()\n]{0,400}) \(([^()\n]{0,200})\); ([0-9]{1,4}) times?, restart ([0-9]{1,6})")


def count(admin_comment: str) -> Optional[int]:
    """How often we moved this job; None when that can not be read (somebody edited it)."""
    found = _TAG.findall(admin_comment)
    if admin_comment.count(_HEAD.strip()) != len(found):
        return None
    return max((int(times) for _nodes, _why, times, _restart in found), default=0)


def counted(admin_comment: str, restarts: int) -> bool:
    """Whether the requeue with this number is in the tag."""
    return any(int(restart) >= restarts for _nodes, _why, _times, restart in _TAG.findall(admin_comment))


def tagged(admin_comment: str, node: str, why: str, restarts: int) -> str:
    """The AdminComment with this requeue counted; the same text when it is already, or when its tag can not be read."""
    times = count(admin_comment)
    if times is None or counted(admin_comment, restarts):
        return admin_comment
    found = _TAG.search(admin_comment)
    nodes = [n for n in (found.group(1).split(",") if found else []) if n and n != node]
    tag = f"{_HEAD}{','.join([*nodes, node][-MAX_NODES:])} ({_plain(why)}); {times + 1} time{'s' if times else ''}, restart {restarts}"
    if found:
        return admin_comment[: found.start()] + tag + admin_comment[found.end() :]
    return f"{admin_comment.rstrip()}; {tag}" if admin_comment.strip() else tag


def _plain(why: str) -> str:
    return wd.clean(why.replace("(", "").replace(")", ""), MAX_WHY)
