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

from conformal.trellis.jit import kernel
from conformal.trellis.kernels.forward import path_score

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Labels = npt.NDArray[np.int16]

NONE = -1
UNKNOWN = -2
EPSILON = 2.220446049250313e-16

# Columns of a heap node: a sidetrack (its state and the label it takes), children, length of the right spine.
STATE, LABEL, LEFT, RIGHT, DEPTH = 0, 1, 2, 3, 4
# Columns of a queue entry: a sidetrack, the labeling before it, the heap node it heads (NONE: a later sidetrack
# of the node's state).
PREFIX, NODE = 2, 3


@kernel
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


@kernel
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
    L = start.shape[0]
    if state == 0:
        out, into, reach = start, best[0], top
    else:
        j, x = (state - 1) // L, (state - 1) % L
        out, into, reach = moves_from[kinds[j + 1], x], best[j + 1], rest[j, x]
    loss = -1.0 if label == NONE else reach - (out[label] + into[label])
    found_loss, found = np.inf, NONE
    for y in range(L):
        here = reach - (out[y] + into[y])
        if here < found_loss and (here > loss or (here == loss and y > label)) and y != straight:
            found_loss, found = here, y
    return found_loss, found


@kernel
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
        out, into, reach = start, best[0], top
    else:
        j, x = (state - 1) // L, (state - 1) % L
        out, into, reach = moves_from[kinds[j + 1], x], best[j + 1], rest[j, x]
    for y in range(L):
        if out[y] + into[y] == reach:
            return y
    return NONE


@kernel
def _push(queue: Ints, queued: int, totals: Floats, entry: int) -> None:
    """Put an entry into the binary heap of the first `queued` places; there must be room for it."""
    hole = queued
    while hole > 0:
        parent = (hole - 1) // 2
        if totals[queue[parent]] <= totals[entry]:
            break
        queue[hole] = queue[parent]
        hole = parent
    queue[hole] = entry


@kernel
def _pop(queue: Ints, queued: int, totals: Floats) -> int:
    """Take the entry with the least total out of the binary heap of the first `queued` places."""
    taken = queue[0]
    last = queue[queued - 1]
    hole, child = 0, 1
    while child < queued - 1:
        if child + 1 < queued - 1 and totals[queue[child + 1]] < totals[queue[child]]:
            child += 1
        if totals[last] <= totals[queue[child]]:
            break
        queue[hole] = queue[child]
        hole = child
        child = 2 * hole + 1
    queue[hole] = last
    return int(taken)


@kernel
def _insert(
    node_loss: Floats,
    node_parts: Ints,
    nodes: int,
    heap: int,
    loss: float,
    label: int,
    state: int,
    spine: Ints,
) -> int:
    """Insert a sidetrack into a persistent leftist heap; the new root is the last node written.

    Copies the nodes on the right spine that are cheaper; their number is logarithmic in the heap's size. Returns
    the new number of nodes; the caller has made room.
    """
    depth = 0
    below = heap
    while below != NONE and node_loss[below] < loss:
        spine[depth] = below
        depth += 1
        below = node_parts[below, RIGHT]
    node_loss[nodes] = loss
    node_parts[nodes, LABEL] = label
    node_parts[nodes, STATE] = state
    node_parts[nodes, LEFT] = below
    node_parts[nodes, RIGHT] = NONE
    node_parts[nodes, DEPTH] = 1
    for d in range(depth - 1, -1, -1):
        merged = nodes
        nodes += 1
        old = spine[d]
        left = node_parts[old, LEFT]
        left_depth = node_parts[left, DEPTH] if left != NONE else 0
        node_loss[nodes] = node_loss[old]
        node_parts[nodes, LABEL] = node_parts[old, LABEL]
        node_parts[nodes, STATE] = node_parts[old, STATE]
        if left_depth < node_parts[merged, DEPTH]:
            node_parts[nodes, LEFT] = merged
            node_parts[nodes, RIGHT] = left
            node_parts[nodes, DEPTH] = left_depth + 1
        else:
            node_parts[nodes, LEFT] = left
            node_parts[nodes, RIGHT] = merged
            node_parts[nodes, DEPTH] = node_parts[merged, DEPTH] + 1
    return nodes + 1


@kernel
def _more(values: Floats, size: int) -> Floats:
    larger = np.empty(size)
    larger[: values.shape[0]] = values
    return larger


@kernel
def _more_rows(rows: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    larger = np.empty((size, rows.shape[1]), dtype=rows.dtype)
    larger[: rows.shape[0]] = rows
    return larger


@kernel
def _precedes(scores: Floats, labels: Labels, a: int, b: int) -> bool:
    """Order of labelings: higher score first, equal scores lexicographic."""
    if scores[a] != scores[b]:
        return bool(scores[a] > scores[b])
    for j in range(labels.shape[1]):
        if labels[a, j] != labels[b, j]:
            return bool(labels[a, j] < labels[b, j])
    return False


@kernel
def _order(scores: Floats, labels: Labels) -> npt.NDArray[np.int64]:
    """Merge sort by `_precedes`; runs that are in order already, the usual case, are only looked at."""
    n = scores.shape[0]
    order = np.arange(n)
    spare = np.empty_like(order)
    width = 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle = min(low + width, n)
            high = min(low + 2 * width, n)
            if middle >= high or not _precedes(scores, labels, order[middle], order[middle - 1]):
                continue
            i, j = low, middle
            for t in range(low, high):
                if j >= high or (i < middle and not _precedes(scores, labels, order[j], order[i])):
                    spare[t] = order[i]
                    i += 1
                else:
                    spare[t] = order[j]
                    j += 1
            order[low:high] = spare[low:high]
        width *= 2
    return order


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


@kernel
def enumerate_best(
    emissions: Floats,  # (N, L), N >= 1
    kinds: npt.NDArray[np.int8],  # (N,)
    moves: Floats,  # (2, L, L) [kind, to, from]
    moves_from: Floats,  # (2, L, L) [kind, from, to]
    start: Floats,  # (L,)
    end: Floats,  # (L,)
    k: int,
    lowest: float,
    tie_limit: int,
) -> tuple[Labels, Floats, bool]:
    """Return labels (found, N), scores (found,) and whether nothing further has a score >= `lowest`.

    found <= k; higher scores first, equal scores lexicographic. Losses and scores add the same numbers in
    different orders, so the search goes on through everything within rounding of the k-th labeling and the score
    itself decides; should more than `tie_limit` labelings share the k-th place, the lexicographically first are
    taken.
    """
    N, L = emissions.shape
    best = np.empty((N, L))
    rest = np.empty((N, L))
    backward_best(emissions, kinds, moves, end, best, rest)
    top = -np.inf
    for y in range(L):
        top = max(top, start[y] + best[0, y])
    if top == -np.inf:
        return np.empty((0, N), dtype=np.int16), np.empty(0), True

    states = 1 + N * L
    root = np.full(states, UNKNOWN, dtype=np.int32)
    straight = np.full(states, UNKNOWN, dtype=np.int16)
    trail = np.empty(N + 1, dtype=np.int32)
    spine = np.empty(64, dtype=np.int32)  # a leftist heap with a longer one would have 2^64 nodes

    nodes, node_room = 0, 2 * N + 96
    node_loss = np.empty(node_room)
    node_parts = np.empty((node_room, 5), dtype=np.int32)

    entries, queued, room = 0, 0, 2 * min(k, 256) + 64
    total = np.empty(room)  # loss of the labeling an entry stands for
    base = np.empty(room)  # loss of the labeling it deviates from
    parts = np.empty((room, 4), dtype=np.int32)
    queue = np.empty(room, dtype=np.int32)

    found, capacity = 0, min(k, 256) + 8
    labels = np.empty((capacity, N), dtype=np.int16)
    scores = np.empty(capacity)
    losses = np.empty(capacity)

    unit = 16.0 * (N + 4) * EPSILON  # rounding of a sum of N terms, with room to spare, per unit of magnitude
    size = abs(top)
    within = np.inf  # losses beyond this have scores below `lowest`
    tie_end = np.inf  # losses beyond this have scores below the k-th
    state, label, prefix, loss = (
        NONE,
        NONE,
        NONE,
        0.0,
    )  # the labeling to write: its sidetrack, what it deviates from
    exhausted, overflow = False, False
    while True:
        # Write the labeling: its prefix, its sidetrack, then straight on.
        if found == capacity:
            capacity *= 2
            labels = _more_rows(labels, capacity)
            scores = _more(scores, capacity)
            losses = _more(losses, capacity)
        row = labels[found]
        j, reached = -1, 0
        if state != NONE:
            j = (state - 1) // L if state > 0 else -1
            row[: j + 1] = labels[prefix, : j + 1]
            j += 1
            row[j] = label
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
            row[j] = straight[here]
            here = 1 + j * L + straight[here]
        root[here] = NONE  # the last token offers no way on
        scores[found] = path_score(emissions, kinds, moves, start, end, row)
        losses[found] = loss
        found += 1
        if found == 1:
            for j in range(N):
                size += abs(emissions[j, row[j]])
            within = top - lowest + unit * (size + abs(lowest)) if lowest > -np.inf else np.inf
        if found == k:
            tie_end = loss + unit * (size + loss)
        if found == k + tie_limit:
            overflow = True
            break

        # Make the sidetrack heaps along the way, last token first.
        for w in range(waiting - 1, -1, -1):
            here = trail[w]
            cost, to = _sidetrack_after(here, straight[here], NONE, kinds, moves_from, start, best, rest, top)
            j = (here - 1) // L if here > 0 else -1
            heap = root[1 + (j + 1) * L + straight[here]]
            if to != NONE:
                if nodes + 65 > node_room:
                    node_room *= 2
                    node_loss = _more(node_loss, node_room)
                    node_parts = _more_rows(node_parts, node_room)
                nodes = _insert(node_loss, node_parts, nodes, heap, cost, to, here, spine)
                heap = nodes - 1
            root[here] = heap

        # Offer it with one more sidetrack. (An entry's total is loss + cost; within rounding of exact.)
        if entries + 4 > room:
            room *= 2
            total = _more(total, room)
            base = _more(base, room)
            parts = _more_rows(parts, room)
            queue = _more_rows(queue.reshape(-1, 1), room).reshape(-1)
        heap = root[reached]
        if heap != NONE and loss + node_loss[heap] <= within:
            total[entries] = loss + node_loss[heap]
            base[entries] = loss
            parts[entries, STATE] = node_parts[heap, STATE]
            parts[entries, LABEL] = node_parts[heap, LABEL]
            parts[entries, PREFIX] = found - 1
            parts[entries, NODE] = heap
            _push(queue, queued, total, entries)
            entries += 1
            queued += 1

        # Take the cheapest, and offer what it was preferred to.
        if queued == 0:
            exhausted = True
            break
        if total[queue[0]] > tie_end:
            break
        taken = _pop(queue, queued, total)
        queued -= 1
        state, label, prefix, loss = (
            parts[taken, STATE],
            parts[taken, LABEL],
            parts[taken, PREFIX],
            total[taken],
        )
        before = base[taken]
        cost, to = _sidetrack_after(state, straight[state], label, kinds, moves_from, start, best, rest, top)
        if to != NONE and before + cost <= within:
            total[entries] = before + cost
            base[entries] = before
            parts[entries, STATE] = state
            parts[entries, LABEL] = to
            parts[entries, PREFIX] = prefix
            parts[entries, NODE] = NONE
            _push(queue, queued, total, entries)
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
                    _push(queue, queued, total, entries)
                    entries += 1
                    queued += 1

    if overflow:
        middle = losses[k - 1]
        spread = tie_end - middle
        kept = 0
        while losses[kept] < middle - spread:
            kept += 1
        found = kept + _first_in_tie(
            kinds, moves_from, start, best, rest, top, middle - spread, tie_end, k - kept, labels[kept:k]
        )
        for r in range(kept, found):
            scores[r] = path_score(emissions, kinds, moves, start, end, labels[r])
    order = _order(scores[:found], labels[:found])
    kept = 0
    while kept < found and kept < k and scores[order[kept]] >= lowest:
        kept += 1
    chosen = order[:kept]
    return labels[chosen], scores[chosen], exhausted and (kept == found or kept < k)
