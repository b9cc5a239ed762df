"""The regularised incomplete beta function and its inverse, with the standard library only."""

from __future__ import annotations

import math
from collections.abc import Callable

from conformal.errors import InvalidArgument

_TINY = 1e-300
_STEPS = 20_000


def log_beta(a: float, b: float) -> float:
    """Return log B(a, b)."""
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return `I_x(a, b)`, the distribution function of Beta(a, b) at x, for a, b > 0.

    >>> incomplete_beta(1.0, 1.0, 0.25), round(incomplete_beta(2.0, 3.0, 0.5), 12)
    (0.25, 0.6875)
    """
    if not (a > 0 and b > 0):
        raise InvalidArgument(f"expected a and b above 0, got {a} and {b}")
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if a == b == 1.0:
        return x
    # The fraction converges fast on the side of the mean; the other side is its complement.
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _front(b, a, 1.0 - x, x) * _fraction(b, a, 1.0 - x) / b
    return _front(a, b, x, 1.0 - x) * _fraction(a, b, x) / a


def _front(a: float, b: float, x: float, y: float) -> float:
    return math.exp(a * math.log(x) + b * math.log(y) - log_beta(a, b))


def _fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function (Lentz's method)."""
    c = 1.0
    d = 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, _STEPS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + numerator / c
            c = c if abs(c) > _TINY else _TINY
            value *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return value


def bisect(function: Callable[[float], bool], low: float, high: float) -> float:
    """Return the point of [low, high] where `function` turns from False to True, to the last bit."""
    while True:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            return high
        if function(middle):
            high = middle
        else:
            low = middle


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Return x with `I_x(a, b) = probability`.

    >>> round(beta_quantile(0.6875, 2.0, 3.0), 9)
    0.5
    """
    if not 0.0 <= probability <= 1.0:
        raise InvalidArgument(f"expected a probability between 0 and 1, got {probability}")
    if probability in (0.0, 1.0):
        return probability
    return bisect(lambda x: incomplete_beta(a, b, x) >= probability, 0.0, 1.0)
