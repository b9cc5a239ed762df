"""The work that is left: the sum over tasks nobody has done yet, from those that were (METHODS 14.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument, InvalidScores
from conformal.estimates.accuracy import NORMAL_95

LEAST_SEEN = 30  # a mean of fewer skewed times says little


@dataclass(frozen=True)
class Forecast:
    """A sum that is still to come, with its 95 % interval."""

    total: float
    low: float
    high: float


def forecast_total(seen: npt.ArrayLike, *, left: int) -> Forecast | None:
    """Return what `left` more tasks will come to, if they are like those seen; None from fewer than `LEAST_SEEN`.

    seen (n,): what each took. The interval is for the sum itself: the mean is uncertain, and so are the tasks to come.

    Raises:
        InvalidScores: when a number is negative or not finite.
        InvalidArgument: when `left` is negative.

    >>> forecast_total([20.0] * 50, left=10)
    Forecast(total=200.0, low=200.0, high=200.0)
    """
    given = np.asarray(seen, dtype=np.float64)
    if given.ndim != 1 or not np.all(np.isfinite(given) & (given >= 0)):
        raise InvalidScores("expected finite numbers of at least 0, got others")
    if left < 0:
        raise InvalidArgument(f"expected at least 0 tasks left, got {left}")
    if given.size < LEAST_SEEN:
        return None
    mean, spread = float(given.mean()), float(given.var(ddof=1))
    half = NORMAL_95 * float(np.sqrt(left * left * spread / given.size + left * spread))
    return Forecast(left * mean, max(0.0, left * mean - half), left * mean + half)


def add_forecasts(parts: Sequence[Forecast]) -> Forecast:
    """Return the sum of what comes from parts that say nothing of each other; its errors add as squares.

    >>> add_forecasts([Forecast(10.0, 7.0, 13.0), Forecast(20.0, 16.0, 24.0)])
    Forecast(total=30.0, low=25.0, high=35.0)
    """
    total = sum(part.total for part in parts)
    half = math.sqrt(sum((part.high - part.total) ** 2 for part in parts))
    return Forecast(total, max(0.0, total - half), total + half)
