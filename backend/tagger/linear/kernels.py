"""Compiled loops of the linear CRF: scores of sparse features, their gradients, and exact expectations of chains."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from conformal.trellis.jit import kernel
from conformal.trellis.kernels.forward import backward_log, backward_scaled, forward_log, forward_scaled, path_score

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]


@kernel
def add_scores(rows: Rows, offsets: Ints, weights: Floats, emissions: Floats) -> None:
    """Add to emissions (T, L) the weights (F, L) of the features each token has; a row below 0 is no feature."""
    T, L = emissions.shape
    for t in range(T):
        for k in range(offsets[t], offsets[t + 1]):
            f = rows[k]
            if f >= 0:
                for y in range(L):
                    emissions[t, y] += weights[f, y]


@kernel
def add_gradients(rows: Rows, offsets: Ints, slopes: Floats, gradient: Floats) -> None:
    """Add to the gradient (F, L) the slopes (T, L) of the tokens that have each feature."""
    T, L = slopes.shape
    for t in range(T):
        for k in range(offsets[t], offsets[t + 1]):
            f = rows[k]
            if f >= 0:
                for y in range(L):
                    gradient[f, y] += slopes[t, y]


@kernel
def add_dense_scores(dense: npt.NDArray[np.float32], weights: Floats, emissions: Floats) -> None:
    """Add to emissions (T, L) the dense features (T, D) times their weights (D, L), always in the same order."""
    for t in range(dense.shape[0]):
        for d in range(dense.shape[1]):
            for y in range(weights.shape[1]):
                emissions[t, y] += dense[t, d] * weights[d, y]


@kernel
def add_dense_gradients(dense: npt.NDArray[np.float32], slopes: Floats, gradient: Floats) -> None:
    """Add to the gradient (D, L) the slopes (T, L) times the dense features (T, D)."""
    for t in range(dense.shape[0]):
        for d in range(dense.shape[1]):
            for y in range(slopes.shape[1]):
                gradient[d, y] += dense[t, d] * slopes[t, y]


@kernel
def dot(a: Floats, b: Floats) -> float:
    """Inner product in one fixed order, so that weights do not depend on the threads of a linear algebra library."""
    s0 = s1 = s2 = s3 = 0.0
    n = a.shape[0]
    whole = n - n % 4
    for i in range(0, whole, 4):
        s0 += a[i] * b[i]
        s1 += a[i + 1] * b[i + 1]
        s2 += a[i + 2] * b[i + 2]
        s3 += a[i + 3] * b[i + 3]
    for i in range(whole, n):
        s0 += a[i] * b[i]
    return (s0 + s1) + (s2 + s3)


@kernel
def chain_losses(
    emissions: Floats,  # (T, L), those of all chains one after the other
    offsets: Ints,  # (C + 1,), where each chain begins; none is empty
    labels: Ints,  # (T,)
    transitions: Floats,  # (L, L) [from, to], -inf where illegal
    start: Floats,  # (L,), -inf where illegal
    end: Floats,  # (L,)
    losses: Floats,  # (C,) out: minus the log-probability of each true labeling
    slopes: Floats,  # (T, L) out: marginals minus truth
    pairs: Floats,  # (L, L) added to: the same of moves
    firsts: Floats,  # (L,) added to: the same of the first labels
    lasts: Floats,  # (L,) added to: the same of the last labels
) -> None:
    """Exact losses of C chains and their gradients (METHODS 1): expected counts minus the true ones."""
    L = emissions.shape[1]
    C = offsets.shape[0] - 1
    longest = 0
    for c in range(C):
        longest = max(longest, offsets[c + 1] - offsets[c])
    # [kind, to, from] for one kind of move, as the kernels of the trellis have it.
    moves = np.empty((1, L, L))
    shift = np.full(1, -np.inf)
    for x in range(L):
        for y in range(L):
            moves[0, y, x] = transitions[x, y]
            shift[0] = max(shift[0], transitions[x, y])
    scaled = np.empty((1, L, L))
    scaled_back = np.empty((1, L, L))
    for x in range(L):
        for y in range(L):
            scaled[0, x, y] = np.exp(transitions[x, y] - shift[0])
            scaled_back[0, y, x] = scaled[0, x, y]
    kinds = np.zeros(longest, np.int8)
    alpha = np.empty((longest, L))
    beta = np.empty((longest, L))
    close = np.empty((longest, L))
    weight = np.empty((longest, L))
    scale = np.empty(longest)
    terms = np.empty(L)
    for c in range(C):
        first, last = offsets[c], offsets[c + 1]
        N = last - first
        e = emissions[first:last]
        y_true = labels[first:last]
        safe, log_z = forward_scaled(e, kinds[:N], scaled, shift, start, end, alpha[:N], weight[:N], scale[:N])
        if safe:
            backward_scaled(kinds[:N], scaled_back, end, alpha[:N], weight[:N], scale[:N], beta[:N], close[:N])
            for j in range(N):
                for y in range(L):
                    slopes[first + j, y] = alpha[j, y] * beta[j, y]
            for j in range(1, N):
                for y in range(L):
                    g = weight[j, y] * beta[j, y] / scale[j]
                    if g > 0.0:
                        for x in range(L):
                            pairs[x, y] += alpha[j - 1, x] * scaled[0, x, y] * g
        else:
            log_z = forward_log(e, kinds[:N], moves, start, end, alpha[:N], terms)
            backward_log(e, kinds[:N], moves, end, beta[:N], close[:N], terms)
            for j in range(N):
                for y in range(L):
                    slopes[first + j, y] = np.exp(alpha[j, y] + beta[j, y] - log_z)
            for j in range(1, N):
                for y in range(L):
                    for x in range(L):
                        pairs[x, y] += np.exp(alpha[j - 1, x] + transitions[x, y] + e[j, y] + beta[j, y] - log_z)
        losses[c] = log_z - path_score(e, kinds[:N], moves, start, end, y_true)
        for y in range(L):
            firsts[y] += slopes[first, y]
            lasts[y] += slopes[last - 1, y]
        firsts[y_true[0]] -= 1.0
        lasts[y_true[N - 1]] -= 1.0
        for j in range(N):
            slopes[first + j, y_true[j]] -= 1.0
            if j > 0:
                pairs[y_true[j - 1], y_true[j]] -= 1.0
