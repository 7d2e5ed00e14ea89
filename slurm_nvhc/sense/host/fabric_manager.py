"""The fabric manager's version, without asking it.

It compares itself with the loaded driver at its start and ends when the versions differ
(NVIDIA's Fabric Manager guide), so one that runs is of the driver's version. The other
sources are dear or old: searching its binary took 12 ms, the log tells of earlier starts, and
`nv-fabricmanager -v` would be a program started in a prolog.
"""

from __future__ import annotations

import os
from typing import Final

from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData, Reading

_NAME: Final = "nv-fabricmanage"  # the kernel cuts names of processes to 15 characters
# systemd's group of the service, with one hierarchy of control groups and with several.
_GROUPS: Final = ("sys/fs/cgroup", "sys/fs/cgroup/systemd")
_SERVICE: Final = "system.slice/nvidia-fabricmanager.service/cgroup.procs"
_MAX_PIDS: Final = 16


def version(driver: str, root: str = "/") -> Reading:
    """``driver``, the loaded driver's version, when the service's daemon runs; no data (not_found) when none runs."""
    if not any(_process_name(root, pid) == _NAME for pid in _pids(root)):
        return NoData(rd.NOT_FOUND, "no fabric manager runs as a service")
    return driver or NoData(rd.BLANK, "there is no driver to tell its version by")


def _pids(root: str) -> list[str]:
    for group in _GROUPS:
        try:
            with open(os.path.join(root, group, _SERVICE), encoding="ascii", errors="replace") as file:
                return [pid for pid in file.read(4096).split() if pid.isdigit()][:_MAX_PIDS]
        except OSError:
            continue
    return []


def _process_name(root: str, pid: str) -> str:
    try:
        with open(os.path.join(root, "proc", pid, "comm"), encoding="utf-8", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""
