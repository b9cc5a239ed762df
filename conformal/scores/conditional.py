"""A probability score among the labelings of early rank: exact, and as in the paper (METHODS 4.4).

The paper takes its second threshold from the calibration rows that fall inside the first one, which come from the same
rows: approximate (`ConditionalPaper`). Here the first threshold tau1 is frozen on the tuning part; the score is nc*(y)
where the rank is at most tau1 and `+inf` elsewhere, conformalised once: exact (`Conditional`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from conformal.pairs import PairTable
from conformal.quantile import CalibrationScores, Floats, ScoreTable
from conformal.scores.boundary import Boundary
from conformal.scores.naive import pair_values, share_choices
from conformal.scores.nc3 import rank_cap
from conformal.scores.ranks import DEFAULT_LIMIT, Ranks
from conformal.scores.score import Ints, PlainScore, Score, SpanScore, TuningPart
from conformal.scores.tuned import DEFAULT_RANK_SHARE, Choice, Grid, Tuned

if TYPE_CHECKING:
    from conformal.subsequence import SpanScores

_MOST_CAPPED = Fraction(1, 2)


class Conditional(SpanScore):
    """A base score up to a rank cap that is frozen as the method's limit, `+inf` beyond it."""

    tunes = True
    searches_lists = True

    def __init__(self, base: PlainScore) -> None:
        self.base = base
        self.name = f"conditional+{base.name}"
        self.smooths = base.smooths

    def values(self, ranks: Ranks, *, tuned: Tuned, limit: int | None) -> Floats:
        """Return the base scores: the cap is the limit, which is applied already."""
        return self.base.of_expressible(ranks)

    def step(self, ranks: Ranks) -> Floats:
        """Return the base's step."""
        return self.base.step(ranks)

    def choices(self, part: TuningPart) -> list[Choice]:
        """Cap at the rank that a fifth of alpha lies beyond; with lists, at that of any share, or not at all."""
        most = part.limit or DEFAULT_LIMIT
        # Rows beyond the cap score +inf; were these nearly alpha of the tuning part, chance would open every set.
        shares = (DEFAULT_RANK_SHARE, *(share for share in Grid().shares if Fraction(share) <= _MOST_CAPPED))
        caps = [rank_cap(part.tasks.ranks, part.level * Fraction(share), limit=most) for share in shares]
        return self.variants(Grid(caps=tuple(dict.fromkeys([*caps, most]))))

    def variants(self, grid: Grid) -> list[Choice]:
        """Return all caps."""
        return [Choice(Tuned(), cap) for cap in grid.caps]

    def span_values(self, scored: SpanScores, rank: Ints, *, tuned: Tuned | None) -> Floats:
        """Return the base scores of entities found within the cap."""
        return np.where(rank > 0, self.base.of_spans(scored), np.inf)

    def span_choice(self, ranks: Ranks, *, level: Fraction, limit: int) -> Choice:
        """Cap at the rank that a fifth of alpha lies beyond."""
        return Choice(Tuned(), rank_cap(ranks, level * Fraction(DEFAULT_RANK_SHARE), limit=limit))


class ConditionalPaper(Score):
    """The paper's: the pair (rank, base score), its second threshold from the rows inside the first."""

    worth = "approximate"
    boundaries = (Boundary.INCLUDE,)
    is_pair = True
    tunes = True
    searches_lists = True

    def __init__(self, base: PlainScore) -> None:
        self.base = base
        self.name = f"conditional_paper+{base.name}"

    def values(self, ranks: Ranks, *, tuned: Tuned, limit: int | None) -> Floats:
        """Return `pair_values`."""
        return pair_values(ranks, self.base)

    def table(self, rows: CalibrationScores, *, tuned: Tuned) -> ScoreTable:
        """Make a table whose second threshold is taken over the rows inside the first."""
        return PairTable.of_pairs(rows, share=tuned.share, conditional=True)

    def choices(self, part: TuningPart) -> list[Choice]:
        """Return `share_choices`."""
        return share_choices()
