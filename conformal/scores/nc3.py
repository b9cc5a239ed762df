"""nc3: the rank of the labeling (METHODS 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformal.quantile import Floats, Level, ScoreTable, StackedTable, exact_level, threshold
from conformal.scores.ranks import Ranks
from conformal.scores.score import PlainScore

if TYPE_CHECKING:
    from conformal.subsequence import SpanScores


class Nc3(PlainScore):
    """The rank r."""

    name = "nc3"
    smooths = True
    largest_step = 1.0

    def of(self, ranks: Ranks) -> Floats:
        """Return the rank."""
        return np.where(ranks.expressible, ranks.rank.astype(np.float64), np.inf)

    def step(self, ranks: Ranks) -> Floats:
        """Return one rank."""
        return np.ones(ranks.rank.shape)

    def of_spans(self, scored: SpanScores) -> Floats:
        """Return how many labels of the span are at least as likely."""
        return np.where(scored.class_rank > 0, scored.class_rank.astype(np.float64), np.inf)

    def paper_points(
        self, before: Floats, given: Floats, tau: Floats, *, table: ScoreTable | StackedTable, alpha: Level
    ) -> tuple[Floats, Floats, Floats | float]:
        """Return the calibration shares at most each rank: the paper's scale for ranks."""
        return table.share_at_most(before), table.share_at_most(given), float(1 - exact_level(alpha))


NC3 = Nc3()


def rank_cap(ranks: Ranks, alpha1: Level, *, limit: int) -> int:
    """Return the rank threshold of these (tuning) rows at level alpha1, `limit` where it is infinite.

    >>> rank_cap(Ranks(np.zeros(4), np.array([1, 1, 2, 7]), np.ones(4)), "0.4", limit=100)
    2
    """
    tau = float(threshold(NC3.of(ranks), alpha1))
    return limit if np.isposinf(tau) else min(int(tau), limit)
