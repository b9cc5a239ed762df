"""Live coverage: an interval at one time, intervals at all times, and the law of one threshold (METHODS 8.8)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from conformal.errors import InvalidArgument
from conformal.monitor.beta import beta_quantile, bisect, log_beta
from conformal.quantile import Level, exact_level, rank


def _check(covered: int, total: int) -> None:
    if not 0 <= covered <= total:
        raise InvalidArgument(f"expected 0 <= covered <= total, got {covered} of {total}")


@lru_cache(maxsize=4096)  # a page shows the same counts in several figures, and again a moment later
def clopper_pearson(covered: int, total: int, *, error: Level = "0.05") -> tuple[float, float]:
    """Return the exact pointwise interval for a coverage seen as `covered` of `total`.

    Holds with probability at least 1-error at one time fixed beforehand, for independent tasks and one
    threshold version; looked at again and again it does not (use `confidence_sequence`).

    >>> low, high = clopper_pearson(95, 100)
    >>> round(low, 4), round(high, 4)
    (0.8872, 0.9836)
    """
    _check(covered, total)
    half = float(exact_level(error)) / 2
    low = beta_quantile(half, covered, total - covered + 1) if covered else 0.0
    high = beta_quantile(1.0 - half, covered + 1, total - covered) if covered < total else 1.0
    return low, high


def confidence_sequence(
    covered: int, total: int, *, error: Level = "0.05", prior: tuple[float, float] = (0.5, 0.5)
) -> tuple[float, float]:
    """Return an interval that holds at all times at once with probability at least 1-error.

    The mixture of likelihood ratios over a Beta prior is a martingale under the true coverage p, so by
    Ville's inequality `{p : mixture / likelihood(p) < 1/error}` contains it for ever. Any prior is valid.

    >>> low, high = confidence_sequence(95, 100)
    >>> round(low, 3), round(high, 3)
    (0.844, 0.993)
    """
    _check(covered, total)
    a, b = prior
    if not (a > 0 and b > 0):
        raise InvalidArgument(f"expected a prior with both parameters above 0, got {prior}")
    if total == 0:
        return 0.0, 1.0
    missed = total - covered
    bound = log_beta(a + covered, b + missed) - log_beta(a, b) + math.log(float(exact_level(error)))

    def inside(p: float) -> bool:  # likelihood(p) > mixture * error
        if p <= 0.0 or p >= 1.0:
            return (covered == 0) if p <= 0.0 else (missed == 0)
        return covered * math.log(p) + missed * math.log1p(-p) > bound

    centre = covered / total
    low = 0.0 if inside(0.0) else bisect(inside, 0.0, centre)
    high = 1.0 if inside(1.0) else bisect(lambda p: not inside(p), centre, 1.0)
    return low, high


def beta_binomial_cdf(covered: int, total: int, a: float, b: float) -> float:
    """Return P(X <= covered) for X ~ BetaBinomial(total; a, b).

    >>> round(beta_binomial_cdf(1, 2, 1.0, 1.0), 12)
    0.666666666667
    """
    _check(covered, total)
    if covered == total:
        return 1.0
    # log pmf at 0, then the ratio of neighbours: no special function of arrays is needed.
    x = np.arange(total, dtype=np.float64)
    steps = np.log((total - x) / (x + 1)) + np.log((x + a) / (total - x - 1 + b))
    logs = np.concatenate([[0.0], np.cumsum(steps)]) + log_beta(a, b + total) - log_beta(a, b)
    # Only the total is fixed by theory; dividing by it removes the rounding that the sum has gathered.
    shares = np.exp(logs - logs.max())
    return float(min(1.0, shares[: covered + 1].sum() / shares.sum()))


def below_target(covered: int, total: int, *, n: int, alpha: Level) -> float:
    """Return the p-value of "coverage is below target", against the law of one threshold from n scores.

    Of `total` test tasks, BetaBinomial(total; k, n+1-k) are covered when scores are exchangeable and
    continuous; ties only raise coverage. A small value says that too few were covered for chance. 1 when
    the threshold is infinite.

    >>> round(below_target(90, 100, n=199, alpha="0.05"), 3)
    0.06
    """
    _check(covered, total)
    k = rank(n, alpha)
    if k > n:
        return 1.0
    return beta_binomial_cdf(covered, total, k, n + 1 - k)
