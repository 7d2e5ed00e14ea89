"""How likely is it that a healthy counter shows this? Exact chances of counts, nothing else. Pure.

Counts of rare, independent errors are Poisson distributed; errors of a sick link come in bursts, which only
makes them more unlikely here. Everything is computed by sums of positive terms, so that nothing cancels: tails
keep their relative precision (better than 1e-6 up to means of 1e7) down to the smallest number there is, below
which they are 0.0.
"""

from __future__ import annotations

import math
from typing import Final

_ENOUGH: Final = 1e-13  # a term this much smaller than the sum ends it
# From here on the exact limit needs thousands of terms, and the closed bound is hardly wider: it costs at most
# the factor faulty / normal in the rate of false alarms.
_CLOSE_RATES: Final = 2.0
_LIMIT_STEPS: Final = 20  # halvings of an interval of one error: to a millionth of an error


def tail(count: float, mean: float) -> float:
    """P(X >= count) for a Poisson variable of this mean (>= 0). A count that is no whole number is rounded up."""
    k = math.ceil(count)
    if k <= 0:
        return 1.0
    if mean <= 0:
        return 0.0
    if k > mean:
        return min(1.0, _probability(k, mean) * _upwards(k, mean))
    return max(0.0, 1.0 - _probability(k - 1, mean) * _downwards(k - 1, mean))


def _probability(k: int, mean: float) -> float:
    """P(X = k)"""
    return math.exp(k * math.log(mean) - mean - math.lgamma(k + 1))


def _upwards(k: int, mean: float) -> float:
    """P(X >= k) / P(X = k) = 1 + m/(k+1) + m²/((k+1)(k+2)) + …, for k > mean."""
    total = term = 1.0
    while term > total * _ENOUGH:
        k += 1
        term *= mean / k
        total += term
    return total


def _downwards(k: int, mean: float) -> float:
    """P(X <= k) / P(X = k) = 1 + k/m + k(k-1)/m² + …, for k <= mean."""
    total = term = 1.0
    while k > 0 and term > total * _ENOUGH:
        term *= k / mean
        k -= 1
        total += term
    return total


def critical(mean: float, alpha: float) -> int:
    """The smallest count that chance gives with probability alpha at most: from it on a test at this level alarms."""
    low, high = -1, 1  # tail(low) > alpha >= tail(high), once high has been found
    while tail(high, mean) > alpha:
        low, high = high, max(2 * high, math.ceil(mean))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if tail(middle, mean) <= alpha else (middle, high)
    return high


def share_tail(count: float, total: float, share: float) -> float:
    """P(X >= count) when each of ``total`` errors falls into the window with chance ``share`` (binomial).

    The exact test of one counter against its own past: at a steady rate, of all the errors before and in the window
    the window's share of the time is its share of the errors, whatever the rate is (Przyborowski and Wilenski 1940).
    """
    k, n = math.ceil(count), math.ceil(total)
    if k <= 0 or share >= 1:
        return 1.0
    if k > n or share <= 0:
        return 0.0
    if k <= n * share:
        return 1.0 - share_tail(n - k + 1, n, 1 - share)
    logarithm = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    total_ratio = term = 1.0
    first = math.exp(logarithm + k * math.log(share) + (n - k) * math.log1p(-share))
    while k < n and term > total_ratio * _ENOUGH:
        term *= (n - k) / (k + 1) * share / (1 - share)
        k += 1
        total_ratio += term
    return min(1.0, first * total_ratio)


def upper_mean(count: float, confidence: float) -> float:
    """The largest mean that a count does not rule out: P(X <= count) = 1 - confidence (Garwood 1936, one-sided).

    By Newton's method from Wilson and Hilferty's approximation, which a few steps make exact.
    """
    k = max(0, math.floor(count))
    if k == 0:
        return -math.log(1.0 - confidence)
    z = _normal_quantile(confidence)
    mean = (k + 1) * (1 - 1 / (9 * (k + 1)) + z / (3 * math.sqrt(k + 1))) ** 3
    for _ in range(6):
        # d/dm P(X <= k | m) = -P(X = k | m)
        step = (1.0 - tail(k + 1, mean) - (1.0 - confidence)) / _probability(k, mean)
        mean += step
        if abs(step) < 1e-9 * mean:
            break
    return mean


def _normal_quantile(p: float) -> float:
    """Of the standard normal distribution, to 5e-4 (Abramowitz and Stegun 26.2.23); p from 0.5 to below 1."""
    t = math.sqrt(-2 * math.log(1 - p))
    return t - (2.515517 + 0.802853 * t + 0.010328 * t * t) / (1 + 1.432788 * t + 0.189269 * t * t + 0.001308 * t**3)


# CUSUM: evidence gathered over time


def allowance(normal: float, faulty: float) -> float:
    """Errors per time that the sum of a CUSUM falls by: (l1 - l0) / ln(l1 / l0), between the two rates.

    With it the sum is the likelihood ratio: ln(l1/l0) times the sum is by how much the errors speak for
    the faulty rate.
    """
    return (faulty - normal) / math.log(faulty / normal)


def false_alarms(normal: float, faulty: float, limit: float) -> float:
    """At most how many false alarms per time a counter of the normal rate gives whose sum alarms at ``limit``.

    The sum S rises by 1 at an error and falls by k = allowance per time, never below 0. It leaves 0 with an error
    only, so excursions begin at a rate of at most l0, and an excursion that reaches the limit is one alarm:
    rate <= l0 p, with p the chance that one which stands at 1 reaches the limit before 0.

    S is the work in a queue with one server, arrivals at rate l0 and service of constant length 1/k (M/D/1), load
    r = l0/k < 1. Exit chances of such a process are ratios of its scale function, which is proportional to the
    distribution function F of the stationary work: p = 1 - F(limit - 1) / F(limit).
    For F see _work_above (Erlang 1909, in the form with positive terms).
    """
    if limit <= 1:
        return normal  # every error that finds the sum at 0 is an alarm
    load = normal / allowance(normal, faulty)
    above = _work_above(limit, load)
    return normal * (_work_above(limit - 1, load) - above) / (1.0 - above)


def _work_above(x: float, load: float) -> float:
    """1 - F(x): (1 - r) * sum over j > x of (r (j - x))^j exp(-r (j - x)) / j!, for x >= 0."""
    j = math.floor(x) + 1
    total = 0.0
    while True:
        u = load * (j - x)
        term = math.exp(j * math.log(u) - u - math.lgamma(j + 1))
        total += term
        if term < total * _ENOUGH:  # after a rise at first, each term is about r exp(1 - r) < 1 of the one before
            return (1.0 - load) * total
        j += 1


def cusum_limit(normal: float, faulty: float, per_time: float) -> float:
    """The limit at which a counter of the normal rate gives at most ``per_time`` false alarms per time (exposure).

    A closed bound first. exp(t S), t = ln(l1/l0), is a martingale while S is above 0 (E[exp(t N)] makes up for
    k t, by the choice of k); an excursion begins with S = 1, and ends at 0 or at the limit h or above, so
    exp(t) >= p exp(t h) + (1 - p), and l0 p <= (l1 - l0) / (exp(t h) - 1).
    That gives away up to one error, by which S may jump over h; the exact rate takes it back. Never below 1:
    an alarm needs an error.
    """
    ratio = faulty / normal
    high = math.log1p((faulty - normal) / per_time) / math.log(ratio)
    if ratio < _CLOSE_RATES:
        return max(1.0, high)
    low, high = max(1.0, high - 1.0), max(1.0, high)
    for _ in range(_LIMIT_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if false_alarms(normal, faulty, middle) <= per_time else (middle, high)
    return high
