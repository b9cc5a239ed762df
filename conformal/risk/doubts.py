"""How much each span is in doubt: the nested family of flag rules with one number (METHODS 11.2 and 11.3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidScores
from conformal.quantile import Floats

# Spans are listed down to this summed probability of a class; below it nothing is flagged but by level 0.
FLOOR: float = 1e-4
_ROUNDING = 1e-6  # what sums of probabilities may be off by


def span_doubts(probabilities: npt.ArrayLike, best: Sequence[int | None]) -> Floats:
    """Return the doubt of each span, in [0, 1]: how probable it is that the best labeling is wrong about it.

    probabilities (S, W + 1), P_ent of each class and O last; `best[i]` is the class that the best labeling gives
    exactly this span, None if it has no such entity. The doubt is `1 - P_ent(that class)`, and for other spans
    `1 - P_ent(O)`: that they are an entity after all. The rule with level lam flags the spans with a doubt of at least
    lam, and level 0 the whole text, so a smaller level flags a superset: the rules are nested. They use no label. A
    doubt below `FLOOR` counts as 0.

    Raises:
        InvalidScores: when shapes, classes or probabilities do not fit each other.

    >>> span_doubts([[0.9, 0.02, 0.08], [0.0, 0.25, 0.75]], best=[0, None]).round(6).tolist()
    [0.1, 0.25]
    """
    given = np.asarray(probabilities, dtype=np.float64)  # (S, W + 1)
    if given.ndim != 2 or given.shape[0] != len(best) or given.shape[1] < 2:
        raise InvalidScores(f"expected probabilities of shape ({len(best)}, classes + 1), got {given.shape}")
    if not np.all((given >= -_ROUNDING) & (given <= 1 + _ROUNDING)):
        raise InvalidScores("expected probabilities between 0 and 1, got others")
    o = given.shape[1] - 1
    said = np.array([o if w is None else w for w in best], dtype=np.int64)  # (S,) what y(1) says of the span
    if np.any((said < 0) | (said > o)) or any(w == o for w in best):
        raise InvalidScores(f"expected best classes from 0 to {o - 1} or None, got others")
    doubts = np.clip(1.0 - given[np.arange(said.size), said], 0.0, 1.0)
    return np.where(doubts < FLOOR, 0.0, doubts)
