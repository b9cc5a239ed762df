"""Sums over all labelings: the scaled forward and backward passes, and the same in the log domain.

Shapes: N tokens, L labels, two kinds of move (0 inside a sentence, 1 across a boundary).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from conformal.trellis.jit import inner_kernel

Floats = npt.NDArray[np.float64]

# A reachable label whose share of the forward mass falls below this may be lost to underflow, and with it the
# labelings it leads to; the log domain takes over.
SMALLEST_SHARE = 1e-150


@inner_kernel
def forward_scaled(
    emissions: Floats,  # (N, L)
    kinds: npt.NDArray[np.int8],  # (N,)
    scaled_moves: Floats,  # (2, L, L) exp(move - shift), [kind, from, to]
    shift: Floats,  # (2,)
    start: Floats,  # (L,)
    end: Floats,  # (L,)
    alpha: Floats,  # (N, L) out: share of the forward mass, each row sums to 1
    weight: Floats,  # (N, L) out: exp(emission - largest)
    scale: Floats,  # (N,) out: what each row was divided by
) -> tuple[bool, float]:
    """Return (trustworthy, log partition); -inf when there is no legal labeling."""
    N, L = emissions.shape
    total = 0.0
    for j in range(N):
        largest = -np.inf
        for y in range(L):
            e = emissions[j, y] + start[y] if j == 0 else emissions[j, y]
            weight[j, y] = e
            largest = max(largest, e)
        if largest == -np.inf:
            return True, -np.inf
        if j == 0:
            for y in range(L):
                alpha[j, y] = 1.0
        else:
            kind = kinds[j]
            for y in range(L):
                alpha[j, y] = 0.0
            for x in range(L):
                a = alpha[j - 1, x]
                if a > 0.0:
                    for y in range(L):
                        alpha[j, y] += a * scaled_moves[kind, x, y]
            total += shift[kind]
        mass = 0.0
        lost = False
        for y in range(L):
            e = weight[j, y]
            reached = alpha[j, y]
            weight[j, y] = np.exp(e - largest)
            alpha[j, y] = reached * weight[j, y]
            mass += alpha[j, y]
            lost |= (alpha[j, y] < SMALLEST_SHARE) & (reached > 0.0) & (e > -np.inf)
        if lost:
            return False, 0.0
        if mass == 0.0:
            return True, -np.inf
        for y in range(L):
            alpha[j, y] /= mass
        scale[j] = mass
        total += np.log(mass) + largest
    largest = -np.inf
    for y in range(L):
        if alpha[N - 1, y] > 0.0:
            largest = max(largest, end[y])
    if largest == -np.inf:
        return True, -np.inf
    mass = 0.0
    for y in range(L):
        if alpha[N - 1, y] > 0.0:
            mass += alpha[N - 1, y] * np.exp(end[y] - largest)
    return True, total + np.log(mass) + largest


@inner_kernel
def backward_scaled(
    kinds: npt.NDArray[np.int8],  # (N,)
    scaled_moves_back: Floats,  # (2, L, L) exp(move - shift), [kind, to, from]
    end: Floats,  # (L,)
    alpha: Floats,  # (N, L)
    weight: Floats,  # (N, L)
    scale: Floats,  # (N,)
    beta: Floats,  # (N, L) out: alpha * beta is the marginal of each label
    close: Floats,  # (N, L) out: the part of beta where the next label does not continue the entity
) -> None:
    """Backward pass for IOB2 label ids (odd begins, even positive continues).

    An entity's closing term is summed over the labels that end it, never got by subtraction: the difference of
    two nearly equal sums would lose the digits of a small probability.
    """
    N, L = alpha.shape
    largest = -np.inf
    for y in range(L):
        if alpha[N - 1, y] > 0.0:
            largest = max(largest, end[y])
    mass = 0.0
    for y in range(L):
        close[N - 1, y] = np.exp(end[y] - largest) if alpha[N - 1, y] > 0.0 else 0.0
        mass += alpha[N - 1, y] * close[N - 1, y]
    for y in range(L):
        close[N - 1, y] /= mass
        beta[N - 1, y] = close[N - 1, y]
    for j in range(N - 2, -1, -1):
        kind = kinds[j + 1]
        row = close[j]
        row[:] = 0.0
        beta[j] = 0.0
        for y in range(L):
            g = weight[j + 1, y] * beta[j + 1, y] / scale[j + 1]
            if g == 0.0:
                continue
            back = scaled_moves_back[kind, y]
            if y > 0 and y % 2 == 0:
                for x in range(y - 1):
                    row[x] += g * back[x]
                for x in range(y + 1, L):
                    row[x] += g * back[x]
                beta[j, y - 1] += g * back[y - 1]
                beta[j, y] += g * back[y]
            else:
                for x in range(L):
                    row[x] += g * back[x]
        for x in range(L):
            beta[j, x] += row[x]


@inner_kernel
def log_add(values: Floats) -> float:
    """Return log(sum(exp(values))), -inf for nothing."""
    largest = -np.inf
    for v in values:
        largest = max(largest, v)
    if largest == -np.inf:
        return -np.inf
    total = 0.0
    for v in values:
        total += np.exp(v - largest)
    return float(largest + np.log(total))


@inner_kernel
def forward_log(
    emissions: Floats,  # (N, L)
    kinds: npt.NDArray[np.int8],  # (N,)
    moves: Floats,  # (2, L, L) [kind, to, from]
    start: Floats,  # (L,)
    end: Floats,  # (L,)
    alpha: Floats,  # (N, L) out: log forward mass
    terms: Floats,  # (L,) scratch
) -> float:
    """Log partition, for scores that a scaled pass cannot hold."""
    N, L = emissions.shape
    for y in range(L):
        alpha[0, y] = start[y] + emissions[0, y]
    for j in range(1, N):
        for y in range(L):
            for x in range(L):
                terms[x] = alpha[j - 1, x] + moves[kinds[j], y, x]
            alpha[j, y] = log_add(terms) + emissions[j, y]
    for x in range(L):
        terms[x] = alpha[N - 1, x] + end[x]
    return log_add(terms)


@inner_kernel
def backward_log(
    emissions: Floats,  # (N, L)
    kinds: npt.NDArray[np.int8],  # (N,)
    moves: Floats,  # (2, L, L) [kind, to, from]
    end: Floats,  # (L,)
    beta: Floats,  # (N, L) out: log backward mass, the token's own emission left out
    close: Floats,  # (N, L) out: its part where the next label does not continue the entity
    terms: Floats,  # (L,) scratch
) -> None:
    """Backward pass in the log domain; the same quantities as `backward_scaled`, as logarithms."""
    N, L = emissions.shape
    for x in range(L):
        beta[N - 1, x] = end[x]
        close[N - 1, x] = end[x]
    for j in range(N - 2, -1, -1):
        kind = kinds[j + 1]
        for x in range(L):
            for y in range(L):
                terms[y] = moves[kind, y, x] + emissions[j + 1, y] + beta[j + 1, y]
            beta[j, x] = log_add(terms)
            if x > 0:
                terms[x + x % 2] = -np.inf  # I-w, for x either B-w or I-w
            close[j, x] = log_add(terms)


@inner_kernel
def path_score(
    emissions: Floats,  # (N, L)
    kinds: npt.NDArray[np.int8],  # (N,)
    moves: Floats,  # (2, L, L) [kind, to, from]
    start: Floats,  # (L,)
    end: Floats,  # (L,)
    labels: npt.NDArray[Any],  # (N,)
) -> float:
    """Score of one labeling, added left to right: the one order of summation everywhere."""
    score = start[labels[0]] + emissions[0, labels[0]]
    for j in range(1, labels.shape[0]):
        score += moves[kinds[j], labels[j], labels[j - 1]]
        score += emissions[j, labels[j]]
    return float(score + end[labels[labels.shape[0] - 1]])
