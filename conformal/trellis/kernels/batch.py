"""Decode many texts of one chain in one call, so that a short text does not pay for the way into the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from conformal.trellis.jit import kernel
from conformal.trellis.kernels.forward import forward_log, forward_scaled
from conformal.trellis.kernels.heaps import more
from conformal.trellis.kernels.kbest import enumerate_best
from conformal.trellis.kernels.viterbi import backward_best, best_only

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int16]
Offsets = npt.NDArray[np.int64]


@kernel
def decode_many(
    emissions: Floats,  # (T, L) all texts, one after the other
    kinds: npt.NDArray[np.int8],  # (T,)
    tokens: Offsets,  # (B + 1,) text b has tokens tokens[b] .. tokens[b + 1]
    moves: Floats,  # (2, L, L) [kind, to, from]
    moves_from: Floats,  # (2, L, L) [kind, from, to]
    scaled_moves: Floats,  # (2, L, L) [kind, from, to]
    shift: Floats,  # (2,)
    start: Floats,  # (L,)
    end: Floats,  # (L,)
    try_scaled: bool,
    k: int,
    above: float,
    tie_limit: int,
) -> tuple[Labels, Offsets, Floats, Floats, Offsets, Floats, npt.NDArray[np.bool_]]:
    """Return flat labels and offsets (B + 1,), scores, log-probabilities and offsets, log partitions, exhausted.

    Text b has labelings `rows[b] .. rows[b + 1]`. A log partition of -inf marks a text without legal labeling.
    """
    B = tokens.shape[0] - 1
    L = emissions.shape[1]
    longest = 0
    for b in range(B):
        longest = max(longest, tokens[b + 1] - tokens[b])
    alpha = np.empty((longest, L))
    weight = np.empty((longest, L))
    scale = np.empty(longest)
    terms = np.empty(L)
    log_z = np.zeros(B)
    exhausted = np.ones(B, dtype=np.bool_)
    cells = np.zeros(B + 1, dtype=np.int64)
    rows = np.zeros(B + 1, dtype=np.int64)
    labels: npt.NDArray[Any] = np.empty(max(16, min(k, 64) * tokens[B]), dtype=np.int16)
    scores: npt.NDArray[Any] = np.empty(max(16, min(k, 64) * B))
    one: npt.NDArray[Any] = np.empty((1, longest), dtype=np.int16)
    one_score: npt.NDArray[Any] = np.empty(1)
    for b in range(B):
        first, N = tokens[b], tokens[b + 1] - tokens[b]
        count = 0
        if N == 0:
            count = 1 if above <= 0.0 else 0
            found_labels, found_scores = one[:, :0], one_score
            one_score[0] = 0.0
        else:
            own = emissions[first : first + N]
            own_kinds = kinds[first : first + N]
            safe = False
            if try_scaled:
                safe, log_z[b] = forward_scaled(
                    own, own_kinds, scaled_moves, shift, start, end, alpha[:N], weight[:N], scale[:N]
                )
            if not safe:
                log_z[b] = forward_log(own, own_kinds, moves, start, end, alpha[:N], terms)
            clear = False
            if k == 1 and above == -np.inf and log_z[b] > -np.inf:
                backward_best(own, own_kinds, moves, end, alpha[:N], weight[:N])
                found_labels, found_scores = one[:, :N], one_score
                clear, exhausted[b] = best_only(
                    own, own_kinds, moves, moves_from, start, end, alpha[:N], found_labels, found_scores
                )
                count = 1
            if not clear:
                found_labels, found_scores, exhausted[b] = enumerate_best(
                    own, own_kinds, moves, moves_from, start, end, k, above, log_z[b], tie_limit
                )
                count = found_scores.shape[0]
        rows[b + 1] = rows[b] + count
        cells[b + 1] = cells[b] + count * N
        if rows[b + 1] > scores.shape[0]:
            scores = more(scores, 2 * rows[b + 1])
        if cells[b + 1] > labels.shape[0]:
            larger = np.empty(2 * cells[b + 1], dtype=np.int16)
            larger[: cells[b]] = labels[: cells[b]]
            labels = larger
        for r in range(count):
            scores[rows[b] + r] = found_scores[r]
            for j in range(N):
                labels[cells[b] + r * N + j] = found_labels[r, j]
    labels = labels[: cells[B]].copy()
    scores = scores[: rows[B]].copy()
    log_probabilities = np.empty_like(scores)
    for b in range(B):
        for r in range(rows[b], rows[b + 1]):
            log_probabilities[r] = scores[r] - log_z[b]
    return labels, cells, scores, log_probabilities, rows, log_z, exhausted


@kernel
def extract_spans(
    labels: Labels,  # (flat)
    tokens: Offsets,  # (B + 1,)
    rows: Offsets,  # (B + 1,)
) -> tuple[Offsets, npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return offsets (rows + 1,), starts, ends and classes of the entities of legal labelings.

    Label ids are those of `LabelSpace`: 0 is O, 2w + 1 begins class w, 2w + 2 continues it.
    """
    begins = 0
    for label in labels:
        begins += label & 1
    offsets = np.zeros(rows[-1] + 1, dtype=np.int64)
    starts = np.empty(begins, dtype=np.int32)
    ends = np.empty(begins, dtype=np.int32)
    classes = np.empty(begins, dtype=np.int32)
    at = 0
    cell = 0
    for b in range(rows.shape[0] - 1):
        N = tokens[b + 1] - tokens[b]
        for r in range(rows[b], rows[b + 1]):
            j = 0
            while j < N:
                label = labels[cell + j]
                if label & 1:
                    starts[at] = j
                    classes[at] = label >> 1
                    j += 1
                    while j < N and labels[cell + j] == label + 1:
                        j += 1
                    ends[at] = j
                    at += 1
                else:
                    j += 1
            offsets[r + 1] = at
            cell += N
    return offsets, starts, ends, classes
