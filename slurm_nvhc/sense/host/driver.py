"""The NVIDIA kernel driver: its version, and when it was loaded."""

from __future__ import annotations

import os
import re
from typing import Optional, Sequence

from slurm_nvhc.sense.kernel_log import Line

# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08  …", "… Open Kernel Module for x86_64  575.57.08 …"
_VERSION = re.compile(r"NVRM version:.*?Kernel Module.*?\s(\d{3,4}\.\d+(?:\.\d+)*)\s")
# Logged once per load of the module, open and closed flavour.
_LOADING = re.compile(r"^NVRM: loading NVIDIA UNIX .*Kernel Module")


def version(root: str = "/") -> str:
    """'' when the driver is not loaded."""
    try:
        with open(os.path.join(root, "proc/driver/nvidia/version"), encoding="ascii", errors="replace") as file:
            found = _VERSION.search(file.read(1000))
    except OSError:
        return ""
    return found[1] if found else ""


def loaded_ns(lines: Sequence[Line]) -> Optional[int]:
    """Wall time of the last load in the kernel log, ns; None when its line is not there (any more).

    sysfs has no better witness: the times of /sys/module are those of the first look.
    """
    for line in reversed(lines):
        if _LOADING.match(line.text):
            return line.wall_ns
    return None
