"""Compute processes from files as /proc has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stub_node import process, put

from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.sense.host.processes import computing

UVM = "/dev/nvidia-uvm"


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "proc").mkdir()
    return str(tmp_path)


def test_a_process_counts_once_on_each_gpu_that_it_holds(root: str) -> None:
    process(root, 100, "python3", ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia0", "/dev/nvidia12", UVM, "/dev/null"])
    process(root, 101, "python3", ["/dev/nvidia12", UVM])
    process(root, 102, "bash", ["/dev/null"])
    process(root, 103, "kworker", [])
    assert computing(root) == {0: 1, 12: 2}


@pytest.mark.parametrize(
    "files", [["/dev/nvidia0", "/dev/nvidiactl"], [UVM], ["/dev/nvidia0", "/dev/nvidia-uvm-tools"], ["/tmp/dev/nvidia0", UVM]]
)
def test_what_does_not_compute_is_not_counted(root: str, files: list[str]) -> None:
    process(root, 100, "Xorg", files)
    assert computing(root) == {}


@pytest.mark.parametrize("name", ["nv-hostengine", "nvidia-persiste", "nv-fabricmanage", "dcgm-exporter", "nvidia-smi"])
def test_the_drivers_own_daemons_are_not_counted(root: str, name: str) -> None:
    assert len(name) <= 15  # as the kernel cuts it
    process(root, 100, name, ["/dev/nvidia0", UVM])
    process(root, 101, "python3", ["/dev/nvidia0", UVM])
    assert computing(root) == {0: 1}


@pytest.mark.parametrize(("references", "counted"), [("0", {}), ("2", {0: 1}), ("-", {0: 1})])
def test_when_nobody_has_unified_memory_open_nobody_is_looked_at(root: str, references: str, counted: dict[int, int]) -> None:
    process(root, 100, "python3", ["/dev/nvidia0", UVM])
    put(root, "sys/module/nvidia_uvm/refcnt", references + "\n")
    assert computing(root) == counted


def test_a_module_that_is_not_loaded_has_no_users(root: str) -> None:
    process(root, 100, "python3", ["/dev/nvidia0", UVM])
    put(root, "sys/module/ext4/refcnt", "1\n")
    assert computing(root) == {}


def test_one_process_that_may_not_be_looked_at_makes_all_unknown(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process(root, 100, "python3", ["/dev/nvidia0", UVM])
    process(root, 101, "python3", ["/dev/nvidia0", UVM])
    listdir = os.listdir

    def forbidden(path: str) -> list[str]:
        if path.endswith("101/fd"):
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", forbidden)
    value = computing(root)
    assert isinstance(value, NoData)
    assert value.kind == rd.NOT_PERMITTED


def test_a_process_that_ends_meanwhile_is_passed_over(root: str) -> None:
    put(root, "proc/100/comm", "python3\n")  # its descriptors are gone already
    process(root, 101, "python3", ["/dev/nvidia1", UVM])
    assert computing(root) == {1: 1}


def test_it_gives_up_when_it_takes_too_long(root: str) -> None:
    for pid in range(100, 110):
        process(root, pid, "python3", ["/dev/nvidia0", UVM])
    moments = iter(range(100))
    value = computing(root, 5.0, lambda: float(next(moments)))
    assert isinstance(value, NoData)
    assert (value.kind, "10 processes" in value.detail) == (rd.BLANK, True)


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    value = computing(str(tmp_path))
    assert isinstance(value, NoData)
    assert value.kind == rd.ERROR
