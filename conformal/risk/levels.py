"""Levels for a whole project: one for each language with labels enough, one for the others (METHODS 11.4 and 11.5).

The pools are a partition by counts, the test task counted once more in its own language (METHODS 5.2): a language
stands alone from `n_min` tasks, all others together are one pool. Promise, for each pool: if every flagged place is put
right, at most `max_error` of a random task's final entities are wrong or missing, on average over tasks and calibration
draws (or, where it is `sure`, for 95 % of the draws).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import compress
from math import ceil
from typing import Any

import numpy as np

from conformal.errors import InvalidArgument, InvalidThresholds
from conformal.risk.bounds import risk_is_below, upper_bound
from conformal.risk.control import control_risk, exact_max_error, own_weights, suffices
from conformal.risk.doubts import FLOOR
from conformal.risk.losses import ErrorRows

ALL = "all"  # the pool of all languages, where none stands alone
OTHERS = "others"  # the pool of the languages that do not
BOUND_ERROR = "0.05"  # how often a bound, and a level that is `sure`, may be wrong
# The levels that are tried where a bound decides, fixed before any label is seen; smallest first.
_TRIED = np.append(np.geomspace(FLOOR, 1.0, 600), np.inf)


@dataclass(frozen=True)
class RiskPool:
    """The level of some languages, with what it was fitted on.

    `calibrated` False means: too few tasks for any level, everything is flagged (level 0). `n` counts tasks with a true
    or predicted span. `risk` and `bound` are the mean loss and its 95 % upper bound on the calibrating rows at the
    level; they chose it, so the mean lies just below what was asked for and is no measurement. `plain` is the level
    that holds on average; `level` is a smaller one where a sure promise was asked for.
    """

    name: str
    level: float
    n: int
    calibrated: bool
    risk: float | None
    bound: float | None
    languages: tuple[str, ...]
    plain: float


@dataclass(frozen=True)
class RiskLevels:
    """Fitted levels, frozen and serialisable. The last pool is that of the languages without one of their own."""

    max_error: str
    sure: bool
    n_min: int
    pools: tuple[RiskPool, ...]

    def __post_init__(self) -> None:
        exact_max_error(self.max_error)
        if not self.pools:
            raise InvalidThresholds("expected at least the pool of all languages, got no pool")

    def pool(self, language: str) -> RiskPool:
        """Return the pool that answers for a task in this language, also one that no label had."""
        return next((own for own in self.pools[:-1] if own.name == language), self.pools[-1])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; an infinite level is the string 'inf'."""
        return {
            "max_error": self.max_error,
            "sure": self.sure,
            "n_min": self.n_min,
            "pools": [
                {
                    "name": pool.name,
                    "level": _written(pool.level),
                    "n": pool.n,
                    "calibrated": pool.calibrated,
                    "risk": pool.risk,
                    "bound": pool.bound,
                    "languages": list(pool.languages),
                    "plain": _written(pool.plain),
                }
                for pool in self.pools
            ],
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> RiskLevels:
        """Read what `to_dict` wrote; raises `InvalidThresholds` on anything else."""
        try:
            pools = tuple(
                RiskPool(
                    name=str(pool["name"]),
                    level=_read(pool["level"]),
                    n=int(pool["n"]),
                    calibrated=bool(pool["calibrated"]),
                    risk=None if pool["risk"] is None else float(pool["risk"]),
                    bound=None if pool["bound"] is None else float(pool["bound"]),
                    languages=tuple(str(language) for language in pool["languages"]),
                    plain=_read(pool["plain"]),
                )
                for pool in value["pools"]
            )
            return cls(str(value["max_error"]), bool(value["sure"]), int(value["n_min"]), pools)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidThresholds(
                f"expected levels as RiskLevels.to_dict writes them, got others ({type(error).__name__}: {error}); "
                "fit them again"
            ) from None


def _written(level: float) -> float | str:
    return "inf" if np.isinf(level) else level


def _read(level: str | float) -> float:
    value = float(level)
    if np.isnan(value) or value < 0:
        raise ValueError(f"a level of {level}")
    return value


def least_tasks(max_error: str | Fraction) -> int:
    """Return how many tasks any level but 0 needs: `ceil(1/max_error) - 1`.

    >>> least_tasks("0.05"), least_tasks("0.01")
    (19, 99)
    """
    return ceil(1 / exact_max_error(max_error)) - 1


def fit_levels(
    rows: ErrorRows,
    languages: Sequence[str],
    *,
    max_error: str,
    sure: bool = False,
    n_min: int = 100,
    test_weight: float | None = None,
) -> RiskLevels:
    """Fit a level for each language that stands alone, and one for all others together.

    languages (n,): of each row's task, identified from the text alone. Rows must be tasks labelled blind, or files
    someone vouches for: assisted rows understate what is left behind. With `sure` the level is the greatest whose 95 %
    upper bound is at most `max_error`, tried from small levels upwards until the first failure; it costs flags.
    `test_weight` is the greatest weight that a task can have; by default that of a pool's rows.

    Raises:
        InvalidArgument: when columns or options do not fit.
    """
    if len(languages) != len(rows):
        raise InvalidArgument(f"expected a language for each of {len(rows)} tasks, got {len(languages)}")
    if n_min < 1:
        raise InvalidArgument(f"expected n_min of at least 1, got {n_min}")
    alone_from = max(n_min, least_tasks(max_error) + 1)  # with the test task
    used = rows.take(rows.counted)
    counted = list(compress(languages, rows.counted.tolist()))
    counts = Counter(counted)
    code_of = {language: code for code, language in enumerate(counts)}
    spoken = np.array([code_of[language] for language in counted], dtype=np.int64)
    alone = sorted(language for language, count in counts.items() if count + 1 >= alone_from)
    small = sorted(language for language, count in counts.items() if count < alone_from)

    def fitted(name: str, members: list[str]) -> RiskPool:
        inside = np.isin(spoken, [code_of[language] for language in members])
        return _fit(used.take(inside), name, tuple(members), max_error=max_error, sure=sure, test_weight=test_weight)

    own = [fitted(language, [language]) for language in alone]
    return RiskLevels(max_error, sure, n_min, (*own, fitted(OTHERS if alone else ALL, small)))


def _fit(
    rows: ErrorRows,
    name: str,
    languages: tuple[str, ...],
    *,
    max_error: str,
    sure: bool,
    test_weight: float | None,
) -> RiskPool:
    limit = exact_max_error(max_error)
    weights, test = own_weights(rows, test_weight)
    enough = suffices(rows, 0.0, limit, weights, test)
    plain = control_risk(rows, limit, test_weight=test_weight) if enough else 0.0
    level = plain
    if sure and enough:
        sure_level = _sure_level(rows, float(limit), test)
        enough = sure_level is not None
        level = min(plain, sure_level or 0.0)
    losses = rows.losses(level)
    risk = float(np.average(losses, weights=weights)) if len(rows) else None
    bound = upper_bound(losses, BOUND_ERROR, rows.weight, test_weight=test) if len(rows) else None
    return RiskPool(name, level, len(rows), enough, risk, bound, languages, plain)


def _sure_level(rows: ErrorRows, limit: float, test: float) -> float | None:
    """Return the last level before the first whose bound exceeds the limit; None when that is the smallest."""
    last = None
    for level in _TRIED.tolist():
        losses = rows.losses(level)
        if not risk_is_below(losses, limit, error=BOUND_ERROR, weights=rows.weight, test_weight=test):
            break
        last = level
    return last
