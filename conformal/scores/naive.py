"""Naive: a rank set and a probability set, each at its part of alpha, intersected (METHODS 4.3, 6.5)."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from conformal.pairs import PairTable
from conformal.quantile import CalibrationScores, Floats, ScoreTable
from conformal.scores.boundary import Boundary
from conformal.scores.nc3 import NC3
from conformal.scores.ranks import Ranks
from conformal.scores.score import Ints, PlainScore, SpanScore, TuningPart
from conformal.scores.tuned import DEFAULT_RANK_SHARE, Choice, Grid, Tuned

if TYPE_CHECKING:
    from conformal.subsequence import SpanScores


class Naive(SpanScore):
    """The pair (rank, base score); the share of alpha that goes to the rank is frozen. Exact as a bound."""

    boundaries = (Boundary.INCLUDE,)
    is_pair = True
    tunes = True
    searches_lists = True

    def __init__(self, base: PlainScore) -> None:
        self.base = base
        self.name = f"naive+{base.name}"

    def values(self, ranks: Ranks, *, tuned: Tuned, limit: int | None) -> Floats:
        """Return `pair_values`."""
        return pair_values(ranks, self.base)

    def table(self, rows: CalibrationScores, *, tuned: Tuned) -> ScoreTable:
        """Make a table with both thresholds from all rows."""
        return PairTable.of_pairs(rows, share=tuned.share)

    def choices(self, part: TuningPart) -> list[Choice]:
        """Return `share_choices`."""
        return share_choices()

    def variants(self, grid: Grid) -> list[Choice]:
        """Return all shares."""
        return [Choice(Tuned(share=share)) for share in grid.shares]

    def span_values(self, scored: SpanScores, rank: Ints, *, tuned: Tuned | None) -> Floats:
        """Return the pairs (..., 2) of nc_idx and the base score."""
        own = self.base.of_spans(scored)
        return np.stack([np.where(rank > 0, rank.astype(np.float64), np.inf), own], axis=-1)

    def span_choice(self, ranks: Ranks, *, level: Fraction, limit: int) -> Choice:
        """Give a fifth of alpha to the rank."""
        return Choice(Tuned(share=DEFAULT_RANK_SHARE))


def pair_values(ranks: Ranks, base: PlainScore) -> Floats:
    """Return the pairs (..., 2) of the rank and a base score."""
    own = base.of_expressible(ranks)
    return np.stack([NC3.of(ranks), own], axis=-1)


def share_choices() -> list[Choice]:
    """Return the shares of alpha that may go to the rank: a fifth where no lists are at hand."""
    return [Choice(Tuned(share=share)) for share in dict.fromkeys((DEFAULT_RANK_SHARE, *Grid().shares))]
