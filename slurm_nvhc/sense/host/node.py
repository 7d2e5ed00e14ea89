"""What the kernel knows of the node as a whole, as readings."""

from __future__ import annotations

import os
from typing import Collection

from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.sense.host import driver, fabric_manager


def readings(fields: Collection[str], root: str = "/") -> dict[str, Reading]:
    """Those asked for of kernel_release, nvidia_driver and fabric_manager."""
    loaded = driver.version(root)
    out: dict[str, Reading] = {}
    if "kernel_release" in fields:
        out["kernel_release"] = _kernel_release(root)
    if "nvidia_driver" in fields:
        out["nvidia_driver"] = loaded or NoData(rd.NOT_FOUND, "the driver is not loaded")
    if "fabric_manager" in fields:
        out["fabric_manager"] = fabric_manager.version(loaded, root)
    return out


def _kernel_release(root: str) -> Reading:
    try:
        with open(os.path.join(root, "proc/sys/kernel/osrelease"), encoding="ascii", errors="replace") as file:
            text = file.read(128).strip()
    except OSError as exc:
        return NoData(rd.ERROR, exc.strerror or "can not be read")
    return text or NoData(rd.BLANK, "the kernel gives none")
