"""Joint scores: the larger of two scores, each on the scale of its own distribution (METHODS 4.7)."""

from __future__ import annotations

import numpy as np

from conformal.quantile import Floats
from conformal.scores.nc1 import NC1
from conformal.scores.nc3 import NC3
from conformal.scores.ranks import Ranks
from conformal.scores.score import PlainScore, Score, TuningPart
from conformal.scores.tuned import Choice, Reference, Tuned


class Joint(Score):
    """`max(F1(base), F2(rank))`, ties by -log P; both distribution functions are frozen."""

    tunes = True

    def __init__(self, base: PlainScore) -> None:
        self.base = base
        self.name = f"joint+{base.name}"

    def values(self, ranks: Ranks, *, tuned: Tuned, limit: int | None) -> Floats:
        """Return `joint` of the base score and the rank."""
        own = self.base.of_expressible(ranks)
        references = (tuned.reference("score"), tuned.reference("other"))
        return joint(own, NC3.of(ranks), references=references, ties=NC1.of(ranks))

    def choices(self, part: TuningPart) -> list[Choice]:
        """Freeze the distribution functions of the tuning truths."""
        ranks = part.tasks.ranks
        other, own = Reference.of(NC3.of(ranks)), Reference.of(self.base.of_expressible(ranks))
        return [Choice(Tuned(references=(("other", other), ("score", own))))]


def joint(first: Floats, second: Floats, *, references: tuple[Reference, Reference], ties: Floats) -> Floats:
    """Return `max(F1(first), F2(second))` in half steps, ties broken by `ties` (-log P), as one number each.

    The whole part is the larger of the two half steps, the rest is t / (1 + t) of the tie breaker t >= 0. Rises with
    either score and with t, and is `+inf` where a score is. Both references must have the same number of rows, so
    that half steps compare. Exact by itself: a score like any other, given the frozen references.

    >>> f = Reference.of([1.0, 2.0])
    >>> joint(np.array([1.5]), np.array([0.5]), references=(f, f), ties=np.array([1.0])).tolist()
    [3.5]
    """
    larger = np.maximum(references[0].half_steps(first), references[1].half_steps(second))
    t = np.maximum(ties, 0.0)
    with np.errstate(invalid="ignore"):
        rest = np.where(np.isposinf(t), 1.0, t / (1.0 + t))
    lost = np.isposinf(first) | np.isposinf(second)
    return np.where(lost, np.inf, larger + rest)
