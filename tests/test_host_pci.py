"""The PCI bus, slots, driver and clock as files below a root."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from stub_node import pci_device, put

from slurm_nvhc.model.snapshot import PciGpu
from slurm_nvhc.sense.host import clock, driver, pci


def test_gpus_are_display_controllers_of_nvidia(tmp_path: Path) -> None:
    root = str(tmp_path)
    pci_device(root, "0000:4b:00.0", "0x030200")
    pci_device(root, "0000:3b:00.0", "0x030000")
    pci_device(root, "10000:01:00.0", "0x030200")  # domains may have five digits
    pci_device(root, "0000:c1:00.0", "0x068000")  # an NVSwitch
    pci_device(root, "0000:4b:00.1", "0x040300")  # a GPU's audio function
    pci_device(root, "0000:03:00.0", "0x030000", vendor="0x1a03")  # the management controller's
    assert pci.gpus(root) == [PciGpu("0000:3b:00.0"), PciGpu("0000:4b:00.0"), PciGpu("10000:01:00.0")]


def test_a_gpu_whose_config_space_reads_all_ones_does_not_respond(tmp_path: Path) -> None:
    root = str(tmp_path)
    pci_device(root, "0000:4b:00.0", responds=False)
    pci_device(root, "0000:5b:00.0")
    os.unlink(tmp_path / "sys/bus/pci/devices/0000:5b:00.0/config")  # says nothing
    assert pci.gpus(root) == [PciGpu("0000:4b:00.0", False), PciGpu("0000:5b:00.0", True)]


@pytest.mark.parametrize(("bound", "listed"), [("nvidia", 1), ("vfio-pci", 0), ("", 1)])
def test_a_gpu_given_to_a_virtual_machine_is_not_the_engines(tmp_path: Path, bound: str, listed: int) -> None:
    root = str(tmp_path)
    pci_device(root, "0000:4b:00.0")
    if bound:
        os.symlink(f"../../../../bus/pci/drivers/{bound}", tmp_path / "sys/bus/pci/devices/0000:4b:00.0/driver")
    found = pci.gpus(root)
    assert found is not None
    assert len(found) == listed


def test_no_bus_is_unknown_and_an_empty_one_is_none(tmp_path: Path) -> None:
    assert pci.gpus(str(tmp_path)) is None
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    assert pci.gpus(str(tmp_path)) == []


def test_slots(tmp_path: Path) -> None:
    assert pci.slots(str(tmp_path)) == {}
    put(str(tmp_path), "sys/bus/pci/slots/21/address", "0000:4b:00\n")
    put(str(tmp_path), "sys/bus/pci/slots/0-1/address", "garbage\n")
    assert pci.slots(str(tmp_path)) == {"0000:4b:00.0": "21"}


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08  Sat May 24 07:30:57 UTC 2025", "575.57.08"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.90.07  Release Build  (dvs-builder@U16)", "550.90.07"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.65  Release Build", "580.65"),
        ("garbage", ""),
    ],
)
def test_the_drivers_version(tmp_path: Path, line: str, version: str) -> None:
    assert driver.version(str(tmp_path)) == ""
    put(str(tmp_path), "proc/driver/nvidia/version", line + "\nGCC version:  gcc version 12.3.0\n")
    assert driver.version(str(tmp_path)) == version


def test_the_clock(tmp_path: Path) -> None:
    before = time.time_ns()
    real = clock.read()
    assert before <= real.wall_ns <= time.time_ns()
    assert len(real.boot_id) == 36
    assert 0 < real.boot_ns <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    put(str(tmp_path), "proc/sys/kernel/random/boot_id", "abc\n")
    assert clock.read(str(tmp_path)).boot_id == "abc"
    assert clock.read(str(tmp_path / "none")).boot_id == ""
