"""Joint scores: the larger of two scores, each on the scale of its own distribution (METHODS 4.7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformal.quantile import Floats, checked_scores


@dataclass(frozen=True, eq=False)
class Reference:
    """The distribution function of a score on the tuning part: frozen, so any score made with it stays exact.

    `F(t) = (#{tuning < t} + #{tuning = t}/2 + 1/2) / (m + 1)`, strictly between 0 and 1.

    >>> reference = Reference.of([3.0, 1.0, 1.0])
    >>> reference([0.0, 1.0, 2.0, np.inf]).tolist(), reference.half_steps([0.0, 1.0]).tolist()
    ([0.125, 0.375, 0.625, 0.875], [1, 3])
    """

    scores: Floats  # (m,) ascending

    @classmethod
    def of(cls, scores: npt.ArrayLike) -> Reference:
        """Sort and freeze the tuning part's scores; raises `InvalidScores` on NaN."""
        ordered = np.sort(checked_scores(scores).ravel())
        ordered.setflags(write=False)
        return cls(ordered)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and np.array_equal(self.scores, other.scores)

    def __hash__(self) -> int:
        return hash(self.scores.tobytes())

    def half_steps(self, scores: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return `2 (m + 1) F(t)`, a whole number."""
        given = np.asarray(scores, dtype=np.float64)
        below = np.searchsorted(self.scores, given, side="left")
        return np.asarray(below + np.searchsorted(self.scores, given, side="right") + 1, dtype=np.int64)

    def __call__(self, scores: npt.ArrayLike) -> Floats:
        """Return F at each score."""
        return np.asarray(self.half_steps(scores) / (2 * (self.scores.size + 1)), dtype=np.float64)


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
