"""The flag rule: which spans an annotator is asked to look at (METHODS 6.4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidScores
from conformal.quantile import Bools


def flag_spans(
    starts: npt.ArrayLike, ends: npt.ArrayLike, *, sets: npt.ArrayLike, best: Sequence[int | None]
) -> tuple[Bools, Bools]:
    """Return which spans are reported (A) and which of those are flagged.

    starts, ends (S,); sets (S, W + 1), the last column O; `best[i]` is the class that the best labeling gives
    exactly this span, None if it has no such entity. A holds the spans whose set contains a class and those
    of the best labeling. A span of A is unflagged iff its set is exactly {w}, the best labeling has it as
    w, and no overlapping span of A has a class in its set. No bound on errors among unflagged spans is
    claimed.

    >>> reported, flagged = flag_spans([0, 3, 3], [1, 5, 6], sets=[[1, 0, 0], [0, 1, 1], [0, 1, 0]], best=[0, None, 1])
    >>> reported.tolist(), flagged.tolist()
    ([True, True, True], [False, True, True])
    """
    first = np.asarray(starts, dtype=np.int64)
    last = np.asarray(ends, dtype=np.int64)
    held = np.asarray(sets, dtype=np.bool_)  # (S, W + 1)
    if held.ndim != 2 or held.shape[0] != first.size or held.shape[1] < 2:
        raise InvalidScores(f"expected sets of shape ({first.size}, classes + 1), got {held.shape}")
    if last.shape != first.shape or len(best) != first.size or np.any(last <= first):
        raise InvalidScores(f"expected one end, set and best class for each of {first.size} non-empty spans")
    chosen = np.array([-1 if w is None else w for w in best], dtype=np.int64)
    has_class = held[:, :-1].any(axis=1)
    reported = has_class | (chosen >= 0)
    # A span overlaps all that start before its end, less those that end at or before its start.
    rivals = np.searchsorted(np.sort(first[has_class]), last, side="left")
    rivals -= np.searchsorted(np.sort(last[has_class]), first, side="right")
    rivals -= has_class  # a span is no rival of itself
    single = held.sum(axis=1) == 1
    agrees = np.zeros(first.size, dtype=np.bool_)
    rows = np.flatnonzero(chosen >= 0)
    agrees[rows] = held[rows, chosen[rows]]
    clear = single & agrees & (rivals == 0)
    return reported, reported & ~clear
