"""Two scores with a threshold each: the naive intersection (METHODS 4.3) and the paper's conditional one (4.4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument, InvalidScores
from conformal.quantile import (
    Bools,
    CalibrationScores,
    Floats,
    Level,
    ScoreTable,
    checked_scores,
    exact_level,
    threshold,
)


def split_level(alpha: Level, share: Level) -> tuple[Fraction, Fraction]:
    """Return (alpha1, alpha2) with alpha1 = share * alpha and alpha1 + alpha2 = alpha.

    >>> split_level("0.1", "0.2")
    (Fraction(1, 50), Fraction(2, 25))
    """
    level, part = exact_level(alpha), exact_level(share)
    return level * part, level * (1 - part)


def split_conditional(alpha: Level, share: Level) -> tuple[Fraction, Fraction]:
    """Return (alpha1, beta) with alpha1 = share * alpha and (1 - alpha1)(1 - beta) = 1 - alpha.

    >>> split_conditional("0.19", "0.5")[0], float(split_conditional("0.19", "0.5")[1]).__round__(6)
    (Fraction(19, 200), 0.104972)
    """
    level = exact_level(alpha)
    first = level * exact_level(share)
    return first, 1 - (1 - level) / (1 - first)


@dataclass(frozen=True, eq=False)
class PairTable(ScoreTable):
    """A calibration set of pairs (index score, probability score); answers for pairs of shape (..., 2).

    Not conditional: a pair belongs to the set iff its index score does at `alpha1` and its probability score at
    `alpha2`. Covers at least 1 - alpha1 - alpha2 = 1 - alpha for exchangeable rows (Bonferroni, exact).
    Conditional: the second threshold is taken over the calibration rows inside the first, at beta. *Approximate*: the
    same rows give the first threshold and are selected by it, so they are not exchangeable with the test task.
    `scores` are those of the second kind, for reports.
    """

    rows: CalibrationScores = field(default_factory=lambda: CalibrationScores(np.zeros((0, 2))))
    share: str = "0.5"
    conditional: bool = False

    @classmethod
    def of_pairs(cls, rows: CalibrationScores, *, share: str, conditional: bool = False) -> PairTable:
        """Make the table of calibration pairs (m, 2); raises `InvalidScores` for other shapes or NaN."""
        if rows.scores.ndim != 2 or rows.scores.shape[1] != 2:
            raise InvalidScores(f"expected pairs of scores of shape (rows, 2), got {rows.scores.shape}")
        plain = rows.column(1).table()
        return cls(plain.scores, plain.above, plain.unit, rows, share, conditional)

    def tables(self, alpha: Level) -> tuple[ScoreTable, Fraction, ScoreTable, Fraction]:
        """Return the two tables with the level of each."""
        index, own = self._columns
        if not self.conditional:
            alpha1, alpha2 = split_level(alpha, self.share)
            return index, alpha1, own, alpha2
        alpha1, beta = split_conditional(alpha, self.share)
        inside = np.asarray(self.rows.scores[:, 0] <= index.threshold(alpha1))
        return index, alpha1, self.rows.take(inside).column(1).table(), beta

    @cached_property
    def _columns(self) -> tuple[ScoreTable, ScoreTable]:
        return self.rows.column(0).table(), self.rows.column(1).table()

    def thresholds(self, alpha: Level) -> tuple[float, float]:
        """Return both thresholds."""
        first, alpha1, second, alpha2 = self.tables(alpha)
        return first.threshold(alpha1), second.threshold(alpha2)

    def threshold(self, alpha: Level, *, u: float | None = None) -> float:
        """Return the probability score's threshold; `+inf` only when neither score bounds the set."""
        _refuse(u)
        index, own = self.thresholds(alpha)
        if np.isposinf(own) and np.isfinite(index):
            return float(np.finfo(np.float64).max)
        return own

    def contains(self, scores: npt.ArrayLike, alpha: Level, *, u: npt.ArrayLike | None = None) -> Bools:
        """Whether each pair (..., 2) belongs to the set at level alpha."""
        _refuse(u)
        given = checked_scores(scores)
        first, alpha1, second, alpha2 = self.tables(alpha)
        return np.asarray(first.contains(given[..., 0], alpha1) & second.contains(given[..., 1], alpha2))

    def p_values(self, scores: npt.ArrayLike, *, u: npt.ArrayLike | None = None) -> Floats:
        """Return `min(1, p1 / share, p2 / (1 - share))`: above alpha iff in the naive set.

        For the conditional set it is a description only: that set has no p-value.
        """
        _refuse(u)
        given = checked_scores(scores)
        part = float(exact_level(self.share))
        index, own = self._columns
        first, second = index.p_values(given[..., 0]), own.p_values(given[..., 1])
        return np.asarray(np.minimum(1.0, np.minimum(first / part, second / (1.0 - part))))


def _refuse(u: object) -> None:
    if u is not None:
        raise InvalidArgument("expected no u: sets with two thresholds have no smoothed form, got one")


@dataclass(frozen=True, eq=False)
class StackedPairs:
    """Many calibration sets of pairs, each answering for one pair: the batch form of `PairTable`.

    pairs (..., n, 2); see `contains`.
    """

    pairs: Floats
    share: str
    conditional: bool = False

    def contains(self, scores: npt.ArrayLike, alpha: Level) -> Bools:
        """Whether each test pair (..., 2) belongs to the set of its own calibration rows."""
        given = checked_scores(scores)
        index, own = self.pairs[..., 0], self.pairs[..., 1]
        if not self.conditional:
            alpha1, alpha2 = split_level(alpha, self.share)
            first, second = threshold(index, alpha1), threshold(own, alpha2)
        else:
            alpha1, beta = split_conditional(alpha, self.share)
            first = threshold(index, alpha1)
            second = threshold(own, beta, where=index <= first[..., None])
        return np.asarray((given[..., 0] <= first) & (given[..., 1] <= second))
