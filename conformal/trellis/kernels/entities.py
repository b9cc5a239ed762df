"""The probability that a span is exactly one entity (METHODS 2.3).

Label ids are those of `LabelSpace`: 0 is O, 2w + 1 begins class w, 2w + 2 continues it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from conformal.trellis.jit import inner_kernel, kernel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


@inner_kernel
def span_probability(
    opening: Floats,  # (N, W) mass that enters B-w at a token
    step: Floats,  # (N, W, 2) factor of going on to I-w at a token, from B-w and from I-w
    closing: Floats,  # (N, W, 2) factor of ending after a token, labelled B-w or I-w
    logs: bool,
    a: int,
    b: int,
    w: int,
) -> float:
    """Probability that tokens a .. b - 1 are exactly one entity of class w."""
    mass = opening[a, w]
    inside = 0
    for j in range(a + 1, b):
        mass = mass + step[j, w, inside] if logs else mass * step[j, w, inside]
        inside = 1
    if logs:
        return float(np.exp(mass + closing[b - 1, w, inside]))
    return float(mass * closing[b - 1, w, inside])


@kernel
def span_probabilities(
    opening: Floats, step: Floats, closing: Floats, logs: bool, starts: Longs, ends: Longs
) -> Floats:
    """Return `span_probability` of spans for every class, at most 1: (S, W)."""
    S, W = starts.shape[0], opening.shape[1]
    probabilities = np.empty((S, W))
    for i in range(S):
        for w in range(W):
            probabilities[i, w] = min(1.0, span_probability(opening, step, closing, logs, starts[i], ends[i], w))
    return probabilities


@kernel
def list_spans(
    opening: Floats,  # (N, W)
    step: Floats,  # (N, W, 2)
    closing: Floats,  # (N, W, 2)
    going: Floats,  # (N, W, 2) like closing, but whatever comes after
    logs: bool,
    floor: float,
) -> tuple[Ints, Ints, Ints, Floats]:
    """Return starts, ends, classes and probabilities of every span at or above `floor`, and above 0.

    The probability that a span is labelled B I .. I falls as it grows, so a start is given up once that is
    below the floor.
    """
    N, W = opening.shape
    room, found = 4 * N + 16, 0
    spans = np.empty((room, 3), dtype=np.int32)
    probabilities = np.empty(room)
    for a in range(N):
        for w in range(W):
            mass = opening[a, w]
            inside = 0
            b = a + 1
            while True:
                reach = np.exp(mass + going[b - 1, w, inside]) if logs else mass * going[b - 1, w, inside]
                if reach < floor or reach == 0.0:
                    break
                p = np.exp(mass + closing[b - 1, w, inside]) if logs else mass * closing[b - 1, w, inside]
                if p >= floor and p > 0.0:
                    if found == room:
                        room *= 2
                        more_spans = np.empty((room, 3), dtype=np.int32)
                        more_spans[:found] = spans
                        spans = more_spans
                        more = np.empty(room)
                        more[:found] = probabilities
                        probabilities = more
                    spans[found, 0] = a
                    spans[found, 1] = b
                    spans[found, 2] = w
                    probabilities[found] = min(p, 1.0)
                    found += 1
                if b == N:
                    break
                mass = mass + step[b, w, inside] if logs else mass * step[b, w, inside]
                inside = 1
                b += 1
    return (
        spans[:found, 0].copy(),
        spans[:found, 1].copy(),
        spans[:found, 2].copy(),
        probabilities[:found].copy(),
    )


@kernel
def factors_scaled(
    kinds: npt.NDArray[np.int8],  # (N,)
    scaled_moves: Floats,  # (2, L, L) [kind, from, to]
    alpha: Floats,  # (N, L)
    weight: Floats,  # (N, L)
    scale: Floats,  # (N,)
    beta: Floats,  # (N, L)
    close: Floats,  # (N, L)
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return opening (N, W), step, closing and going (N, W, 2) from the scaled passes, as plain factors."""
    N, L = alpha.shape
    W = (L - 1) // 2
    opening = np.empty((N, W))
    step = np.zeros((N, W, 2))
    closing = np.empty((N, W, 2))
    going = np.empty((N, W, 2))
    for j in range(N):
        for w in range(W):
            b = 2 * w + 1
            opening[j, w] = alpha[j, b]
            for inside in range(2):
                closing[j, w, inside] = close[j, b + inside]
                going[j, w, inside] = beta[j, b + inside]
                if j > 0:
                    step[j, w, inside] = scaled_moves[kinds[j], b + inside, b + 1] * weight[j, b + 1] / scale[j]
    return opening, step, closing, going


@kernel
def factors_log(
    emissions: Floats,  # (N, L)
    kinds: npt.NDArray[np.int8],  # (N,)
    moves: Floats,  # (2, L, L) [kind, to, from]
    alpha: Floats,  # (N, L) logs
    beta: Floats,  # (N, L) logs
    close: Floats,  # (N, L) logs
    log_partition: float,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the same as `factors_scaled`, as logarithms to be added."""
    N, L = alpha.shape
    W = (L - 1) // 2
    opening = np.empty((N, W))
    step = np.full((N, W, 2), -np.inf)
    closing = np.empty((N, W, 2))
    going = np.empty((N, W, 2))
    for j in range(N):
        for w in range(W):
            b = 2 * w + 1
            opening[j, w] = alpha[j, b]
            for inside in range(2):
                closing[j, w, inside] = close[j, b + inside] - log_partition
                going[j, w, inside] = beta[j, b + inside] - log_partition
                if j > 0:
                    step[j, w, inside] = moves[kinds[j], b + 1, b + inside] + emissions[j, b + 1]
    return opening, step, closing, going
