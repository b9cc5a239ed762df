"""nc2: the probability of the labeling and of all likelier ones together (METHODS 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformal.quantile import Floats, checked_scores
from conformal.scores.ranks import Ranks
from conformal.scores.score import PlainScore

if TYPE_CHECKING:
    from conformal.subsequence import SpanScores


class Nc2(PlainScore):
    """The cumulative probability `P(y(1)) + ... + P(y(r))`."""

    name = "nc2"
    smooths = True
    bounds_rest = False  # the next labeling may add next to nothing to the sum

    def of(self, ranks: Ranks) -> Floats:
        """Return the cumulative probability."""
        return np.where(ranks.expressible, ranks.cumulative, np.inf)

    def step(self, ranks: Ranks) -> Floats:
        """Return P(y(r)): a smoothed sum holds a uniform part of its last term."""
        return np.asarray(np.exp(np.where(ranks.expressible, ranks.log_probability, -np.inf)), dtype=np.float64)

    def of_spans(self, scored: SpanScores) -> Floats:
        """Return the summed P_ent of the labels that are at least as likely."""
        return checked_scores(scored.cumulative)


NC2 = Nc2()
