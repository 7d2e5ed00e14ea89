"""RDMA ports from files as sysfs has them; devices that lack counters, lie, or do not answer."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from stub_node import RDMA_FILES, StubNode, put, rdma_port

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.sense.host import rdma

PORT = "rdma:mlx5_0/port1"
HEALTHY: dict[str, Reading] = {
    **{name: 0 for name in rdma.NAMES},
    "rdma_state": 4,
    "rdma_phys_state": 5,
    "rdma_link_layer": 1,
    "rdma_rate": 400.0,
}


@pytest.fixture
def root(tmp_path: Path) -> str:
    rdma_port(str(tmp_path), "mlx5_0", 1, HEALTHY)
    return str(tmp_path)


def file(root: str, name: str, text: str, port: int = 1) -> None:
    put(root, f"sys/class/infiniband/mlx5_0/ports/{port}/{name}", text)


def read(root: str, *names: str) -> dict[str, dict[str, Reading]]:
    found, silent = rdma.ports(names or rdma.NAMES, root)
    assert silent == []
    return found


def test_the_catalogue_and_the_reader_name_the_same_fields() -> None:
    assert set(rdma.NAMES) == {f.name for f in cat.ALL if f.scope == cat.RDMA}
    assert set(RDMA_FILES) == set(rdma.NAMES)


def test_a_port_that_is_well(root: str) -> None:
    assert read(root) == {PORT: HEALTHY}


def test_only_what_is_asked_for(root: str) -> None:
    assert read(root, "rdma_state", "pcie_replay") == {PORT: {"rdma_state": 4}}


def test_no_device_is_no_port(tmp_path: Path) -> None:
    assert rdma.ports(rdma.NAMES, str(tmp_path)) == ({}, [])


def test_every_port_of_every_device(root: str) -> None:
    rdma_port(root, "mlx5_0", 2, HEALTHY)
    rdma_port(root, "rocep1s0f0", 1, {**HEALTHY, "rdma_link_layer": 2})
    put(root, "sys/class/infiniband/mlx5_0/ports/stray/state", "4: ACTIVE")
    assert list(read(root)) == [PORT, "rdma:mlx5_0/port2", "rdma:rocep1s0f0/port1"]


@pytest.mark.parametrize("text", ["1: DOWN", "2: INIT", "3: ARMED", "4: ACTIVE", "5: ACTIVE_DEFER"])
def test_states_are_the_kernels_numbers(root: str, text: str) -> None:
    file(root, "state", text + "\n")
    state = read(root)[PORT]["rdma_state"]
    assert cat.RDMA_STATES[int(text[0])] == text[3:].lower()
    assert state == int(text[0])


@pytest.mark.parametrize(
    ("text", "rate"), [("400 Gb/sec (4X NDR)", 400.0), ("2.5 Gb/sec (1X SDR)", 2.5), ("100 Gb/sec (4X EDR)", 100.0)]
)
def test_rates(root: str, text: str, rate: float) -> None:
    file(root, "rate", text + "\n")
    assert read(root)[PORT]["rdma_rate"] == rate


def test_data_is_counted_in_words_of_four_bytes(root: str) -> None:
    file(root, "counters/port_xmit_data", "1000\n")
    file(root, "counters/port_rcv_data", f"{2**40}\n")
    assert (read(root)[PORT]["rdma_xmit_bytes"], read(root)[PORT]["rdma_rcv_bytes"]) == (4000, 4 * 2**40)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("rdma_link_downed", 8), ("rdma_link_recovery", 8), ("rdma_symbol_errors", 16), ("rdma_rcv_errors", 16),
     ("rdma_rcv_remote_physical_errors", 16), ("rdma_xmit_discards", 16),
     ("rdma_local_link_integrity_errors", 4), ("rdma_buffer_overrun_errors", 4)],
)  # fmt: skip
def test_a_counter_at_its_ceiling_says_nothing_more(root: str, name: str, bits: int) -> None:
    ceiling = 2**bits - 1
    for count in (ceiling - 1, ceiling + 1):  # a device with wider counters goes on
        file(root, RDMA_FILES[name], f"{count}\n")
        assert read(root)[PORT][name] == count
    file(root, RDMA_FILES[name], f"{ceiling}\n")
    value = read(root)[PORT][name]
    assert isinstance(value, NoData)
    assert (value.kind, str(ceiling) in value.detail) == (rd.ERROR, True)


def test_hw_counters_stand_in_where_there_are_no_port_counters(root: str) -> None:
    folder = os.path.join(root, "sys/class/infiniband/mlx5_0/ports/1")
    for name in os.listdir(os.path.join(folder, "counters")):
        os.unlink(os.path.join(folder, "counters", name))
    file(root, "hw_counters/tx_bytes", "77\n")
    file(root, "hw_counters/rx_bytes", "88\n")
    readings = read(root)[PORT]
    assert (readings["rdma_xmit_bytes"], readings["rdma_rcv_bytes"]) == (77, 88)
    assert readings["rdma_symbol_errors"] == NoData(rd.NOT_SUPPORTED, "the device has no such counter")


def test_an_ethernet_port_counts_its_carrier(root: str) -> None:
    file(root, "link_layer", "Ethernet\n")
    file(root, "counters/link_downed", "0\n")
    assert read(root)[PORT]["rdma_link_downed"] == 0  # nobody names its interface
    file(root, "gid_attrs/ndevs/0", "ens1np0\n")
    put(root, "sys/class/net/ens1np0/carrier_down_count", "6\n")
    readings = read(root)[PORT]
    assert (readings["rdma_link_layer"], readings["rdma_link_downed"]) == (2, 6)
    # InfiniBand has an interface too (IPoIB), whose carrier is another thing
    file(root, "link_layer", "InfiniBand\n")
    assert read(root)[PORT]["rdma_link_downed"] == 0


def test_an_interface_is_looked_for_among_interfaces_only(root: str) -> None:
    file(root, "link_layer", "Ethernet\n")
    file(root, "gid_attrs/ndevs/0", "../../../etc\n")
    put(root, "sys/class/net/lo/carrier_down_count", "0\n")
    put(root, "etc/carrier_down_count", "6\n")
    assert read(root)[PORT]["rdma_link_downed"] == 0


@pytest.mark.parametrize("text", ["", "\n", "-1\n", "0x10\n", "1e3\n", "12 13\n", "9" * 40, "\xff\xfe"])
def test_nonsense_is_no_data(root: str, text: str) -> None:
    for name in ("state", "rate", "link_layer", "counters/symbol_error"):
        file(root, name, text)
    readings = read(root)[PORT]
    for name in ("rdma_state", "rdma_rate", "rdma_link_layer", "rdma_symbol_errors"):
        assert isinstance(readings[name], NoData), name
    assert readings["rdma_rcv_errors"] == 0  # the others are as they were


def test_a_file_that_can_not_be_read_costs_itself(root: str) -> None:
    def text(path: str) -> str:
        if path.endswith("symbol_error"):
            raise OSError(5, "Input/output error")
        with open(path, encoding="ascii") as f:
            return f.read()

    found, silent = rdma.ports(rdma.NAMES, root, read_file=text)
    assert silent == []
    assert found[PORT]["rdma_symbol_errors"] == NoData(rd.ERROR, "Input/output error")
    assert found[PORT]["rdma_state"] == 4


def test_a_device_that_does_not_answer_costs_only_itself(root: str) -> None:
    """Its thread is stuck in a read for as long as the test lasts; the other device's has come to its end before."""
    rdma_port(root, "mlx5_1", 1, HEALTHY)
    answers, finished = threading.Event(), threading.Event()

    def text(path: str) -> str:
        if "mlx5_0" in path and path.endswith("phys_state"):
            finished.wait()
            answers.wait()
        with open(path, encoding="ascii") as f:
            content = f.read()
        if "mlx5_1" in path and path.endswith("port_rcv_data"):  # its last
            finished.set()
        return content

    try:
        found, silent = rdma.ports(rdma.NAMES, root, patience_s=0.2, read_file=text)
    finally:
        answers.set()
        finished.set()
    assert silent == ["mlx5_0"]
    assert found["rdma:mlx5_1/port1"]["rdma_state"] == 4
    assert found[PORT]["rdma_state"] == 4  # was answered before
    assert found[PORT]["rdma_phys_state"] == NoData(rd.ERROR, "no answer within 0.2 s")
    assert found[PORT]["rdma_rcv_bytes"] == NoData(rd.ERROR, "no answer within 0.2 s")


def test_a_hook_reads_its_gpus_beside_a_device_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a pipe that nobody writes to blocks as a driver does; the reader leaves without its thread."""
    node = StubNode(str(tmp_path), monkeypatch)
    state = os.path.join(node.root, "sys/class/infiniband/mlx5_3/ports/1/state")
    os.unlink(state)
    os.mkfifo(state)
    s = node.read()
    assert [(t.code, t.part) for t in s.troubles] == [("MON-HOST", "host")]
    assert "mlx5_3" in s.troubles[0].detail
    assert len(s.gpus or {}) == 8
    assert s.parts["rdma:mlx5_2/port1"]["rdma_state"] == 4
    assert isinstance(s.parts["rdma:mlx5_3/port1"]["rdma_state"], NoData)
