from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_nvhc.judge import stats


@pytest.mark.parametrize(
    ("mean", "count"), [(0.001, 3), (0.01, 4), (0.1, 6), (0.72, 10), (1, 12), (10, 34), (100, 163)]
)
def test_critical_counts_at_seven_in_a_billion(mean: float, count: int) -> None:
    """The level of 0.1 false alarms a day over 10,000 nodes x 144 links x 10 jobs."""
    assert stats.critical_count(mean, 0.1 / (10_000 * 144 * 10)) == count


def test_tail_by_the_definition() -> None:
    for mean in (0.3, 2.0, 9.5):
        for count in (1, 2, 5, 12):
            direct = 1 - math.fsum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(count))
            assert stats.poisson_tail(count, mean) == pytest.approx(direct, rel=1e-9, abs=1e-14)
    assert stats.poisson_tail(3, 0.001) == pytest.approx(0.001**3 / 6, rel=1e-3)
    assert (stats.poisson_tail(0, 5), stats.poisson_tail(2, 0), stats.poisson_tail(5, 1e6)) == (1.0, 0.0, 1.0)


@given(st.integers(0, 500), st.floats(0, 400))
def test_tail_falls_with_the_count_and_rises_with_the_mean(count: int, mean: float) -> None:
    tail = stats.poisson_tail(count, mean)
    assert 0 <= stats.poisson_tail(count + 1, mean) <= tail + 1e-12 <= 1 + 1e-12
    assert stats.poisson_tail(count, mean * 1.1 + 0.1) >= tail - 1e-12


def test_power_of_the_published_link() -> None:
    """8.6 recoveries an hour against a null of 0.001 an hour, three or more: found in an hour-long job (marin #9086)."""
    assert stats.critical_count(0.001, 7e-9) == 3
    assert stats.poisson_tail(3, 8.6) > 0.99
    assert stats.poisson_tail(3, 8.6 * 21 / 60) == pytest.approx(0.58, abs=0.01)


def test_binomial_tail() -> None:
    assert stats.binomial_tail(1, 10, 0.5) == pytest.approx(1 - 0.5**10)
    assert stats.binomial_tail(5, 5, 1 / 144) == pytest.approx((1 / 144) ** 5)
    assert (stats.binomial_tail(0, 3, 0.1), stats.binomial_tail(4, 3, 0.1), stats.binomial_tail(1, 3, 1)) == (1.0, 0.0, 1.0)


def test_rate_bounds() -> None:
    lower, upper = stats.rate_bounds(0, 10.0)
    assert (lower, upper) == (0.0, pytest.approx(-math.log(0.025) / 10))
    lower, upper = stats.rate_bounds(5, 1.0)
    assert (lower, upper) == (pytest.approx(1.623, abs=1e-3), pytest.approx(11.668, abs=1e-3))


def test_cusum() -> None:
    k = (0.5 - 0.02) / math.log(25)
    assert k == pytest.approx(0.149, abs=1e-3)
    assert stats.cusum(0.0, 0, 100, 0.02, 0.5) == 0.0
    assert stats.cusum(1.0, 3, 2, 0.02, 0.5) == pytest.approx(4 - 2 * k)
