"""Viterbi from the end, scores of given labelings, and the best labeling alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from conformal.trellis.jit import inner_kernel

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int16]

EPSILON = 2.220446049250313e-16


@inner_kernel
def rounding(length: int) -> float:
    """Return a bound on the rounding of a chain score, per unit of magnitude, with room to spare."""
    return 16.0 * (length + 4) * EPSILON


@inner_kernel
def backward_best(
    emissions: Floats,  # (N, L)
    kinds: npt.NDArray[np.int8],  # (N,)
    moves: Floats,  # (2, L, L) [kind, to, from]
    end: Floats,  # (L,)
    best: Floats,  # (N, L) out: best score from this label on, its emission included
    rest: Floats,  # (N, L) out: the same without its emission
) -> None:
    """Viterbi from the end; labels without a legal completion get -inf."""
    N, L = emissions.shape
    for y in range(L):
        rest[N - 1, y] = end[y]
        best[N - 1, y] = emissions[N - 1, y] + end[y]
    for j in range(N - 2, -1, -1):
        row = rest[j]
        row[:] = -np.inf
        kind = kinds[j + 1]
        for y in range(L):
            c = best[j + 1, y]
            if c == -np.inf:
                continue
            into = moves[kind, y]
            for x in range(L):
                v = into[x] + c
                row[x] = v if v > row[x] else row[x]  # noqa: FURB136 - max() of floats does not vectorise
        for x in range(L):
            best[j, x] = emissions[j, x] + row[x]


@inner_kernel
def score_all(
    emissions: Floats,
    kinds: npt.NDArray[np.int8],
    moves: Floats,
    start: Floats,
    end: Floats,
    labels: Labels,
    scores: Floats,
) -> None:
    """Write the scores of labelings (K, N), each added left to right, side by side so that additions overlap."""
    K, N = labels.shape
    for r in range(K):
        scores[r] = start[labels[r, 0]] + emissions[0, labels[r, 0]]
    for j in range(1, N):
        kind = kinds[j]
        for r in range(K):
            y = labels[r, j]
            scores[r] += moves[kind, y, labels[r, j - 1]]
            scores[r] += emissions[j, y]
    for r in range(K):
        scores[r] += end[labels[r, N - 1]]


@inner_kernel
def best_only(
    emissions: Floats,  # (N, L)
    kinds: npt.NDArray[np.int8],  # (N,)
    moves: Floats,  # (2, L, L) [kind, to, from]
    moves_from: Floats,  # (2, L, L) [kind, from, to]
    start: Floats,
    end: Floats,
    best: Floats,  # (N, L) from backward_best
    labels: Labels,  # (1, N) out
    score: Floats,  # (1,) out
) -> tuple[bool, bool]:
    """Write the best labeling of a text that has one; return (clear, alone).

    Not clear: another one comes so close that rounding could decide between them. Alone: there is no other.
    """
    N, L = emissions.shape
    size = 0.0
    nearest = np.inf
    for j in range(N):
        first, second = -np.inf, -np.inf
        label = 0
        for y in range(L):
            v = best[j, y] + (start[y] if j == 0 else moves_from[kinds[j], labels[0, j - 1], y])
            if v > first:
                second = first
                first = v
                label = y
            elif v > second:
                second = v
        labels[0, j] = label
        size += abs(emissions[j, label]) + (abs(first) if j == 0 else 0.0)
        nearest = min(nearest, first - second)
    if nearest <= 2.0 * rounding(N) * size:
        return False, False
    score_all(emissions, kinds, moves, start, end, labels, score)
    return True, nearest == np.inf
