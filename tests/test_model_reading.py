from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData

readings = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.builds(NoData, st.sampled_from(rd.NO_DATA_KINDS), st.text()),
)


@given(readings)
def test_through_json_and_back(value: rd.Reading) -> None:
    back = rd.from_json(json.loads(json.dumps(rd.to_json(value))))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "value",
    [None, [], [1], {}, {"no": "nope"}, {"no": None}, {"no": ["blank"]}, float("nan"), float("inf"), -float("inf"), object()],
)
def test_what_is_no_reading_is_no_data_never_a_number(value: Any) -> None:
    back = rd.from_json(value)
    assert isinstance(back, NoData)
    assert back.kind == rd.ERROR
    assert rd.number(back) is None


def test_a_flag_is_a_number() -> None:
    assert rd.from_json(True) == 1
    assert rd.from_json(False) == 0
    assert type(rd.from_json(True)) is int


@pytest.mark.parametrize(("value", "number"), [(0, 0), (7, 7), (2.5, 2.5), (-1, -1)])
def test_numbers(value: rd.Reading, number: float) -> None:
    assert rd.number(value) == number


@pytest.mark.parametrize("value", [None, "7", "", NoData("blank"), NoData("stale", "5"), True, float("nan"), float("inf"), -float("inf")])
def test_no_number(value: Any) -> None:
    assert rd.number(value) is None
