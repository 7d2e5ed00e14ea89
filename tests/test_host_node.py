"""The node's own words: kernel, driver, fabric manager."""

from __future__ import annotations

from pathlib import Path

import pytest
from stub_node import process, put

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.sense.host import node

NAMES = [f.name for f in cat.ALL if f.scope == cat.NODE]
DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08  Sat\nGCC version: 12\n"
SERVICE = "system.slice/nvidia-fabricmanager.service/cgroup.procs"


@pytest.fixture
def root(tmp_path: Path) -> str:
    put(str(tmp_path), "proc/sys/kernel/osrelease", "5.15.0-119-generic\n")
    put(str(tmp_path), "proc/driver/nvidia/version", DRIVER)
    process(str(tmp_path), 900, "nv-fabricmanage", [])
    return str(tmp_path)


@pytest.mark.parametrize("group", ["sys/fs/cgroup", "sys/fs/cgroup/systemd"])
def test_all_of_it(root: str, group: str) -> None:
    put(root, f"{group}/{SERVICE}", "899\n900\n")
    assert node.readings(NAMES, root) == {
        "kernel_release": "5.15.0-119-generic", "nvidia_driver": "575.57.08", "fabric_manager": "575.57.08",
    }  # fmt: skip


def test_only_what_is_asked_for(root: str) -> None:
    assert node.readings(["kernel_release", "pcie_replay"], root) == {"kernel_release": "5.15.0-119-generic"}


@pytest.mark.parametrize("pids", [None, "", "1\n", "900x\n../900\n"])
def test_a_service_that_does_not_run(root: str, pids: str | None) -> None:
    process(root, 1, "systemd", [])
    if pids is not None:
        put(root, f"sys/fs/cgroup/{SERVICE}", pids)
    value = node.readings(NAMES, root)["fabric_manager"]
    assert isinstance(value, NoData)
    assert value.kind == rd.NOT_FOUND


def test_nothing_there_is_no_data(tmp_path: Path) -> None:
    values = node.readings(NAMES, str(tmp_path))
    assert {name: v.kind for name, v in values.items() if isinstance(v, NoData)} == {
        "kernel_release": rd.ERROR, "nvidia_driver": rd.NOT_FOUND, "fabric_manager": rd.NOT_FOUND,
    }  # fmt: skip


def test_a_fabric_manager_beside_no_driver(root: str) -> None:
    put(root, "proc/driver/nvidia/version", "\n")
    put(root, f"sys/fs/cgroup/{SERVICE}", "900\n")
    values = node.readings(NAMES, root)
    assert [v.kind for n, v in values.items() if isinstance(v, NoData) and n != "kernel_release"] == [rd.NOT_FOUND, rd.BLANK]
