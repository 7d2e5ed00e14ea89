"""The node's clocks and the identity of its boot."""

from __future__ import annotations

import os
import time

from slurm_nvhc.sense.reader.backend import Clock


def read(root: str = "/") -> Clock:
    """Wall clock, boot-time clock (it counts suspended time too) and boot id.

    boot_id is '' where the kernel does not tell it (no /proc): then no two reads are of
    one boot. root: the directory in which /proc is looked for.
    """
    try:
        with open(os.path.join(root, "proc/sys/kernel/random/boot_id"), encoding="ascii") as file:
            boot_id = file.read(64).strip()
    except (OSError, ValueError):
        boot_id = ""
    return Clock(time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME), boot_id)
