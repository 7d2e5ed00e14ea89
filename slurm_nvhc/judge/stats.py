"""The statistics behind rates: exact, small-count, no tables and no approximations that fail in the tail.

Error counters of healthy parts are rare events, so a count over a window is
Poisson with a mean of a few thousandths, and its far tail decides. Normal
approximations are wrong there by orders of magnitude; these sums are exact to
floating point.
"""

from __future__ import annotations

import math
from typing import Final

MAX_TERMS: Final = 100_000


def poisson_tail(count: int, mean: float) -> float:
    """P(X >= count) for X Poisson with ``mean`` >= 0. 1.0 for count <= 0."""
    if count <= 0:
        return 1.0
    if mean <= 0:
        return 0.0
    if count <= mean:
        return max(0.0, 1.0 - _below(count, mean))
    # Sum upwards from the largest term: nothing cancels, so a tail of 1e-12 has all its digits.
    term = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
    total, k = 0.0, count
    for _ in range(MAX_TERMS):
        total += term
        k += 1
        term *= mean / k
        if term < total * 1e-17:
            break
    return min(1.0, total)


def _below(count: int, mean: float) -> float:
    """P(X < count), summed downwards from the largest of its terms."""
    k = count - 1
    term = math.exp(k * math.log(mean) - mean - math.lgamma(k + 1))
    total = 0.0
    while k >= 0:
        total += term
        if k == 0 or term < total * 1e-17:
            break
        term *= k / mean
        k -= 1
    return min(1.0, total)


def critical_count(mean: float, alpha: float) -> int:
    """The smallest count whose tail is at most ``alpha``: this many or more is not chance."""
    low, high = 0, 1
    while poisson_tail(high, mean) > alpha:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if poisson_tail(middle, mean) > alpha else (low, middle)
    return high


def binomial_tail(count: int, trials: int, share: float) -> float:
    """P(X >= count) for X binomial. Of all errors of a node, is this link's part more than its share?"""
    if count <= 0:
        return 1.0
    if count > trials or share <= 0:
        return 0.0
    if share >= 1:
        return 1.0
    log_p, log_q = math.log(share), math.log1p(-share)
    terms = (
        math.exp(math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * log_p + (trials - k) * log_q)
        for k in range(count, trials + 1)
    )
    return min(1.0, math.fsum(terms))


def rate_bounds(count: int, exposure: float, confidence: float = 0.95) -> tuple[float, float]:
    """Exact (Garwood) bounds of a rate from ``count`` events in ``exposure`` > 0; lower is 0 for no events.

    One error in a day says little about a rate: what can be said is an upper bound.
    """
    side = (1.0 - confidence) / 2.0
    upper = _solve(lambda mean: 1.0 - poisson_tail(count + 1, mean), side, count + 1.0)
    lower = 0.0 if count == 0 else _solve(lambda mean: 1.0 - poisson_tail(count, mean), 1.0 - side, count + 1.0)
    return lower / exposure, upper / exposure


def _solve(falling: object, target: float, start: float) -> float:
    """x with falling(x) = target, for a function that falls from 1 to 0."""
    assert callable(falling)
    low, high = 0.0, start
    while falling(high) > target:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > target else (low, middle)
    return (low + high) / 2


def cusum(score: float, count: float, exposure: float, normal: float, bad: float) -> float:
    """The next Poisson CUSUM score: evidence for rate ``bad`` against ``normal``, never below 0.

    score' = max(0, score + count - k * exposure), k = (bad - normal) / ln(bad / normal):
    each event counts one, time without events is worth k each. Units: events per
    unit of exposure, 0 < normal < bad.
    """
    k = (bad - normal) / math.log(bad / normal)
    return max(0.0, score + count - k * exposure)
