"""The decoder of `kernels.kbest` in plain Python: slow, short, and meant to be read.

Same idea, same order: lazy enumeration over sidetracks with persistent heaps. The tests hold the two against each
other and both against full enumeration.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from conformal.trellis.potentials import Potentials

State = tuple[int, int]  # (token, label); (-1, 0) is the position before the first token
Sidetrack = tuple[float, int]  # (loss, label)


class Node(NamedTuple):
    """A leftist heap of states by their cheapest sidetrack; never changed, so heaps can share nodes."""

    loss: float
    state: State
    left: Node | None
    right: Node | None
    depth: int


def _insert(heap: Node | None, loss: float, state: State) -> Node:
    if heap is None or loss <= heap.loss:
        return Node(loss, state, heap, None, 1)
    left, right = heap.left, _insert(heap.right, loss, state)
    if left is None or left.depth < right.depth:
        left, right = right, left
    return Node(heap.loss, heap.state, left, right, 1 + (right.depth if right is not None else 0))


def enumerate_labelings(potentials: Potentials) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yield (loss, labeling) by increasing loss against the best labeling, until none is left (METHODS 2.1)."""
    N, L = potentials.emissions.shape
    if N == 0:
        yield 0.0, ()
        return
    emissions = potentials.emissions
    moves = potentials.chain.moves_from  # [kind, from, to]

    best = np.full((N, L), -np.inf)  # best score from this label on
    best[N - 1] = emissions[N - 1] + potentials.end
    for j in range(N - 2, -1, -1):
        onward = moves[potentials.kinds[j + 1]] + best[j + 1]  # (from, to)
        best[j] = emissions[j] + onward.max(axis=1)

    @cache
    def ways_on(state: State) -> list[Sidetrack]:
        """Return the moves out of a state by increasing (loss, label); the first one is the straight one."""
        token, label = state
        before = potentials.start if token < 0 else moves[potentials.kinds[token + 1], label]
        values = before + best[token + 1]
        return sorted((float(values.max() - v), y) for y, v in enumerate(values) if v > -np.inf)

    def straight_on(state: State) -> State:
        return state[0] + 1, ways_on(state)[0][1]

    @cache
    def sidetracks(state: State) -> Node | None:
        """Return the heap of everything that can be left for along the state's best completion."""
        if state[0] == N - 1:
            return None
        heap = sidetracks(straight_on(state))
        ways = ways_on(state)
        return heap if len(ways) == 1 else _insert(heap, ways[1][0], state)

    origin: State = (-1, 0)
    if not np.isfinite((potentials.start + best[0]).max()):
        return
    # A queue entry: total loss, tie number, loss before the sidetrack, labels before it, its state, its place in
    # ways_on, and the heap node it heads (None for a later sidetrack of the same state).
    queue: list[tuple[float, int, float, tuple[int, ...], State, int, Node | None]] = []
    number = 0

    def offer(before: float, prefix: tuple[int, ...], state: State, place: int, node: Node | None) -> None:
        nonlocal number
        number += 1
        heapq.heappush(queue, (before + ways_on(state)[place][0], number, before, prefix, state, place, node))

    def complete(prefix: tuple[int, ...], state: State) -> tuple[int, ...]:
        while state[0] < N - 1:
            state = straight_on(state)
            prefix += (state[1],)
        return prefix

    labeling = complete((), origin)
    yield 0.0, labeling
    if (heap := sidetracks(origin)) is not None:
        offer(0.0, labeling, heap.state, 1, heap)
    while queue:
        loss, _, before, source, state, place, node = heapq.heappop(queue)
        if place + 1 < len(ways_on(state)):
            offer(before, source, state, place + 1, None)
        for child in (node.left, node.right) if node is not None else ():
            if child is not None:
                offer(before, source, child.state, 1, child)
        reached = (state[0] + 1, ways_on(state)[place][1])
        labeling = complete((*source[: state[0] + 1], reached[1]), reached)
        yield loss, labeling
        if (heap := sidetracks(reached)) is not None:
            offer(loss, labeling, heap.state, 1, heap)
