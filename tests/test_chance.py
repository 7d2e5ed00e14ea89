"""Exact figures of chance, against sums in whole numbers, published figures and simulation."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_nvhc.judge import chance

FLEET = 7e-9  # 0.1 false alarms a day in 14.4 million tests: 10,000 nodes of 144 links, ten jobs a day


def exact_tail(count: int, mean: Fraction) -> Fraction:
    """P(X >= count) by exact summation; exp(-mean) from its series to 60 digits."""
    reciprocal, term = Fraction(0), Fraction(1)
    for i in range(1, 400):
        reciprocal += term
        term = term * mean / i
    below, term = Fraction(0), Fraction(1)
    for i in range(count):
        below += term
        term = term * mean / (i + 1)
    return 1 - below / reciprocal


@pytest.mark.parametrize("mean", [Fraction(1, 1000), Fraction(1, 10), Fraction(72, 100), Fraction(5), Fraction(40)])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 10, 35, 60])
def test_the_tail_is_exact(mean: Fraction, count: int) -> None:
    assert chance.tail(count, float(mean)) == pytest.approx(float(exact_tail(count, mean)), rel=1e-11)


def test_the_tail_keeps_its_precision_down_to_the_smallest_numbers() -> None:
    assert chance.tail(87, 1e-2) == pytest.approx(float(exact_tail(87, Fraction(1, 100))), rel=1e-11)
    assert 0 < chance.tail(87, 1e-2) < 1e-300
    assert chance.tail(1000, 1e-9) == 0.0


def test_the_tail_of_a_large_mean() -> None:
    """Against the saddle point formula with its own, small error terms (Lugannani and Rice), good to 1e-3 here."""
    for mean in (1e4, 1e6, 1e7):
        for sigmas in (2.0, 6.0, 12.0):
            count = math.ceil(mean + sigmas * math.sqrt(mean))
            x = count - 0.5
            deviance = 2 * (x * math.log(x / mean) - x + mean)
            r, q = math.sqrt(deviance), 2 * math.sinh(math.log(x / mean) / 2) * math.sqrt(x)
            density = math.exp(-r * r / 2) / math.sqrt(2 * math.pi)
            expected = math.erfc(r / math.sqrt(2)) / 2 + density * (1 / q - 1 / r)
            assert chance.tail(count, mean) == pytest.approx(expected, rel=3e-3)


def test_the_tail_at_the_edges() -> None:
    assert chance.tail(0, 0.0) == chance.tail(0, 5.0) == chance.tail(-1, 5.0) == 1.0
    assert chance.tail(1, 0.0) == 0.0
    assert chance.tail(2.1, 5.0) == chance.tail(3, 5.0)  # no count lies between


@given(st.floats(1e-9, 1e4), st.integers(0, 2000), st.floats(1.0, 10.0))
def test_more_errors_are_less_likely_and_a_higher_rate_makes_them_likelier(mean: float, count: int, factor: float) -> None:
    assert 0 <= chance.tail(count + 1, mean) <= chance.tail(count, mean) <= 1
    assert chance.tail(count, mean) <= chance.tail(count, mean * factor) * (1 + 1e-9)


# The figures that the design rests on


@pytest.mark.parametrize(("mean", "count"), [(0.001, 3), (0.01, 4), (0.1, 6), (0.72, 10), (1, 12), (10, 34), (100, 163)])
def test_critical_counts(mean: float, count: int) -> None:
    assert chance.critical(mean, FLEET) == count


@given(st.floats(1e-6, 1e3), st.floats(1e-12, 0.9))
def test_the_critical_count_is_the_smallest(mean: float, alpha: float) -> None:
    count = chance.critical(mean, alpha)
    assert chance.tail(count, mean) <= alpha < chance.tail(count - 1, mean)


def test_what_a_job_of_some_hours_can_tell() -> None:
    assert chance.tail(chance.critical(0.72, FLEET), 7.2) == pytest.approx(0.19, abs=0.005)  # ten times the normal rate, for one hour
    assert chance.tail(chance.critical(4 * 0.72, FLEET), 4 * 7.2) == pytest.approx(0.987, abs=0.0005)
    assert chance.tail(3, 8.6) == pytest.approx(0.991, abs=0.0005)  # the link that recovered 8.6 times an hour
    assert chance.tail(3, 8.6 * 21 / 60) == pytest.approx(0.58, abs=0.005)


# A window against the past


@pytest.mark.parametrize(("count", "total", "share"), [(3, 3, 0.1), (5, 12, 0.25), (40, 50, 0.5), (1, 9, 0.01), (20, 30, 0.9), (0, 4, 0.5)])
def test_a_share_of_errors_is_exact(count: int, total: int, share: float) -> None:
    p = Fraction(share)
    exact = sum(math.comb(total, i) * p**i * (1 - p) ** (total - i) for i in range(count, total + 1))
    assert chance.share_tail(count, total, share) == pytest.approx(float(exact), rel=1e-11)


def test_a_share_of_many_errors() -> None:
    """A hundred million errors before, half a million in a window of half a percent of the time: about one half."""
    assert chance.share_tail(500_000, 100_000_000, 0.005) == pytest.approx(0.5, abs=0.001)
    assert chance.share_tail(510_000, 100_000_000, 0.005) < 1e-40
    assert (chance.share_tail(1, 1, 1.0), chance.share_tail(5, 4, 0.5), chance.share_tail(1, 4, 0.0)) == (1.0, 0.0, 0.0)


# Confidence


@pytest.mark.parametrize(
    ("count", "confidence", "mean"),
    # Garwood's table; half of the chi-square quantile with 2 (count + 1) degrees of freedom
    [(0, 0.975, 3.6889), (1, 0.975, 5.5716), (5, 0.975, 11.6683), (10, 0.975, 18.3904), (0, 0.99, 4.6052), (10, 0.95, 16.9622)],
)
def test_the_upper_bound_of_a_count(count: int, confidence: float, mean: float) -> None:
    assert chance.upper_mean(count, confidence) == pytest.approx(mean, abs=1e-4)


@given(st.integers(0, 10**7), st.sampled_from([0.9, 0.99, 0.999]))
def test_the_upper_bound_is_what_the_count_just_does_not_rule_out(count: int, confidence: float) -> None:
    mean = chance.upper_mean(count, confidence)
    assert mean > count
    assert 1 - chance.tail(count + 1, mean) == pytest.approx(1 - confidence, rel=1e-4)


# CUSUM


def simulated_false_alarms(normal: float, faulty: float, limit: float, errors: int, seed: int) -> float:
    """False alarms per time of a counter of the normal rate, after each of which the sum starts anew."""
    chances = random.Random(seed)
    k = chance.allowance(normal, faulty)
    total = time = alarms = 0.0
    for _ in range(errors):
        wait = chances.expovariate(normal)
        time += wait
        total = max(0.0, total - k * wait) + 1
        if total >= limit:
            alarms, total = alarms + 1, 0.0
    return alarms / time


@pytest.mark.parametrize(
    ("normal", "faulty", "limit"), [(1.0, 4.0, 3.0), (1.0, 4.0, 4.7), (1.0, 2.0, 6.0), (0.02, 0.5, 2.0), (1.0, 30.0, 1.5)]
)
def test_false_alarms_of_the_sum_are_bounded_and_the_bound_is_near(normal: float, faulty: float, limit: float) -> None:
    seen = simulated_false_alarms(normal, faulty, limit, 400_000, seed=7)
    bound = chance.false_alarms(normal, faulty, limit)
    assert seen <= bound * 1.05  # 1.05: the scatter of the simulation (at least 2,000 alarms)
    # The bound takes an excursion to begin with every error of a counter that stands at 0 all the time.
    assert bound <= seen / (1 - normal / chance.allowance(normal, faulty)) * 1.05


def test_figures_for_a_slow_fault() -> None:
    """0.02 an hour is normal, 0.5 is not: a limit of 3 gives more than 100,000 h between false alarms."""
    assert chance.allowance(0.02, 0.5) == pytest.approx(0.149, abs=0.0005)
    assert 1 / chance.false_alarms(0.02, 0.5, 3.0) > 100_000


def test_an_error_alone_reaches_a_limit_of_one() -> None:
    assert chance.false_alarms(0.1, 1.0, 0.5) == chance.false_alarms(0.1, 1.0, 1.0) == 0.1


@settings(deadline=None)
@given(st.floats(1e-5, 10), st.floats(1.02, 1000), st.floats(1e-9, 1.5))
def test_the_limit_keeps_to_the_budget_and_gives_nothing_away(normal: float, ratio: float, part: float) -> None:
    """``part`` of the errors of a healthy counter may be a false alarm."""
    faulty, per_time = normal * ratio, normal * part
    limit = chance.cusum_limit(normal, faulty, per_time)
    assert limit >= 1
    if ratio >= 2:
        assert chance.false_alarms(normal, faulty, limit) <= per_time * (1 + 1e-12)
        assert limit < 1.001 or chance.false_alarms(normal, faulty, limit - 1e-4) >= per_time * 0.99
    elif limit > 1:
        assert (faulty - normal) / math.expm1(math.log(ratio) * limit) == pytest.approx(per_time, rel=1e-6)


def test_the_closed_bound_holds_where_the_exact_rate_is_known() -> None:
    for normal, faulty in ((0.001, 0.5), (0.02, 0.5), (1.0, 2.1), (1.0, 100.0)):
        for limit in (1.0, 1.5, 2.0, 3.3, 5.0, 8.0):
            closed = (faulty - normal) / math.expm1(math.log(faulty / normal) * limit)
            assert chance.false_alarms(normal, faulty, limit) <= min(normal, closed) * (1 + 1e-9)
