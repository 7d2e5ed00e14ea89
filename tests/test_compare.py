from __future__ import annotations

import itertools
from typing import Any

import pytest
from build import DAY_NS, T0, gpu, later, snapshot, uuid, with_link
from hypothesis import given
from hypothesis import strategies as st

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.compare import compare, window_seconds
from slurm_nvhc.model import change as ch
from slurm_nvhc.model.reading import BLANK, NO_DATA_KINDS, NOT_SUPPORTED, NoData


def change(before: Any, after: Any, field: str, entity: str | None = None):
    found = [c for c in compare(before, after) if c.field == field and c.entity == (entity or uuid(0))]
    assert len(found) == 1
    return found[0]


def test_growth_is_exact_and_has_the_windows_length():
    before = snapshot(gpu(0, nvlink_replay_total=12))
    after = later(before, 2460, gpu(0, nvlink_replay_total=13))
    got = change(before, after, "nvlink_replay_total")
    assert (got.kind, got.amount, got.seconds) == (ch.EXACT, 1, 2460)


def test_links_are_compared_one_by_one():
    before = snapshot(gpu(0))
    after = later(before, 60, with_link(gpu(0), 1, nvlink_replay=7))
    assert change(before, after, "nvlink_replay", f"{uuid(0)}/link1").amount == 7
    assert change(before, after, "nvlink_replay", f"{uuid(0)}/link0").amount == 0


@pytest.mark.parametrize(("before", "after", "least"), [(5000, 0, 0), (5000, 4, 4)])
def test_a_counter_that_went_back_gives_a_lower_bound(before, after, least):
    one = snapshot(gpu(0, nvlink_replay_total=before))
    got = change(one, later(one, 60, gpu(0, nvlink_replay_total=after)), "nvlink_replay_total")
    assert (got.kind, got.amount) == (ch.AT_LEAST, least)


def test_reset_of_one_counter_makes_the_others_of_that_gpu_lower_bounds():
    one = snapshot(gpu(0, nvlink_replay_total=5000, ecc_dbe_volatile=2), gpu(1, ecc_dbe_volatile=2))
    two = later(one, 60, gpu(0, nvlink_replay_total=0, ecc_dbe_volatile=4), gpu(1, ecc_dbe_volatile=4))
    assert change(one, two, "ecc_dbe_volatile")[4:6] == (ch.AT_LEAST, 2)
    assert change(one, two, "ecc_dbe_volatile", uuid(1))[4:6] == (ch.EXACT, 2)


def test_reboot_clears_even_when_the_counter_has_passed_its_old_value():
    one = snapshot(gpu(0, nvlink_replay_total=3))
    two = snapshot(gpu(0, nvlink_replay_total=10), at_ns=T0 + DAY_NS, boot="boot-2", uptime_s=60)
    got = change(one, two, "nvlink_replay_total")
    assert (got.kind, got.amount, got.why) == (ch.AT_LEAST, 10, "node rebooted")
    assert got.seconds == 86400


def test_driver_reload_clears_volatile_counters_but_not_lifetime_ones():
    one = snapshot(gpu(0, ecc_dbe_volatile=3, remapped_rows_uncorrectable=3), driver_loaded_ns=T0 - DAY_NS)
    two = later(one, 60, gpu(0, ecc_dbe_volatile=5, remapped_rows_uncorrectable=5), driver_loaded_ns=T0 + 10)
    assert change(one, two, "ecc_dbe_volatile")[4:6] == (ch.AT_LEAST, 5)
    assert change(one, two, "remapped_rows_uncorrectable")[4:6] == (ch.EXACT, 2)


def test_a_driver_load_that_moves_by_a_clock_correction_is_the_same_load():
    one = snapshot(gpu(0, ecc_dbe_volatile=3), driver_loaded_ns=T0 - DAY_NS)
    two = later(one, 60, gpu(0, ecc_dbe_volatile=3), driver_loaded_ns=T0 - DAY_NS + 551)
    assert change(one, two, "ecc_dbe_volatile")[4:6] == (ch.EXACT, 0)


def test_counters_that_nothing_clears_or_that_may_fall_are_unknown_when_lower():
    one = snapshot(gpu(0, ecc_dbe_aggregate=9, remapped_rows_correctable=4))
    two = later(one, 60, gpu(0, ecc_dbe_aggregate=8, remapped_rows_correctable=3))
    for field in ("ecc_dbe_aggregate", "remapped_rows_correctable"):
        assert change(one, two, field)[4:6] == (ch.UNKNOWN, None)


@pytest.mark.parametrize("kind", NO_DATA_KINDS)
@pytest.mark.parametrize("side", ["before", "after"])
def test_no_data_on_a_side_is_unknown_not_zero(kind, side):
    values = {"before": 5, "after": 5, side: NoData(kind)}
    one = snapshot(gpu(0, nvlink_replay_total=values["before"]))
    got = change(one, later(one, 60, gpu(0, nvlink_replay_total=values["after"])), "nvlink_replay_total")
    assert (got.kind, got.amount) == (ch.UNKNOWN, None)
    assert kind.replace("_", " ") in got.why


def test_new_gpu_is_unknown_and_a_missing_gpu_is_not_computed_with():
    one = snapshot(gpu(0), gpu(1))
    two = later(one, 60, gpu(0), gpu(2, nvlink_replay_total=500))
    got = change(one, two, "nvlink_replay_total", uuid(2))
    assert (got.kind, got.why) == (ch.UNKNOWN, "it was not seen before")
    assert not [c for c in compare(one, two) if c.entity == uuid(1)]


def test_only_the_asked_gpus():
    one = snapshot(gpu(0), gpu(1))
    assert {c.entity.split("/")[0] for c in compare(one, later(one, 1), {uuid(1)})} == {uuid(1)}


def test_a_clock_that_went_back_gives_a_window_of_zero():
    one = snapshot(gpu(0))
    assert window_seconds(one, later(one, -50)) == 0
    assert window_seconds(one, later(one, -50, boot_id="other")) == 0


def test_states_are_reported_when_they_differ():
    one = snapshot(gpu(0))
    two = later(one, 60, with_link(gpu(0), 1, nvlink_state="down"))
    assert change(one, two, "nvlink_state", f"{uuid(0)}/link1")[2:4] == ("up", "down")
    assert not [c for c in compare(one, two) if c.field == "nvlink_state" and c.entity.endswith("link0")]


readings = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(["up", "down", "", "x" * 500]),
    st.sampled_from([NoData(k) for k in NO_DATA_KINDS]),
)
gpu_readings = st.dictionaries(st.sampled_from([f.name for f in cat.ALL if f.scope == cat.GPU]), readings, max_size=6)


@given(st.lists(st.dictionaries(st.integers(0, 3), gpu_readings, max_size=4), min_size=2, max_size=4), st.integers(-100, 10**6))
def test_no_sequence_crashes_or_gives_a_negative_amount(steps, seconds):
    snaps = []
    for i, gpus in enumerate(steps):
        base = snapshot(*(gpu(n)._replace(readings=r) for n, r in gpus.items()))
        snaps.append(later(base, seconds * i))
    for one, two in itertools.pairwise(snaps):
        for got in compare(one, two):
            assert got.amount is None or got.amount >= 0
            assert got.seconds >= 0
            if isinstance(got.before, NoData) or isinstance(got.after, NoData):
                assert got.amount is None


def test_not_supported_stays_distinguishable():
    one = snapshot(gpu(0, row_remap_failure=NoData(NOT_SUPPORTED), nvlink_replay_total=NoData(BLANK)))
    assert one.gpus[uuid(0)].readings["row_remap_failure"].kind == NOT_SUPPORTED
