"""Is the slurmd that runs this health check still registering?

slurmd runs the health check before it registers, and registration waits for
it (observed on 22.05 and 24.11): that run gets a shorter budget.
"""

from __future__ import annotations

import os
from typing import Final, Optional

YOUNG_S: Final = 15.0  # a slurmd older than this has registered, or its first check was killed
_GENERATIONS: Final = 5  # python <- timeout <- launcher <- slurmd, and a site's own script around the launcher


def is_registering() -> bool:
    """True when an ancestor process is a slurmd that started moments ago. False when that can not be told."""
    pid = os.getppid()
    for _generation in range(_GENERATIONS):
        row = _stat(pid)
        if row is None:
            return False
        name, parent, started_s = row
        if name == "slurmd":
            return _uptime_s() - started_s < YOUNG_S
        pid = parent
    return False


def _stat(pid: int) -> Optional[tuple[str, int, float]]:
    """(name, parent, start in seconds after boot)"""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
        name = text[text.index("(") + 1 : text.rindex(")")]
        rest = text[text.rindex(")") + 2 :].split()
        return name, int(rest[1]), int(rest[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _uptime_s() -> float:
    try:
        with open("/proc/uptime", encoding="ascii") as file:
            return float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return float("inf")
