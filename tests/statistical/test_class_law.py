"""Exact law of class thresholds: a random class-w entity of a random task that has one (METHODS 6.1 to 6.3)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from math import ceil

import numpy as np
import pytest
from scipy import stats

from conformal.quantile import StackedTable, hierarchical_threshold, threshold
from conformal.subsequence import SpanScores, label_group, score_spans

TRIALS = 200_000
CHUNK = 20_000


def trials(function: Callable[[np.random.Generator], np.ndarray], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([function(rng) for _ in range(TRIALS // CHUNK)], axis=-1)


# Hierarchical thresholds.


def clusters(rng: np.random.Generator, tasks: int, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tasks whose entities share one difficulty: scores and sizes (R, tasks * most), the test task's score (R,).

    A task's size depends on its difficulty: the large tasks are the easy ones.
    """
    hard = rng.exponential(size=(CHUNK, tasks + 1))
    sizes = np.where(hard < 0.7, most, 1 + (hard < 1.5).astype(int))  # (R, tasks + 1)
    slots = np.arange(most)
    present = slots < sizes[:, :-1, None]  # (R, tasks, most)
    scores = np.broadcast_to(hard[:, :-1, None], present.shape).reshape(CHUNK, -1)
    each = np.where(present, sizes[:, :-1, None], 0).reshape(CHUNK, -1)
    return scores, each, hard[:, -1]


@pytest.mark.parametrize(("tasks", "alpha"), [(9, "0.1"), (19, "0.05")])
def test_hierarchical_threshold_covers_like_k_over_n_plus_1(tasks: int, alpha: str, obeys: Callable[..., bool]) -> None:
    expected = ceil((1 - Fraction(alpha)) * (tasks + 1)) / (tasks + 1)

    def run(rng: np.random.Generator) -> np.ndarray:
        scores, sizes, test = clusters(rng, tasks, 3)
        right = test <= hierarchical_threshold(scores, sizes, alpha)
        # The paper's way: every entity counts alike, as if they were independent.
        pooled = test <= threshold(scores, alpha, where=sizes > 0)
        # The paper's Algorithm 2 keeps what lies at or above the threshold.
        reversed_ = test >= hierarchical_threshold(scores, sizes, alpha)
        return np.stack([right, pooled, reversed_])

    right, pooled, reversed_ = trials(run, tasks)
    assert obeys(right, expected)
    assert not obeys(reversed_, expected)
    assert not obeys(pooled, expected)


def test_pooled_entities_of_few_tasks_undercover(obeys: Callable[..., bool]) -> None:
    """30 tasks with 5 like entities each at 0.95: pooling takes the 29th of 30 tasks and covers 29/31."""

    def run(rng: np.random.Generator) -> np.ndarray:
        hard = rng.exponential(size=(CHUNK, 31))
        scores = np.repeat(hard[:, :-1], 5, axis=1)
        sizes = np.full(scores.shape, 5)
        return np.stack(
            [hard[:, -1] <= hierarchical_threshold(scores, sizes, "0.05"), hard[:, -1] <= threshold(scores, "0.05")]
        )

    hierarchical, pooled = trials(run, 3)
    assert obeys(hierarchical, 30 / 31)
    assert obeys(pooled, 29 / 31)
    assert not obeys(pooled, 30 / 31)
    assert pooled.mean() < 0.94


def test_hierarchical_threshold_with_independent_entities(obeys: Callable[..., bool]) -> None:
    """M independent entities in each of n tasks: the threshold is the c-th of nM scores, c = ceil(0.9 (n+1) M)."""
    n, size = 19, 3
    c = ceil(Fraction("0.9") * (n + 1) * size)

    def run(rng: np.random.Generator) -> np.ndarray:
        scores = rng.exponential(size=(CHUNK, n * size + 1))
        tau = hierarchical_threshold(scores[:, :-1], np.full(n * size, size), "0.1")
        off = np.sort(scores[:, :-1], axis=1)[:, c - 2]
        return np.stack([scores[:, -1] <= tau, scores[:, -1] <= off])

    right, off = trials(run, 4)
    assert obeys(right, c / (n * size + 1))
    assert not obeys(off, c / (n * size + 1))


def test_uneven_tasks_stay_between_target_and_one_rank_more() -> None:
    """Within a task partly alike, sizes from 1 to 4: at least 1-alpha, and no more than two ranks above."""

    def run(rng: np.random.Generator) -> np.ndarray:
        shared = rng.exponential(size=(CHUNK, 20))
        sizes = rng.integers(1, 5, size=(CHUNK, 20))
        own = shared[..., None] + rng.exponential(size=(CHUNK, 20, 4))
        present = np.arange(4) < sizes[..., None]
        each = np.where(present, sizes[..., None], 0)[:, :-1].reshape(CHUNK, -1)
        tau = hierarchical_threshold(own[:, :-1].reshape(CHUNK, -1), each, "0.1")
        return own[:, -1, 0] <= tau  # entities of a task are exchangeable: the first is a random one

    covered = trials(run, 5)
    error = 4.5 * np.sqrt(0.09 / TRIALS)
    assert 0.9 - error <= covered.mean() <= 0.9 + 2 / 20 + error


# Rare classes: each task has one entity of one of four classes, the rare ones differ in difficulty.

NAMES = ("PER", "LOC", "EVT", "LAW")
CLASS_SHARES = np.array([0.55, 0.20, 0.15, 0.10])
CLASS_DIFFICULTY = np.array([1.0, 2.0, 4.0, 9.0])
N_MIN = 8


@cache
def group_of(label: int, counts: tuple[int, ...]) -> tuple[bool, ...]:
    found = label_group(NAMES[label], dict(zip(NAMES, counts, strict=True)), n_min=N_MIN)
    return tuple(name in found for name in NAMES)


def test_merged_classes_cover_as_their_law_says(obeys: Callable[..., bool]) -> None:
    rng = np.random.default_rng(21)
    runs, n = 270_000, 24
    label = rng.choice(4, size=(runs, n + 1), p=CLASS_SHARES)
    scores = rng.exponential(size=(runs, n + 1)) * CLASS_DIFFICULTY[label]
    counts = np.stack([(label[:, :-1] == w).sum(axis=1) for w in range(4)], axis=1)
    members = np.array([group_of(w, tuple(row)) for w, row in zip(label[:, -1].tolist(), counts.tolist(), strict=True)])
    inside = np.take_along_axis(members, label[:, :-1], axis=1)  # (R, n)
    sizes = inside.sum(axis=1)
    enough = sizes + 1 >= N_MIN
    expected = np.array([ceil(Fraction("0.9") * (m + 1)) / (m + 1) for m in range(n + 1)])[sizes]
    covered = scores[:, -1] <= threshold(scores[:, :-1], "0.1", where=inside)
    assert obeys(covered[enough], expected[enough])
    for merged in (False, True):
        here = enough & ((members.sum(axis=1) > 1) == merged)
        z = (covered[here].sum() - expected[here].sum()) / np.sqrt((expected[here] * (1 - expected[here])).sum())
        assert here.sum() > 20_000
        assert abs(z) < 4.5, merged
    # A rare class that borrows from all classes, common ones included, is refused.
    rare = enough & (members.sum(axis=1) > 1) & (label[:, -1] == 3)
    borrowed = scores[:, -1] <= threshold(scores[:, :-1], "0.1")
    assert borrowed[rare].mean() < 0.75


# Scores over W and O. A span has three classes and O; the true label's place among the four is random.

PLACES = np.array([0.72, 0.17, 0.08, 0.03])
N = 16
ALPHA = "0.18"
K = ceil(Fraction("0.82") * (N + 1))
CLASSES = 3


def spans(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (R, n + 1, 4) of class, class, class, O, and the column of the true label, a class."""
    shape = (CHUNK, N + 1)
    p = rng.exponential(size=(*shape, 4))
    p = -np.sort(-p, axis=-1)
    p /= p.sum(axis=-1, keepdims=True)  # likeliest first
    place = rng.choice(4, size=shape, p=PLACES)
    # The true class stands at its place; O takes one of the other places, the other classes the rest.
    order = np.argsort(rng.random((*shape, 4)) + 10.0 * (np.arange(4) == place[..., None]), axis=-1)
    true = np.take_along_axis(p, order[..., 3:], -1)
    return np.concatenate([true, np.take_along_axis(p, order[..., :3], -1)], axis=-1), place


def entity_scores(p: np.ndarray, name: str) -> np.ndarray:
    """Scores of the true class, which stands in column 0, by the library."""
    flat = score_spans(p.reshape(-1, p.shape[-1])).scores(name)
    return flat[:, 0].reshape(p.shape[:-1])


def reversed_scores(p: np.ndarray, name: str) -> np.ndarray:
    """The paper's printed inequality: labels at most as likely, O left out."""
    held = p[..., :CLASSES] <= p[..., :1]
    return held.sum(axis=-1).astype(float) if name == "nc3" else (p[..., :CLASSES] * held).sum(axis=-1)


def place_law() -> float:
    ends = np.concatenate([[0.0], np.cumsum(PLACES)])
    return float(sum(PLACES[r] * stats.binom.cdf(K - 1, N, ends[r]) for r in range(4)))


def judged(p: np.ndarray, scored: SpanScores, name: str) -> list[np.ndarray]:
    scores = scored.scores(name)[:, 0].reshape(p.shape[:-1])
    table = StackedTable(scores[:, :-1])
    ordered = np.sort(scores[:, :-1], axis=1)
    rows = [
        table.contains(scores[:, -1], ALPHA),
        scores[:, -1] <= ordered[:, K - 2],
        scores[:, -1] >= ordered[:, K - 1],  # Algorithm 2
    ]
    if name != "nc1":
        # Calibrated over W and O, then predicted without O or with the inequality turned round.
        rows.append(table.contains(entity_scores(p[:, -1:, :CLASSES], name)[:, 0], ALPHA))
        rows.append(table.contains(reversed_scores(p[:, -1], name), ALPHA))
    return rows


@pytest.fixture(scope="module")
def entity_trials() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("nc1", "nc2", "nc3")}
    for _ in range(TRIALS // CHUNK):
        p, _places = spans(rng)
        scored = score_spans(p.reshape(-1, 4))
        for name, found in parts.items():
            found.append(np.stack(judged(p, scored, name)))
    return {name: np.concatenate(found, axis=1) for name, found in parts.items()}


@pytest.mark.parametrize("name", ["nc1", "nc2", "nc3"])
def test_entity_scores_cover_as_their_law_says(
    name: str, entity_trials: dict[str, np.ndarray], obeys: Callable[..., bool]
) -> None:
    expected = place_law() if name == "nc3" else K / (N + 1)
    right, *wrong = entity_trials[name]
    assert obeys(right, expected)
    for number, variant in enumerate(wrong):
        assert not obeys(variant, expected), number


@pytest.mark.parametrize("name", ["nc2", "nc3"])
def test_junk_spans_conform_without_outside_and_with_reversed_scores(name: str, obeys: Callable[..., bool]) -> None:
    """A junk span (O nearly certain) holds a class exactly when the class threshold is at least 2 places.

    The law of that event follows from the calibration places alone. The variants, used in calibration and in
    prediction alike, keep class coverage but let junk conform, or call the likeliest class strangest.
    """
    junk = np.array([0.004, 0.002, 0.001, 0.993])
    if name == "nc3":  # place 2 of 4
        held = 1 - stats.binom.cdf(N - K, N, 1 - PLACES[0])  # threshold >= 2: at most K - 1 scores equal 1
        expected = float(held)
    else:  # nc2: 0.997 <= threshold; only truths in the last place (sum 1) reach that, up to rounding
        expected = float(1 - stats.binom.cdf(N - K, N, PLACES[3] * 1.0))

    def run(rng: np.random.Generator) -> np.ndarray:
        p, _ = spans(rng)
        if name == "nc2":  # coarse probabilities: only the full sum exceeds 0.997
            p = p * 0.9 + 0.025
        own = np.broadcast_to(junk, (CHUNK, 4))
        right = StackedTable(entity_scores(p[:, :-1], name)).contains(entity_scores(own, name), ALPHA)
        without = StackedTable(entity_scores(p[:, :-1, :CLASSES], name)).contains(
            entity_scores(own[:, :CLASSES], name), ALPHA
        )
        turned = StackedTable(reversed_scores(p[:, :-1], name)).contains(reversed_scores(own, name), ALPHA)
        return np.stack([right, without, turned])

    right, without, turned = trials(run, 12)
    assert obeys(right, expected)
    assert not obeys(without, expected)
    assert not obeys(turned, expected)
    assert without.mean() > 0.99  # every junk span conforms


def test_outside_label_is_covered_on_junk_spans(obeys: Callable[..., bool]) -> None:
    """The fifth label: O is calibrated on candidate spans that are no entity, 1/M each (METHODS 6.3)."""

    def run(rng: np.random.Generator) -> np.ndarray:
        hard = rng.exponential(size=(CHUNK, N + 1))
        sizes = rng.integers(1, 4, size=(CHUNK, N + 1))
        outside = 1 / (1 + hard)  # P(O) of the task's junk spans
        p = np.stack([(1 - outside) * 0.6, (1 - outside) * 0.3, (1 - outside) * 0.1, outside], axis=-1)
        scores = score_spans(p.reshape(-1, 4)).scores("nc1")[:, 3].reshape(hard.shape)
        present = np.arange(3) < sizes[:, :-1, None]
        each = np.where(present, sizes[:, :-1, None], 0).reshape(CHUNK, -1)
        tau = hierarchical_threshold(np.repeat(scores[:, :-1], 3, axis=1), each, ALPHA)
        return scores[:, -1] <= tau

    assert obeys(trials(run, 13), K / (N + 1))
