"""Flagged spans as a person meets them: places to look at, and few marks that show every flagged character."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidScores
from conformal.quantile import Bools
from conformal.risk.intervals import Ints, checked_doubts, checked_spans


def place_numbers(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Ints:
    """Return for each span the number of its place, from 0 by position: overlapping spans are one place (METHODS 11.6).

    Spans that only meet (one ends where the next starts) are two places: no gap is bridged, not even one of width 0.

    >>> place_numbers([0, 3, 8, 5], [4, 5, 9, 8]).tolist()
    [0, 0, 2, 1]
    """
    first, last = checked_spans(starts, ends)
    order = np.lexsort((last, first))
    reach = np.maximum.accumulate(last[order])
    new = np.ones(first.size, dtype=np.int64)
    new[1:] = first[order][1:] >= reach[:-1]
    numbers = np.empty(first.size, dtype=np.int64)
    numbers[order] = np.cumsum(new) - 1
    return numbers


def shown_marks(starts: npt.ArrayLike, ends: npt.ArrayLike, doubts: npt.ArrayLike, in_best: npt.ArrayLike) -> Bools:
    """Return which flagged spans to show, so that every character of a flagged span lies under a mark.

    starts, ends, doubts, in_best (S,): the flagged spans. All spans of the best labeling are shown. Of the others, by
    falling doubt (the longer first where it is equal), a span is shown unless those already shown cover it.

    >>> shown_marks([0, 0, 3, 4], [4, 6, 6, 6], [0.2, 0.5, 0.4, 0.1], [True, False, False, False]).tolist()
    [True, True, False, False]
    """
    first, last = checked_spans(starts, ends)
    given = checked_doubts(doubts, first.size)
    best = np.asarray(in_best, dtype=np.bool_)
    if best.shape != first.shape:
        raise InvalidScores(f"expected a mark of the best labeling for each of {first.size} spans, got {best.shape}")
    edges = np.unique(np.concatenate([first, last]))
    low, high = np.searchsorted(edges, first).tolist(), np.searchsorted(edges, last).tolist()
    ahead = list(range(edges.size + 1))  # from each piece of text, a way to the next one that no mark covers
    shown = best.copy()
    for i in np.lexsort((last, first, first - last, -given, ~best)).tolist():
        piece = _next_bare(ahead, low[i])
        if piece >= high[i] and not best[i]:
            continue
        shown[i] = True
        while piece < high[i]:
            ahead[piece] = piece + 1
            piece = _next_bare(ahead, piece)
    return shown


def _next_bare(ahead: list[int], piece: int) -> int:
    """Return the first uncovered piece from `piece` on, and shorten the way to it."""
    end = piece
    while ahead[end] != end:
        end = ahead[end]
    while ahead[piece] != end:
        ahead[piece], piece = end, ahead[piece]
    return end
