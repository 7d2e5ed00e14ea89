"""NVIDIA GPUs on the PCI bus, from sysfs alone: present without any driver or engine."""

from __future__ import annotations

import os
from typing import Final, Optional

from slurm_nvhc.model import entity
from slurm_nvhc.model.snapshot import PciGpu

NVIDIA: Final = "0x10de"
# Display controllers: VGA (0300) and 3D (0302). NVSwitches are bridges (0680).
_GPU_CLASSES: Final = ("0x0300", "0x0302")


def gpus(root: str = "/") -> Optional[list[PciGpu]]:
    """By address; None when there is no PCI bus to list (a container without /sys).

    Devices handed to a virtual machine (vfio-pci) are left out: no engine of this node
    can know them. A device without any driver is listed: that it lacks one is a fault
    that the engine can not tell.
    """
    folder = os.path.join(root, "sys/bus/pci/devices")
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return None
    out = []
    for name in names:
        device = os.path.join(folder, name)
        address = entity.pci(name)
        # vendor and class are what the kernel saw at enumeration: they stay when the device is gone.
        of_nvidia = address and _text(device, "vendor") == NVIDIA and _text(device, "class")[:6] in _GPU_CLASSES
        if of_nvidia and _driver(device) != "vfio-pci":
            out.append(PciGpu(address, _responds(device)))
    return out


def slots(root: str = "/") -> dict[str, str]:
    """PCI address -> name of the physical slot, as far as the firmware names them."""
    folder = os.path.join(root, "sys/bus/pci/slots")
    out = {}
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return {}
    for name in names:
        address = entity.pci(_text(os.path.join(folder, name), "address"))
        if address:
            out[address] = name
    return out


def _responds(device: str) -> bool:
    """False only when the device's own config space reads all ones. A read that fails says nothing."""
    try:
        with open(os.path.join(device, "config"), "rb", buffering=0) as file:
            return file.read(2) != b"\xff\xff"
    except OSError:
        return True


def _driver(device: str) -> str:
    try:
        return os.path.basename(os.readlink(os.path.join(device, "driver")))
    except OSError:
        return ""


def _text(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""
