"""nc1: one minus the probability of the labeling (METHODS 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformal.quantile import Floats, Level, ScoreTable, StackedTable, checked_scores
from conformal.scores.ranks import Ranks
from conformal.scores.score import PlainScore

if TYPE_CHECKING:
    from conformal.subsequence import SpanScores


class Nc1(PlainScore):
    """`1 - P`, kept as `-log P`: the same sets, without `1 - 1e-17 == 1`."""

    name = "nc1"
    limit = None
    is_enumerable = True
    compares_labels = False

    def of(self, ranks: Ranks) -> Floats:
        """Return `-log P`."""
        return -ranks.log_probability

    def of_spans(self, scored: SpanScores) -> Floats:
        """Return `-log P_ent`."""
        with np.errstate(divide="ignore"):
            return checked_scores(-np.log(scored.probability))

    def on_probability_scale(self, values: Floats) -> Floats:
        """Return `1 - P`."""
        return -np.expm1(-values)

    def paper_points(
        self, before: Floats, given: Floats, tau: Floats, *, table: ScoreTable | StackedTable, alpha: Level
    ) -> tuple[Floats, Floats, Floats | float]:
        """Return all three on the probability scale, where the paper's formula lives."""
        return -np.exp(-before), -np.exp(-given), -np.exp(-tau)


NC1 = Nc1()
