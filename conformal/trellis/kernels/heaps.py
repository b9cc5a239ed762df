"""Data structures of the search: a binary queue, persistent leftist heaps, growing arrays, the final order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from conformal.trellis.jit import inner_kernel, kernel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Labels = npt.NDArray[np.int16]

NONE = -1
# Columns of a heap node: a sidetrack (its state and the label it takes), children, length of the right spine.
STATE, LABEL, LEFT, RIGHT, DEPTH = 0, 1, 2, 3, 4


@inner_kernel
def push(queue: Ints, queued: int, totals: Floats, entry: int) -> None:
    """Put an entry into the binary heap of the first `queued` places; there must be room for it."""
    hole = queued
    while hole > 0:
        parent = (hole - 1) // 2
        if totals[queue[parent]] <= totals[entry]:
            break
        queue[hole] = queue[parent]
        hole = parent
    queue[hole] = entry


@inner_kernel
def pop(queue: Ints, queued: int, totals: Floats) -> int:
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


@inner_kernel
def insert(
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
def more(values: Floats, size: int) -> Floats:
    """Return a longer copy; the new places are unset."""
    larger = np.empty(size)
    larger[: values.shape[0]] = values
    return larger


@kernel
def more_rows(rows: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Return a copy with more rows; the new ones are unset."""
    larger = np.empty((size, rows.shape[1]), dtype=rows.dtype)
    larger[: rows.shape[0]] = rows
    return larger


@inner_kernel
def precedes(scores: Floats, labels: Labels, a: int, b: int) -> bool:
    """Order of labelings: higher score first, equal scores lexicographic."""
    if scores[a] != scores[b]:
        return bool(scores[a] > scores[b])
    for j in range(labels.shape[1]):
        if labels[a, j] != labels[b, j]:
            return bool(labels[a, j] < labels[b, j])
    return False


@kernel
def order_labelings(scores: Floats, labels: Labels) -> npt.NDArray[np.int64]:
    """Merge sort by `precedes`; runs that are in order already, the usual case, are only looked at."""
    n = scores.shape[0]
    order = np.arange(n)
    spare = np.empty_like(order)
    width = 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle = min(low + width, n)
            high = min(low + 2 * width, n)
            if middle >= high or not precedes(scores, labels, order[middle], order[middle - 1]):
                continue
            i, j = low, middle
            for t in range(low, high):
                if j >= high or (i < middle and not precedes(scores, labels, order[j], order[i])):
                    spare[t] = order[i]
                    i += 1
                else:
                    spare[t] = order[j]
                    j += 1
            order[low:high] = spare[low:high]
        width *= 2
    return order
