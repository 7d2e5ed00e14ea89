"""Readings that the reader makes of what a DCGM field holds: items of masks, bit error rates, far ends of links."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.sense.dcgm import derive, topology
from slurm_nvhc.sense.dcgm.live import Sample, Table
from slurm_nvhc.sense.values import INT_BLANK, check

NOT_SUPPORTED = NoData(rd.NOT_SUPPORTED)
GPU0 = (1, 0)


def kind(reading: object) -> str:
    assert isinstance(reading, NoData)
    return reading.kind


def mask_of(*values: int) -> int:
    """From the lowest item on: four of two bits, one of four."""
    return values[0] | values[1] << 2 | values[2] << 4 | values[3] << 6 | values[4] << 8


def items(mask: object) -> dict[str, object]:
    table = Table({(*GPU0, 174): Sample(mask, 1, 0)})  # type: ignore[arg-type]
    return {f.name.removeprefix("fabric_"): derive.reading(table, GPU0, f) for f in cat.ALL if f.bits is not None}


def test_a_healthy_mask_is_not_zero_and_says_false_everywhere() -> None:
    found = items(mask_of(2, 2, 2, 2, 1))
    assert found == {"degraded_bandwidth": 0, "route_recovery": 0, "route_unhealthy": 0, "access_timeout_recovery": 0, "configuration": 1}


def test_each_item_of_the_mask_by_itself() -> None:
    names = ("degraded_bandwidth", "route_recovery", "route_unhealthy", "access_timeout_recovery")
    for bad, name in enumerate(names):
        found = items(mask_of(*(1 if n == bad else 2 for n in range(4)), 5))
        assert [n for n in names if found[n] == 1] == [name]
        assert found["configuration"] == 5
    assert cat.BY_NAME["fabric_configuration"].words[5] == "too few NVLinks"


def test_what_the_mask_does_not_tell_is_no_data() -> None:
    assert set(items(0).values()) == {NOT_SUPPORTED}  # as the captured engine had it
    assert kind(items(mask_of(3, 2, 2, 2, 1))["degraded_bandwidth"]) == rd.ERROR
    assert items(mask_of(3, 2, 2, 2, 1))["route_recovery"] == 0
    assert set(map(kind, items(INT_BLANK + 2).values())) == {rd.NOT_SUPPORTED}
    assert set(map(kind, items(INT_BLANK).values())) == {rd.BLANK}
    assert set(map(kind, items(-8).values())) == {rd.ERROR}  # DCGM's own status, stored as the value
    assert items(NoData(rd.STALE, "old"))["configuration"] == NoData(rd.STALE, "old")


@pytest.mark.parametrize(
    ("ratio", "packed", "meant"),
    [
        (1.5e-12, 0, 1.5e-12),  # the decoded field goes before the packed one
        (0.0, 3 << 8 | 9, 0.0),
        (15e-255, INT_BLANK, 0.0),  # the driver's "no errors", decoded
        (15e-238, INT_BLANK, 0.0),
        (NOT_SUPPORTED, 15 << 8 | 255, 0.0),  # and packed
        (NOT_SUPPORTED, 3 << 8 | 9, 3e-9),
        (NoData(rd.BLANK), 1 << 8 | 15, 1e-15),
        (140737488355330.0, 2 << 8 | 12, 2e-12),
        (NOT_SUPPORTED, 0, 0.0),
    ],
)
def test_bit_error_rates(ratio: object, packed: object, meant: float) -> None:
    found = derive.ber(ratio, packed)  # type: ignore[arg-type]
    assert found == pytest.approx(meant, rel=1e-9, abs=0)
    assert check(cat.BY_NAME["nvlink5_effective_ber"], found) == (found, "")


@pytest.mark.parametrize(
    ("ratio", "packed"),
    [
        (-1.0, 3 << 8 | 9),  # a value that can not be is not replaced by another one
        (1.5, 3 << 8 | 9),
        (float("nan"), 0),
        ("fine", 0),
        (NOT_SUPPORTED, -1),
        (NOT_SUPPORTED, 16 << 8 | 20),  # a bit beyond the mantissa
        (NOT_SUPPORTED, 2 << 8 | 0),  # two errors per bit
        (NOT_SUPPORTED, 0.5),
    ],
)
def test_a_rate_that_can_not_be_is_no_data(ratio: object, packed: object) -> None:
    assert kind(derive.ber(ratio, packed)) == rd.ERROR  # type: ignore[arg-type]


def test_a_rate_that_nobody_has_stays_what_it_was() -> None:
    assert derive.ber(NOT_SUPPORTED, INT_BLANK + 2) == NOT_SUPPORTED
    assert derive.ber(NoData(rd.BLANK, "why"), NOT_SUPPORTED) == NoData(rd.BLANK, "why")


@given(st.one_of(st.integers(), st.floats(), st.text()), st.one_of(st.integers(), st.floats(), st.text()))
def test_a_rate_is_a_share_or_no_data(ratio: object, packed: object) -> None:
    found = derive.ber(ratio, packed)  # type: ignore[arg-type]
    assert isinstance(found, NoData) or found is ratio or (isinstance(found, float) and 0 <= found <= 1)


def test_the_client_takes_no_rate_above_one() -> None:
    assert check(cat.BY_NAME["nvlink5_symbol_ber"], 1.01)[1]
    assert check(cat.BY_NAME["nvlink5_symbol_ber"], -1e-9)[1]
    assert check(cat.BY_NAME["nvlink5_symbol_ber"], 1e-12) == (1e-12, "")


def test_a_word_that_is_empty_is_blank() -> None:
    field = cat.BY_NAME["vbios"]
    assert kind(derive.reading(Table({(*GPU0, 85): Sample("", 1, 0)}), GPU0, field)) == rd.BLANK
    assert derive.reading(Table({(*GPU0, 85): Sample("96.00", 1, 0)}), GPU0, field) == "96.00"


def test_far_ends_name_the_link_only_where_there_is_one_between_the_two() -> None:
    uuids = {0: "GPU-a", 1: "GPU-b", 2: "GPU-c"}
    wires = {0: {1: [0, 3], 2: [5]}, 1: {0: [1, 2]}, 2: {0: [4]}}
    assert topology.far_ends(wires, uuids) == {
        0: {0: "GPU-b", 3: "GPU-b", 5: "GPU-c/link4"},
        1: {1: "GPU-a", 2: "GPU-a"},
        2: {4: "GPU-a/link5"},
    }


def test_links_that_lead_to_everybody_lead_to_a_switch() -> None:
    everybody = {0: {1: [0, 1], 2: [0, 1]}, 1: {0: [0, 1], 2: [0, 1]}, 2: {0: [0, 1], 1: [0, 1]}}
    assert topology.far_ends(everybody, {0: "GPU-a", 1: "GPU-b", 2: "GPU-c"}) == {}


def test_a_peer_without_a_name_is_not_guessed() -> None:
    assert topology.far_ends({0: {9: [0], 1: [2]}}, {0: "GPU-a", 1: "GPU-b"}) == {0: {2: "GPU-b"}}
