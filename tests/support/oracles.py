"""Independent ways to the same answers: full enumeration, list-Viterbi, recursive enumeration."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np

from conformal import LabelSpace, Potentials


def score(p: Potentials, labels: tuple[int, ...]) -> float:
    """The chain score, added left to right."""
    if not labels:
        return 0.0
    total = p.start[labels[0]] + p.emissions[0, labels[0]]
    for j in range(1, len(labels)):
        x, y = labels[j - 1], labels[j]
        total += p.end[x] + p.start[y] if j in p.boundaries else p.transitions[x, y]
        total += p.emissions[j, y]
    return float(total + p.end[labels[-1]])


def all_labelings(p: Potentials) -> list[tuple[float, tuple[int, ...]]]:
    """Every legal labeling as (score, labels), best first, ties lexicographic."""
    scored = ((score(p, y), y) for y in itertools.product(range(p.label_count), repeat=p.length))
    return sorted(((s, y) for s, y in scored if s > -math.inf), key=lambda item: (-item[0], item[1]))


def log_sum(values: list[float]) -> float:
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values))


def probabilities(p: Potentials) -> list[tuple[float, tuple[int, ...]]]:
    ranked = all_labelings(p)
    log_z = log_sum([s for s, _ in ranked])
    return [(math.exp(s - log_z), y) for s, y in ranked]


def list_viterbi(p: Potentials, k: int) -> list[tuple[float, tuple[int, ...]]]:
    """Keep the k best prefixes of every label at every token."""
    moves = p.chain.moves_from
    beams: list[list[tuple[float, tuple[int, ...]]]] = [
        [(p.start[y] + p.emissions[0, y], (y,))] for y in range(p.label_count)
    ]
    for j in range(1, p.length):
        beams = [
            sorted(
                (
                    (s + moves[p.kinds[j], x, y] + p.emissions[j, y], (*path, y))
                    for x, beam in enumerate(beams)
                    for s, path in beam
                    if s + moves[p.kinds[j], x, y] + p.emissions[j, y] > -math.inf
                ),
                key=lambda item: (-item[0], item[1]),
            )[:k]
            for y in range(p.label_count)
        ]
    finished = [(s + p.end[path[-1]], path) for beam in beams for s, path in beam if s + p.end[path[-1]] > -math.inf]
    return sorted(finished, key=lambda item: (-item[0], item[1]))[:k]


def recursive_enumeration(p: Potentials, k: int) -> list[float]:
    """Scores of the k best by the recursive enumeration of Jimenez and Marzal: the r-th best way into a state
    is the next best over its predecessors' ranked ways."""
    moves = p.chain.moves_from
    ranked: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
    waiting: dict[tuple[int, int], list[tuple[float, int, int]]] = {}

    def predecessors(j: int, y: int) -> list[tuple[float, int, int]]:
        return [
            (way[0] + moves[p.kinds[j], x, y] + p.emissions[j, y], x, 1)
            for x in range(p.label_count)
            if (way := best(j - 1, x, 1)) is not None and moves[p.kinds[j], x, y] + p.emissions[j, y] > -math.inf
        ]

    def best(j: int, y: int, r: int) -> tuple[float, int, int] | None:
        if j == 0:
            value = p.start[y] + p.emissions[0, y]
            return (value, -1, 0) if r == 1 and value > -math.inf else None
        state = (j, y)
        if state not in ranked:
            waiting[state] = predecessors(j, y)
            ranked[state] = []
        while len(ranked[state]) < r:
            if ranked[state]:
                _, x, used = ranked[state][-1]
                following = best(j - 1, x, used + 1)
                if following is not None:
                    gain = moves[p.kinds[j], x, y] + p.emissions[j, y]
                    waiting[state].append((following[0] + gain, x, used + 1))
            if not waiting[state]:
                return None
            top = max(waiting[state])
            waiting[state].remove(top)
            ranked[state].append(top)
        return ranked[state][r - 1]

    last = p.length - 1
    heads = dict.fromkeys(range(p.label_count), 1)
    found: list[float] = []
    while len(found) < k:
        options = [(way[0] + p.end[y], y) for y, r in heads.items() if (way := best(last, y, r)) is not None]
        options = [option for option in options if option[0] > -math.inf]
        if not options:
            break
        value, y = max(options)
        found.append(value)
        heads[y] += 1
    return found


def span_masses(p: Potentials, space: LabelSpace) -> dict[tuple[int, int, str], float]:
    """All entity probabilities of a small text by enumeration."""
    total: dict[tuple[int, int, str], float] = {}
    for q, y in probabilities(p):
        for span in space.spans(y):
            total[tuple(span)] = total.get(tuple(span), 0.0) + q
    return total


@cache
def random_chain(seed: int, classes: int) -> tuple[LabelSpace, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    space = LabelSpace([f"c{i}" for i in range(classes)])
    L = len(space)
    transitions = np.where(space.allowed, rng.normal(size=(L, L)), -np.inf)
    start = np.where(space.allowed_start, rng.normal(size=L), -np.inf)
    return space, transitions, start, rng.normal(size=L)
