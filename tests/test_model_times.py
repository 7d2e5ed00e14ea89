from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_nvhc.model import times


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("41m", 2460), ("41min", 2460), ("1h30m", 5400), ("1h 30m", 5400), ("500ms", 0.5), ("2d", 172800), ("1w", 604800),
     ("0s", 0), (" 1.5h ", 5400), (90, 90), (0, 0), (2.5, 2.5)],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert times.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", " ", "s", "5", "-5s", "5 parsecs", "5s!", "1e3s", "m5", "nan", True, False, -1, -0.1, float("nan"), float("inf"), 1e300]
)
def test_what_is_no_duration(text: str | float) -> None:
    with pytest.raises(ValueError, match="duration"):
        times.parse_duration(text)


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        assert times.parse_duration(text) >= 0
    except ValueError:
        pass


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.4, "0s"), (12, "12s"), (59.6, "1m"), (60, "1m"), (90, "1m30s"), (2460, "41m"), (2465, "41m"), (3600, "1h"),
     (5400, "1h30m"), (3660, "1h01m"), (86400, "1d"), (86400 * 2 + 3600 * 3, "2d3h"), (86399, "23h59m")],
)
def test_shortest_reading(seconds: float, text: str) -> None:
    assert times.duration(seconds) == text


@given(st.integers(0, 10**9))
def test_a_shown_duration_reads_back_about_the_same(seconds: int) -> None:
    assert times.parse_duration(times.duration(seconds)) == pytest.approx(seconds, abs=1, rel=0.1)


def test_iso() -> None:
    assert times.iso(1_796_098_285_999_999_999) == "2026-12-01T04:11:25Z"
    assert times.iso(0) == "1970-01-01T00:00:00Z"
    assert times.iso(10**40) == "?"
