"""RAPS: a probability score plus a penalty on the rank (METHODS 4.2, 6.5)."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument
from conformal.quantile import Floats
from conformal.scores.nc3 import rank_cap
from conformal.scores.ranks import DEFAULT_LIMIT, Ranks
from conformal.scores.score import Ints, PlainScore, SpanScore, TuningPart
from conformal.scores.tuned import Choice, Grid, Tuned

if TYPE_CHECKING:
    from conformal.subsequence import SpanScores

_LAM = 0.01  # where no list says what is best
_MOST_R0 = max(Grid().r0s)


class Raps(SpanScore):
    """A base score on the scale of a probability plus `lam * max(r - r0, 0)`, lam and r0 frozen."""

    tunes = True
    searches_lists = True

    def __init__(self, base: PlainScore) -> None:
        self.base = base
        self.name = f"raps+{base.name}"
        self.smooths = base.smooths

    def values(self, ranks: Ranks, *, tuned: Tuned, limit: int | None) -> Floats:
        """Return the penalised scores."""
        scale = self.base.on_probability_scale(self.base.of_expressible(ranks))
        return np.where(ranks.expressible, raps(scale, ranks.rank, lam=tuned.lam, r0=tuned.r0), np.inf)

    def step(self, ranks: Ranks) -> Floats:
        """Return the base's step: the penalty is no part of the sum."""
        return self.base.step(ranks)

    def choices(self, part: TuningPart) -> list[Choice]:
        """Charge from the rank that half of alpha lies beyond; with lists, any pair of the grid."""
        return [_charge(part.tasks.ranks, part.level, DEFAULT_LIMIT), *self.variants(Grid())]

    def variants(self, grid: Grid) -> list[Choice]:
        """Return all pairs of lam and r0."""
        return [Choice(Tuned(lam=lam, r0=r0)) for lam, r0 in product(grid.lams, grid.r0s)]

    def span_values(self, scored: SpanScores, rank: Ints, *, tuned: Tuned | None) -> Floats:
        """Return the penalised scores of labels; the penalty is on the first rank of the entity."""
        if tuned is None:
            raise InvalidArgument(f"expected {self.name} with its tuned values, got none; see conformal.tuning")
        own = self.base.of_spans(scored)
        scale = self.base.on_probability_scale(own)
        penalised = raps(np.where(np.isposinf(own), 0.0, scale), rank, lam=tuned.lam, r0=tuned.r0)
        return np.where(np.isposinf(own), np.inf, penalised)

    def span_choice(self, ranks: Ranks, *, level: Fraction, limit: int) -> Choice:
        """Charge from the rank that half of alpha lies beyond."""
        return _charge(ranks, level, limit)


def _charge(ranks: Ranks, level: Fraction, limit: int) -> Choice:
    return Choice(Tuned(lam=_LAM, r0=min(rank_cap(ranks, level / 2, limit=limit), _MOST_R0)))


def penalty(rank: npt.ArrayLike, *, lam: float, r0: int) -> Floats:
    """Return `lam * max(r - r0, 0)`, `+inf` for rank 0 (not found).

    >>> penalty([1, 3, 5, 0], lam=0.5, r0=3).tolist()
    [0.0, 0.0, 1.0, inf]
    """
    if not (lam >= 0 and np.isfinite(lam)):
        raise InvalidArgument(f"expected lam as a finite number of at least 0, got {lam}")
    if r0 < 0:
        raise InvalidArgument(f"expected r0 of at least 0, got {r0}")
    ranks = np.asarray(rank, dtype=np.int64)
    return np.where(ranks > 0, lam * np.maximum(ranks - r0, 0), np.inf)


def raps(base: npt.ArrayLike, rank: npt.ArrayLike, *, lam: float, r0: int) -> Floats:
    """Return `base + lam * max(rank - r0, 0)`; exact like any other score, lam = 0 gives the base itself.

    `base` is on the scale of a probability: 1 - P or the cumulative probability; for entities 1 - P_ent or
    nc2_ent with `rank` the smallest rank whose labeling holds the entity. Both rise with the rank, so the sum does.

    >>> raps([0.2, 0.9], [1, 4], lam=0.1, r0=2).round(3).tolist()
    [0.2, 1.1]
    """
    return np.asarray(np.asarray(base, dtype=np.float64) + penalty(rank, lam=lam, r0=r0))
