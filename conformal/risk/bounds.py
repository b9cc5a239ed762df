"""Upper bounds for the mean of losses in [0, 1], at one time and at all times (METHODS 11.4).

All are for independent losses of tasks drawn alike; with weights, for the weighted mean `E[w l] / E[w]`, w being 1 over
the known probability with which a task was selected.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument, InvalidScores
from conformal.monitor.beta import bisect, incomplete_beta
from conformal.monitor.coverage import clopper_pearson
from conformal.quantile import Floats, Level, exact_level

_LARGEST_STAKE = 1.0 - 1e-12  # a loss of 1 at a mean of 0 must not end in log(0)
_STAKES = np.geomspace(0.005, 1.0, 16) * _LARGEST_STAKE  # shares of the capital that the confidence sequence bets


def clopper_pearson_upper(wrong: int, total: int, *, error: Level = "0.05") -> float:
    """Return the exact one-sided upper bound for a share seen as `wrong` of `total`.

    >>> round(clopper_pearson_upper(0, 59), 4)
    0.0495
    """
    doubled = 2 * exact_level(error)
    if doubled >= 1:
        raise InvalidArgument(f"expected an error below 0.5, got {error}")
    return clopper_pearson(wrong, total, error=doubled)[1]


def hoeffding_bentkus(losses: npt.ArrayLike, *, error: Level = "0.05") -> float:
    """Return the upper bound of Hoeffding's and Bentkus' inequalities together, for losses of equal weight.

    Bates, Angelopoulos, Lei, Malik, Jordan, "Distribution-free, risk-controlling prediction sets" (2021).

    >>> round(hoeffding_bentkus([0.0] * 100), 4)
    0.0295
    """
    given, _ = _checked(losses)
    if not given.size:
        return 1.0
    n, mean, delta = given.size, float(given.mean()), float(exact_level(error))
    most = math.ceil(n * mean - 1e-9)

    def rejected(risk: float) -> bool:
        hoeffding = math.exp(-n * _divergence(mean, risk))
        below = 1.0 if most >= n else 1.0 - incomplete_beta(most + 1.0, n - most, risk)  # Binomial(n, risk) <= most
        return min(hoeffding, math.e * below) <= delta

    return bisect(rejected, mean, 1.0) if mean < 1.0 else 1.0


def _divergence(mean: float, risk: float) -> float:
    """Return the relative entropy of two coins, for risk of at least mean."""
    if risk >= 1.0:
        return math.inf
    left = mean * math.log(mean / risk) if mean > 0 else 0.0
    return left + (1.0 - mean) * math.log((1.0 - mean) / (1.0 - risk))


def betting_upper(
    losses: npt.ArrayLike,
    *,
    error: Level = "0.05",
    weights: npt.ArrayLike | None = None,
    test_weight: float | None = None,
) -> float:
    """Return the upper bound that betting against a larger mean gives, in the order of the losses.

    Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (2020). Valid in any order that
    does not depend on the losses. `test_weight` is the greatest weight that a task can have; by default that of these.

    >>> round(betting_upper([0.0] * 100), 3)
    0.031
    """
    given, shares = _checked(losses, weights, test_weight)
    stakes = _stakes(given, shares, float(exact_level(error)))
    need = -math.log(float(exact_level(error)))
    return bisect(lambda risk: _most_won(given, shares, stakes, risk) >= need, 0.0, 1.0) if given.size else 1.0


def risk_is_below(
    losses: npt.ArrayLike,
    risk: float,
    *,
    error: Level = "0.05",
    weights: npt.ArrayLike | None = None,
    test_weight: float | None = None,
) -> bool:
    """Whether `betting_upper` is at most `risk`, without looking for it.

    >>> risk_is_below([0.0] * 100, 0.05), risk_is_below([0.0] * 50, 0.05)
    (True, False)
    """
    given, shares = _checked(losses, weights, test_weight)
    stakes = _stakes(given, shares, float(exact_level(error)))
    return bool(given.size) and _most_won(given, shares, stakes, risk) >= -math.log(float(exact_level(error)))


def upper_bound(
    losses: npt.ArrayLike,
    error: Level = "0.05",
    weights: npt.ArrayLike | None = None,
    *,
    test_weight: float | None = None,
) -> float:
    """Return the upper bound for the mean loss, right with probability at least 1-error: that of betting.

    Chosen beforehand and for all: the smaller of two bounds would be right less often than either says. It was never
    much wider than Hoeffding-Bentkus on 0/1 losses, and far narrower on the shares that documents have
    (docs/decisions/0019-risk.md).
    """
    return betting_upper(losses, error=error, weights=weights, test_weight=test_weight)


def risk_sequence(losses: npt.ArrayLike, *, error: Level = "0.05") -> tuple[float, float]:
    """Return an interval for the mean loss that holds at all times at once with probability at least 1-error.

    Capital that bets a fixed share of itself each time, averaged over shares, is a martingale under the true mean; by
    Ville's inequality it ever reaches 2/error with probability at most error/2, on either side. It does not depend on
    the order. For 0/1 losses `conformal.monitor.confidence_sequence` is narrower.

    >>> low, high = risk_sequence([0.0] * 95 + [0.5] * 5)
    >>> low < 0.025 < high
    True
    """
    given, _ = _checked(losses)
    values, counts = np.unique(given, return_counts=True)
    if not given.size:
        return 0.0, 1.0
    need = math.log(2.0 / float(exact_level(error)))
    low = bisect(lambda mean: _mixture(values, counts, mean) < need, 0.0, 1.0)
    # The upper end is the lower end for what was not lost.
    high = 1.0 - bisect(lambda mean: _mixture(1.0 - values, counts, mean) < need, 0.0, 1.0)
    return (0.0 if _mixture(values, counts, 0.0) < need else low), high


def _mixture(values: Floats, counts: npt.NDArray[np.int64], mean: float) -> float:
    """Return the log of the capital against a mean of at most `mean`; infinite for a mean of 0 that is refuted."""
    if mean <= 0.0:
        return math.inf if values[-1] > 0 else -math.inf
    each = np.log1p(_STAKES[:, None] * (values / mean - 1.0)) @ counts  # (stakes,)
    return float(np.logaddexp.reduce(each)) - math.log(_STAKES.size)


def _stakes(losses: Floats, shares: Floats, delta: float) -> Floats:
    """Return the stake of each bet, from the losses before it alone."""
    n = losses.size
    if not n:
        return losses
    seen = np.arange(1, n + 1)
    means = (0.5 + np.cumsum(shares * losses)) / (1.0 + np.cumsum(shares))
    spread = (0.25 + np.cumsum((shares * (losses - means)) ** 2)) / (1.0 + seen)
    before = np.append(0.25, spread[:-1])
    return np.asarray(np.minimum(_LARGEST_STAKE, np.sqrt(-2.0 * math.log(delta) / (n * before))))


def _most_won(losses: Floats, shares: Floats, stakes: Floats, risk: float) -> float:
    """Return the greatest log capital on the way; it rises with `risk`."""
    return float(np.cumsum(np.log1p(-stakes * shares * (losses - risk))).max())


def _checked(
    losses: npt.ArrayLike, weights: npt.ArrayLike | None = None, test_weight: float | None = None
) -> tuple[Floats, Floats]:
    """Return losses and weights as shares of the greatest weight."""
    given = np.asarray(losses, dtype=np.float64).ravel()
    if not np.all((given >= 0) & (given <= 1)):
        raise InvalidScores("expected losses between 0 and 1, got others")
    if weights is None:
        return given, np.ones(given.size)
    own = np.asarray(weights, dtype=np.float64).ravel()
    if own.shape != given.shape or not np.all(np.isfinite(own) & (own > 0)):
        raise InvalidScores(f"expected a finite weight above 0 for each of {given.size} losses, got others")
    most = float(own.max(initial=0.0)) if test_weight is None else test_weight
    if own.size and not (np.isfinite(most) and most >= own.max()):
        raise InvalidArgument(f"expected a test weight of at least the greatest weight, {own.max():g}, got {most:g}")
    return given, own / most
