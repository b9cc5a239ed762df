"""The k best labelings, exactly: lazy enumeration over sidetracks of the best labeling (after Eppstein, 1998).

A backward Viterbi pass gives every state (token, label) the score of its best completion. A *sidetrack* leaves a
state by a label other than the best next one and costs the difference, its *loss* (>= 0). Every labeling is the
best one plus an ordered list of sidetracks, and its loss is their sum. For each state a persistent leftist heap
holds the sidetracks met along its best completion, one node per token that has any; heaps of neighbouring states
share all but a few nodes, and are made only for states the search reaches. A priority queue then yields labelings
by increasing loss: each one popped offers at most four successors.

Further sidetracks of a state are found by scanning its L moves for the next larger (loss, label), so nothing is
sorted or stored per move.

State numbers: 0 is the position before the first token, 1 + j * L + y is label y at token j.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from conformal.trellis.jit import inner_kernel, kernel
from conformal.trellis.kernels.heaps import (
    LABEL,
    LEFT,
    NONE,
    RIGHT,
    STATE,
    insert,
    more,
    more_rows,
    order_labelings,
    pop,
    push,
)
from conformal.trellis.kernels.viterbi import backward_best, rounding, score_all

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int16]

UNKNOWN = -2

# Columns of a queue entry: a sidetrack, the labeling before it, the heap node it heads (NONE: a later sidetrack
# of the node's state).
PREFIX, NODE = 2, 3


@inner_kernel
def _sidetrack_after(
    state: int,
    straight: int,
    label: int,
    kinds: npt.NDArray[np.int8],
    moves_from: Floats,  # (2, L, L) [kind, from, to]
    start: Floats,
    best: Floats,  # (N, L)
    rest: Floats,  # (N, L)
    top: float,
) -> tuple[float, int]:
    """Return the state's sidetrack right after `label` in increasing (loss, label); label NONE: the cheapest.

    `straight` is the label of the best move, which is no sidetrack. (inf, NONE) when there are no more.
    """
    # Written without views of rows: each would cost two atomic reference counts, more than the scan itself.
    L = start.shape[0]
    found_loss, found = np.inf, NONE
    if state == 0:
        loss = -1.0 if label == NONE else top - (start[label] + best[0, label])
        for y in range(L):
            here = top - (start[y] + best[0, y])
            if here < found_loss and (here > loss or (here == loss and y > label)) and y != straight:
                found_loss, found = here, y
        return found_loss, found
    j = (state - 1) // L
    x = state - 1 - j * L
    kind = kinds[j + 1]
    reach = rest[j, x]
    loss = -1.0 if label == NONE else reach - (moves_from[kind, x, label] + best[j + 1, label])
    for y in range(L):
        here = reach - (moves_from[kind, x, y] + best[j + 1, y])
        if here < found_loss and (here > loss or (here == loss and y > label)) and y != straight:
            found_loss, found = here, y
    return found_loss, found


@inner_kernel
def _straight_on(
    state: int,
    kinds: npt.NDArray[np.int8],
    moves_from: Floats,
    start: Floats,
    best: Floats,
    rest: Floats,
    top: float,
) -> int:
    """Return the lowest label that reaches the state's best completion."""
    L = start.shape[0]
    if state == 0:
        for y in range(L):
            if start[y] + best[0, y] == top:
                return y
        return NONE
    j = (state - 1) // L
    x = state - 1 - j * L
    for y in range(L):
        if moves_from[kinds[j + 1], x, y] + best[j + 1, y] == rest[j, x]:
            return y
    return NONE


@kernel
def _first_in_tie(
    kinds: npt.NDArray[np.int8],
    moves_from: Floats,  # (2, L, L) [kind, from, to]
    start: Floats,
    best: Floats,
    rest: Floats,
    top: float,
    low: float,
    high: float,
    wanted: int,
    labels: Labels,  # (wanted, N) out
) -> int:
    """Write the lexicographically first labelings with a loss in [low, high]; return how many there are.

    Depth-first by increasing label; a prefix is followed only if its best completion is inside the range, so no
    branch is a dead end except the labelings better than `low`.
    """
    N, L = best.shape
    prefix = np.empty(N, dtype=np.int16)
    losses = np.empty(N + 1)  # loss of the prefix before each token
    losses[0] = 0.0
    prefix[0] = -1
    found = 0
    j = 0
    while j >= 0:
        y = prefix[j] + 1
        while y < L:
            if j == 0:
                here = top - (start[y] + best[0, y])
            else:
                x = prefix[j - 1]
                here = rest[j - 1, x] - (moves_from[kinds[j], x, y] + best[j, y])
            if losses[j] + here <= high:
                break
            y += 1
        if y == L:
            j -= 1
            continue
        prefix[j] = y
        losses[j + 1] = losses[j] + here
        if j < N - 1:
            j += 1
            prefix[j] = -1
        elif losses[N] >= low:
            labels[found] = prefix
            found += 1
            if found == wanted:
                return found
    return found


# What a stretch of the search ends with, and the places of its state between stretches.
EXHAUSTED, ENOUGH, TOO_MANY_TIES, NO_ROOM = 0, 1, 2, 3
FOUND, ENTRIES, QUEUED, NODES, LEAVES, BY, AFTER = 0, 1, 2, 3, 4, 5, 6
LOSS, SIZE, WITHIN, TIE_END = 0, 1, 2, 3


@inner_kernel
def _search(
    emissions: Floats,  # (N, L)
    kinds: npt.NDArray[np.int8],  # (N,)
    moves_from: Floats,  # (2, L, L) [kind, from, to]
    start: Floats,  # (L,)
    best: Floats,  # (N, L)
    rest: Floats,  # (N, L)
    top: float,
    k: int,
    lowest: float,
    limit_size: float,  # magnitude of the numbers `lowest` was computed from
    tie_limit: int,
    labels: Labels,  # (capacity, N) out
    losses: Floats,  # (capacity,) out
    root: npt.NDArray[np.int32],  # (1 + N * L,) heap of each state
    straight: Labels,  # (1 + N * L,) best way on from each state
    trail: npt.NDArray[np.int32],  # (N + 1,)
    spine: npt.NDArray[np.int32],  # (64,)
    node_loss: Floats,
    node_parts: npt.NDArray[np.int32],
    total: Floats,  # loss of the labeling a queue entry stands for
    base: Floats,  # loss of the labeling it deviates from
    parts: npt.NDArray[np.int32],
    queue: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],  # (7,) state
    reals: Floats,  # (4,) state
    new_nodes: int,
) -> int:
    """Write labelings by increasing loss until there are enough, no more, or no room for another.

    Arrays are grown by the caller: assigning arrays inside this loop would cost a pair of atomic reference
    counts per array and labeling, as much as the search itself.
    """
    N, L = emissions.shape
    unit = rounding(N)
    found, entries, queued, nodes = counts[FOUND], counts[ENTRIES], counts[QUEUED], counts[NODES]
    # The labeling to write next: it leaves `state` by `label`, equals labeling `prefix` before, and loses `loss`.
    state, label, prefix, loss = counts[LEAVES], counts[BY], counts[AFTER], reals[LOSS]
    size, within, tie_end = reals[SIZE], reals[WITHIN], reals[TIE_END]
    while True:
        if found == losses.shape[0] or entries + 4 > total.shape[0] or nodes + new_nodes > node_loss.shape[0]:
            counts[FOUND], counts[ENTRIES], counts[QUEUED], counts[NODES] = found, entries, queued, nodes
            counts[LEAVES], counts[BY], counts[AFTER], reals[LOSS] = state, label, prefix, loss
            reals[SIZE], reals[WITHIN], reals[TIE_END] = size, within, tie_end
            return NO_ROOM

        # Write the labeling: its prefix, its sidetrack, then straight on.
        j, reached = -1, 0
        if state != NONE:
            last = (state - 1) // L if state > 0 else -1
            for i in range(last + 1):
                labels[found, i] = labels[prefix, i]
            j = last + 1
            labels[found, j] = label
            reached = 1 + j * L + label
        here = reached
        waiting = 0
        while j < N - 1:
            if straight[here] == UNKNOWN:
                straight[here] = _straight_on(here, kinds, moves_from, start, best, rest, top)
            if root[here] == UNKNOWN:
                trail[waiting] = here
                waiting += 1
            j += 1
            labels[found, j] = straight[here]
            if found > 0 and labels[found, j] == labels[0, j]:
                # Back on the best labeling: the rest is known, and so are its heaps.
                for i in range(j + 1, N):
                    labels[found, i] = labels[0, i]
                break
            here = 1 + j * L + straight[here]
        if j == N - 1:
            root[1 + j * L + labels[found, j]] = NONE  # the last token offers no way on
        losses[found] = loss
        found += 1
        if found == 1:
            size = abs(top)
            for i in range(N):
                size += abs(emissions[i, labels[0, i]])
            if lowest > -np.inf:
                within = top - lowest + unit * (size + limit_size)
        if found == k:
            tie_end = loss + unit * (size + loss)
        if found == k + tie_limit:
            counts[FOUND] = found
            reals[TIE_END] = tie_end
            return TOO_MANY_TIES

        # Make the sidetrack heaps along the way, last token first.
        for w in range(waiting - 1, -1, -1):
            here = trail[w]
            cost, to = _sidetrack_after(here, straight[here], NONE, kinds, moves_from, start, best, rest, top)
            j = (here - 1) // L if here > 0 else -1
            heap = root[1 + (j + 1) * L + straight[here]]
            if to != NONE:
                nodes = insert(node_loss, node_parts, nodes, heap, cost, to, here, spine)
                heap = nodes - 1
            root[here] = heap

        # Offer it with one more sidetrack.
        heap = root[reached]
        if heap != NONE and loss + node_loss[heap] <= within:
            total[entries] = loss + node_loss[heap]
            base[entries] = loss
            parts[entries, STATE] = node_parts[heap, STATE]
            parts[entries, LABEL] = node_parts[heap, LABEL]
            parts[entries, PREFIX] = found - 1
            parts[entries, NODE] = heap
            push(queue, queued, total, entries)
            entries += 1
            queued += 1

        # Take the cheapest, and offer what it was preferred to. Enough are there once it is surely worse than the
        # k-th, and surely not below `lowest`: what is within rounding of that is looked at, so that nobody guesses.
        if queued == 0:
            counts[FOUND] = found
            return EXHAUSTED
        next_loss = total[queue[0]]
        if next_loss > tie_end and (lowest == -np.inf or next_loss <= top - lowest - unit * (size + limit_size)):
            counts[FOUND] = found
            return ENOUGH
        taken = pop(queue, queued, total)
        queued -= 1
        state, label, prefix = parts[taken, STATE], parts[taken, LABEL], parts[taken, PREFIX]
        loss, before = total[taken], base[taken]
        cost, to = _sidetrack_after(state, straight[state], label, kinds, moves_from, start, best, rest, top)
        if to != NONE and before + cost <= within:
            total[entries] = before + cost
            base[entries] = before
            parts[entries, STATE] = state
            parts[entries, LABEL] = to
            parts[entries, PREFIX] = prefix
            parts[entries, NODE] = NONE
            push(queue, queued, total, entries)
            entries += 1
            queued += 1
        if parts[taken, NODE] != NONE:
            for side in (LEFT, RIGHT):
                heap = node_parts[parts[taken, NODE], side]
                if heap != NONE and before + node_loss[heap] <= within:
                    total[entries] = before + node_loss[heap]
                    base[entries] = before
                    parts[entries, STATE] = node_parts[heap, STATE]
                    parts[entries, LABEL] = node_parts[heap, LABEL]
                    parts[entries, PREFIX] = prefix
                    parts[entries, NODE] = heap
                    push(queue, queued, total, entries)
                    entries += 1
                    queued += 1


@kernel
def enumerate_best(
    emissions: Floats,  # (N, L), N >= 1
    kinds: npt.NDArray[np.int8],  # (N,)
    moves: Floats,  # (2, L, L) [kind, to, from]
    moves_from: Floats,  # (2, L, L) [kind, from, to]
    start: Floats,  # (L,)
    end: Floats,  # (L,)
    k: int,
    above: float,
    log_z: float,
    tie_limit: int,
) -> tuple[Labels, Floats, bool]:
    """Return labels (found, N), scores (found,) and whether nothing further has `score - log_z >= above`.

    found <= k; higher scores first, equal scores lexicographic. Losses and scores add the same numbers in
    different orders, so the search goes on through everything within rounding of the k-th labeling and the score
    itself decides; should more than `tie_limit` labelings share the k-th place, the lexicographically first are
    taken.
    """
    lowest, limit_size = -np.inf, 0.0
    if above > -np.inf:
        lowest, limit_size = above + log_z, abs(above) + abs(log_z)
    N, L = emissions.shape
    best = np.empty((N, L))
    rest = np.empty((N, L))
    backward_best(emissions, kinds, moves, end, best, rest)
    top = -np.inf
    for y in range(L):
        top = max(top, start[y] + best[0, y])
    if top == -np.inf:
        return np.empty((0, N), dtype=np.int16), np.empty(0), True

    root = np.full(1 + N * L, UNKNOWN, dtype=np.int32)
    straight = np.full(1 + N * L, UNKNOWN, dtype=np.int16)
    trail = np.empty(N + 1, dtype=np.int32)
    spine = np.empty(64, dtype=np.int32)  # a leftist heap with a longer one would have 2^64 nodes
    # A labeling makes at most N + 1 heaps, each of at most N + 1 states: a node and a copied right spine.
    new_nodes = (N + 1) * (2 + int(np.log2(N + 2)))
    node_loss: npt.NDArray[Any] = np.empty(2 * new_nodes)
    node_parts: npt.NDArray[Any] = np.empty((2 * new_nodes, 5), dtype=np.int32)
    capacity = min(k, 128) + 8
    labels: npt.NDArray[Any] = np.empty((capacity, N), dtype=np.int16)
    losses: npt.NDArray[Any] = np.empty(capacity)
    total: npt.NDArray[Any] = np.empty(4 * capacity)
    base: npt.NDArray[Any] = np.empty(4 * capacity)
    parts: npt.NDArray[Any] = np.empty((4 * capacity, 4), dtype=np.int32)
    queue: npt.NDArray[Any] = np.empty((4 * capacity, 1), dtype=np.int32)
    counts = np.array([0, 0, 0, 0, NONE, NONE, NONE])
    reals = np.array([0.0, 0.0, np.inf, np.inf])
    while True:
        ended = _search(
            emissions, kinds, moves_from, start, best, rest, top, k, lowest, limit_size, tie_limit, labels, losses,
            root, straight, trail, spine, node_loss, node_parts, total, base, parts, queue[:, 0], counts, reals,
            new_nodes,
        )  # fmt: skip
        if ended != NO_ROOM:
            break
        if counts[FOUND] == losses.shape[0]:
            labels = more_rows(labels, 2 * losses.shape[0])
            losses = more(losses, 2 * losses.shape[0])
        if counts[ENTRIES] + 4 > total.shape[0]:
            queue = more_rows(queue, 2 * total.shape[0])
            parts = more_rows(parts, 2 * total.shape[0])
            base = more(base, 2 * total.shape[0])
            total = more(total, 2 * total.shape[0])
        if counts[NODES] + new_nodes > node_loss.shape[0]:
            node_parts = more_rows(node_parts, 2 * node_loss.shape[0])
            node_loss = more(node_loss, 2 * node_loss.shape[0])

    found = counts[FOUND]
    if ended == TOO_MANY_TIES:
        middle = losses[k - 1]
        spread = reals[TIE_END] - middle
        kept = 0
        while losses[kept] < middle - spread:
            kept += 1
        found = kept + _first_in_tie(
            kinds, moves_from, start, best, rest, top, middle - spread, middle + spread, k - kept, labels[kept:k]
        )
    scores = np.empty(found)
    score_all(emissions, kinds, moves, start, end, labels[:found], scores)
    order = order_labelings(scores, labels[:found])
    kept = 0
    while kept < found and kept < k and scores[order[kept]] - log_z >= above:
        kept += 1
    left = kept < found and scores[order[kept]] - log_z >= above
    chosen = np.empty((kept, N), dtype=np.int16)
    for r in range(kept):
        for j in range(N):
            chosen[r, j] = labels[order[r], j]
    return chosen, scores[order[:kept]], ended == EXHAUSTED and not left
