"""The reply's parts beside GPUs: what can not be is told and is no reading."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.sense.decode import Reply, decode
from slurm_nvhc.sense.values import MAX_WORD, check

PORT = "switch:0000:c1:00.0/port5"
ASKED = ("port_state", "port_fatal", "rdma_state", "kernel_release", "pcie_replay")


def reply(part: str, parts: Any) -> Reply:
    return decode(json.dumps({"part": part, "parts": parts}) + "\n", ASKED)


def test_good_parts_and_what_lacks() -> None:
    found = reply("switches", {PORT: {"port_state": 2}, "switch:0000:c1:00.0": {}})
    missing = NoData(rd.BLANK, "not in the reply")
    assert (found.parts, found.lies) == ({PORT: {"port_state": 2, "port_fatal": missing}, "switch:0000:c1:00.0": {}}, ())
    host = reply("host", {"node": {"kernel_release": "6.8"}, "rdma:mlx5_0/port1": {"rdma_state": 4}})
    assert (host.parts, host.lies) == ({"node": {"kernel_release": "6.8"}, "rdma:mlx5_0/port1": {"rdma_state": 4}}, ())


def test_both_parts_add_up() -> None:
    lines = [{"part": "host", "parts": {"node": {}}}, {"part": "switches", "parts": {PORT: {}}}]
    assert set(decode("".join(json.dumps(line) + "\n" for line in lines), ()).parts) == {"node", PORT}


@pytest.mark.parametrize(
    ("part", "name"),
    [("host", PORT), ("switches", "node"), ("switches", "switch:c1:00.0"), ("switches", f"{PORT}/link1"), ("host", "rdma:mlx5_0"),
     ("host", "rdma:a b/port1"), ("host", "rdma:../port1"), ("host", f"rdma:{'x' * 65}/port1"), ("host", "rdma:mlx5_0/port1234"),
     ("host", "GPU-a"), ("host", "")],
)  # fmt: skip
def test_a_part_of_another_name_is_none(part: str, name: str) -> None:
    found = reply(part, {name: {}})
    assert found.parts == {}
    assert len(found.lies) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("port_state", -1.5), ("port_fatal", -3), ("port_fatal", "x"), ("port_fatal", 2**63), ("gpu_temp", 3), ("rdma_state", 4),
     ("port_remote", 7), ("port_remote", ""), ("port_remote", "\x00")],
)  # fmt: skip
def test_a_reading_that_can_not_be_is_told(field: str, value: Any) -> None:
    found = reply("switches", {PORT: {field: value}})
    assert len(found.lies) == 1
    assert isinstance(found.parts[PORT].get(field, NoData(rd.ERROR)), NoData)


@pytest.mark.parametrize("parts", [None, [], "x", 3])
def test_a_list_of_parts_that_is_none(parts: Any) -> None:
    found = reply("host", parts)
    assert (found.parts, found.lies) == ({}, ("a list of parts that is none",))


def test_words_are_cleaned_and_bounded() -> None:
    field = cat.BY_NAME["switch_firmware"]
    assert check(field, "96.10\n\x1b[31m55") == ("96.10 [31m55", "")
    assert check(field, "x" * 500) == ("x" * MAX_WORD, "")
    assert check(field, "<<<NOT_SUPPORTED>>>") == (NoData(rd.NOT_SUPPORTED), "")
