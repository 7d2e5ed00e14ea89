"""Is a value a reading at all?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.sense.values import FLOAT_BLANK, INT_BLANK, check, sentinel

REPLAY = cat.BY_NAME["pcie_replay"]
TEMP = cat.BY_NAME["gpu_temp"]
POWER = cat.BY_NAME["power_usage"]
STATE = cat.BY_NAME["nvlink_state"]
FABRIC = cat.BY_NAME["fabric_state"]
ACTION = cat.BY_NAME["recovery_action"]


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_sentinels_are_no_data_of_their_kind(step: int) -> None:
    kind = (rd.BLANK, rd.NOT_FOUND, rd.NOT_SUPPORTED, rd.NOT_PERMITTED)[step]
    assert sentinel(INT_BLANK + step) == NoData(kind)
    assert sentinel(FLOAT_BLANK + step) == NoData(kind)
    assert check(REPLAY, INT_BLANK + step) == (NoData(kind), "")
    assert check(POWER, FLOAT_BLANK + step) == (NoData(kind), "")


def test_the_rest_of_the_sentinel_range_and_texts() -> None:
    assert sentinel(2**63 - 1) == NoData(rd.BLANK)
    assert sentinel(float(INT_BLANK)) == NoData(rd.BLANK)
    assert sentinel("<<<NOT_SUPPORTED>>>") == NoData(rd.NOT_SUPPORTED)
    assert sentinel("<<<WHATEVER>>>") == NoData(rd.BLANK)
    for value in (0, 1, INT_BLANK - 1, FLOAT_BLANK - 1, FLOAT_BLANK + 4, "up", True, None):
        assert sentinel(value) is None, value


@pytest.mark.parametrize("value", [-1, 2**63, 2**70, -(2**70), float("nan"), float("inf"), "7", [1], None, True, 1.5, {"no": "lunch"}])
def test_what_a_counter_can_not_be(value: object) -> None:
    reading, lie = check(REPLAY, value)
    assert isinstance(reading, NoData)
    assert reading.kind == rd.ERROR
    assert lie


def test_what_it_can_be() -> None:
    assert check(REPLAY, 7) == (7, "")
    assert check(REPLAY, 7.0) == (7, "")
    assert check(TEMP, -5) == (-5, "")
    assert check(POWER, 71.2) == (71.2, "")
    assert check(POWER, -1)[1]
    assert check(REPLAY, {"no": "stale", "detail": "old\x1b"}) == (NoData(rd.STALE, "old"), "")


def test_link_states_are_the_known_words_only() -> None:
    assert check(STATE, "up") == ("up", "")
    assert check(STATE, "not_supported") == ("not_supported", "")
    assert check(STATE, "UP")[1]
    assert check(STATE, 3)[1]


def test_states_dcgm_stores_its_own_status_in() -> None:
    for field in (FABRIC, ACTION):
        reading, lie = check(field, -8)
        assert isinstance(reading, NoData)
        assert lie == ""
    assert isinstance(check(FABRIC, 9)[0], NoData)
    assert check(ACTION, 9) == (9, "")  # unknown and not zero: still asks for something


@given(st.sampled_from(cat.ALL), st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.dictionaries(st.text(), st.text())))
def test_a_reading_is_always_finite_and_never_a_sentinel(field: cat.Field, value: object) -> None:
    reading, _ = check(field, value)
    if isinstance(reading, (int, float)):
        assert rd.number(reading) is not None
        assert sentinel(reading) is None
        assert abs(reading) < 2**63
    elif field.unit == cat.WORD and isinstance(reading, str):
        assert reading
        assert reading.isprintable()
    else:
        assert isinstance(reading, NoData) or reading in cat.LINK_STATES
