"""Maxima over overlapping spans in near-linear time: a sparse table, filled and read (METHODS 11.3)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidScores
from conformal.quantile import Floats

Ints = npt.NDArray[np.int64]


def checked_spans(starts: npt.ArrayLike, ends: npt.ArrayLike) -> tuple[Ints, Ints]:
    """Return both columns as int64; raises `InvalidScores` when a span is empty or a column is short."""
    first, last = np.asarray(starts), np.asarray(ends)
    if first.ndim != 1 or first.shape != last.shape:
        raise InvalidScores(f"expected one end for each start, got shapes {first.shape} and {last.shape}")
    if first.size and not (np.issubdtype(first.dtype, np.integer) and np.issubdtype(last.dtype, np.integer)):
        raise InvalidScores(f"expected whole numbers as starts and ends, got {first.dtype} and {last.dtype}")
    first, last = first.astype(np.int64), last.astype(np.int64)
    if np.any(last <= first):
        wrong = int(np.argmax(last <= first))
        raise InvalidScores(f"expected spans that end after they start, got ({first[wrong]}, {last[wrong]})")
    return first, last


def checked_doubts(doubts: npt.ArrayLike, size: int) -> Floats:
    """Return one doubt in [0, 1] for each of `size` spans; raises `InvalidScores` otherwise."""
    given = np.asarray(doubts, dtype=np.float64)
    if given.shape != (size,) or not np.all((given >= 0) & (given <= 1)):
        raise InvalidScores(f"expected a doubt between 0 and 1 for each of {size} spans, got others")
    return given


def greatest_touching(starts: Ints, ends: Ints, *, values: Floats, first: Ints, last: Ints) -> Floats:
    """Return for each of the spans (first, last) the greatest value of those (starts, ends) that overlap it, or 0.

    starts, ends, values (S,), values at least 0; first, last (E,). Each piece of text between two ends gets the
    greatest value of the spans over it; a span then takes the greatest of its pieces. O((S + E) log(S + E)).
    """
    if not starts.size or not first.size:
        return np.zeros(first.size)
    edges = np.unique(np.concatenate([starts, ends, first, last]))
    levels = _paint(np.searchsorted(edges, starts), np.searchsorted(edges, ends), values, edges.size - 1)
    return _read(np.searchsorted(edges, first), np.searchsorted(edges, last), levels)


def _rows(low: Ints, high: Ints) -> Ints:
    """Return floor(log2(length)): two blocks of that power of two cover each range."""
    return np.asarray(np.frexp((high - low).astype(np.float64))[1] - 1, dtype=np.int64)


def _paint(low: Ints, high: Ints, values: Floats, size: int) -> Floats:
    """Return for each of `size` pieces the greatest value of the ranges over it, 0 where there is none."""
    row = _rows(low, high)
    table = np.zeros((int(row.max()) + 1, size))
    np.maximum.at(table, (row, low), values)
    np.maximum.at(table, (row, high - (1 << row)), values)
    for k in range(table.shape[0] - 1, 0, -1):
        half = 1 << (k - 1)
        np.maximum(table[k - 1], table[k], out=table[k - 1])
        np.maximum(table[k - 1, half:], table[k, :-half], out=table[k - 1, half:])
    return np.asarray(table[0])


def _read(low: Ints, high: Ints, pieces: Floats) -> Floats:
    """Return the greatest piece in each range."""
    row = _rows(low, high)
    table = [pieces]
    for k in range(int(row.max())):
        half = 1 << k
        below = table[-1]
        wider = below.copy()
        np.maximum(wider[:-half], below[half:], out=wider[:-half])
        table.append(wider)
    stacked = np.stack(table)
    return np.asarray(np.maximum(stacked[row, low], stacked[row, high - (1 << row)]))
