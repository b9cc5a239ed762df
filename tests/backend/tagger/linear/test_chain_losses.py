"""The loss and its gradient, against all labelings one by one and against finite differences."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.tagger.linear.kernels import chain_losses
from backend.tagger.linear.objective import Examples, Objective, Penalty
from conformal.labels import LabelSpace


def scored(labels: tuple[int, ...], e: np.ndarray, moves: np.ndarray, start: np.ndarray, end: np.ndarray) -> float:
    total = start[labels[0]] + end[labels[-1]] + sum(e[j, y] for j, y in enumerate(labels))
    return float(total + sum(moves[x, y] for x, y in pairwise(labels)))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    classes=st.integers(1, 2),
    size=st.sampled_from([0.1, 3.0, 400.0]),
)
def test_loss_and_expectations_are_those_of_all_labelings(
    seed: int, lengths: list[int], classes: int, size: float
) -> None:
    rng = np.random.default_rng(seed)
    space = LabelSpace([f"c{i}" for i in range(classes)])
    L = len(space)
    offsets = np.cumsum([0, *lengths])
    e = rng.normal(size=(offsets[-1], L)) * size
    moves = np.where(space.allowed, rng.normal(size=(L, L)), -np.inf)
    start = np.where(space.allowed_start, rng.normal(size=L), -np.inf)
    end = rng.normal(size=L)
    labels = np.zeros(offsets[-1], np.int64)
    losses, slopes = np.empty(len(lengths)), np.empty_like(e)
    pairs, firsts, lasts = np.zeros((L, L)), np.zeros(L), np.zeros(L)
    wanted_pairs, wanted_firsts, wanted_lasts = np.zeros((L, L)), np.zeros(L), np.zeros(L)
    wanted_slopes, wanted_losses = np.zeros_like(e), []
    for first, last in pairwise(offsets):
        legal = [y for y in product(range(L), repeat=int(last - first)) if space.is_legal(y)]
        true = legal[int(rng.integers(len(legal)))]
        labels[first:last] = true
        scores = np.array([scored(y, e[first:last], moves, start, end) for y in legal])
        log_z = float(np.logaddexp.reduce(scores))
        wanted_losses.append(log_z - scored(true, e[first:last], moves, start, end))
        for y, weight in [*zip(legal, np.exp(scores - log_z), strict=True), (true, -1.0)]:
            wanted_slopes[first + np.arange(len(y)), y] += weight
            wanted_firsts[y[0]] += weight
            wanted_lasts[y[-1]] += weight
            for pair in pairwise(y):
                wanted_pairs[pair] += weight
    chain_losses(e, offsets, labels, moves, start, end, losses, slopes, pairs, firsts, lasts)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(slopes, wanted_slopes, atol=1e-9)
    np.testing.assert_allclose(pairs, wanted_pairs, atol=1e-9)
    np.testing.assert_allclose(firsts, wanted_firsts, atol=1e-9)
    np.testing.assert_allclose(lasts, wanted_lasts, atol=1e-9)


def examples_of(rng: np.random.Generator, space: LabelSpace, *, features: int, dense: int) -> Examples:
    lengths = np.array([3, 1, 5, 2])
    T = int(lengths.sum())
    counts = rng.integers(1, 5, size=T)
    labels = [space.repair(rng.integers(0, len(space), size=n))[0] for n in lengths]
    return Examples(
        rng.integers(-1, features, size=int(counts.sum())).astype(np.int32),
        np.concatenate([[0], np.cumsum(counts)]),
        rng.normal(size=(T, dense)).astype(np.float32),
        np.concatenate([[0], np.cumsum(lengths)]),
        np.concatenate(labels).astype(np.int64),
    )


@pytest.mark.parametrize("dense", [0, 3])
def test_the_gradient_is_that_of_finite_differences(dense: int) -> None:
    rng = np.random.default_rng(4)
    space = LabelSpace(["a", "b"])
    examples = examples_of(rng, space, features=6, dense=dense)
    centre = rng.normal(size=Objective(examples, space, features=6, penalty=Penalty(1, 1, 1)).size)
    objective = Objective(examples, space, features=6, penalty=Penalty(0.1, 0.7, 0.3), centre=centre)
    point = rng.normal(size=objective.size)
    _, gradient = objective(point)
    step = 1e-6
    for i in range(objective.size):
        moved = np.zeros(objective.size)
        moved[i] = step
        slope = (objective(point + moved)[0] - objective(point - moved)[0]) / (2 * step)
        assert gradient[i] == pytest.approx(slope, abs=1e-5), i


def test_some_chains_are_taken_in_the_order_asked_for() -> None:
    rng = np.random.default_rng(5)
    space = LabelSpace(["a"])
    examples = examples_of(rng, space, features=4, dense=2)
    point = rng.normal(size=Objective(examples, space, features=4, penalty=Penalty(1, 1, 1)).size)
    every = Objective(examples, space, features=4, penalty=Penalty(1, 1, 1)).losses(point)
    some = examples.take(np.array([2, 0]))
    np.testing.assert_array_equal(
        Objective(some, space, features=4, penalty=Penalty(1, 1, 1)).losses(point), every[[2, 0]]
    )
