"""Exact law of full-sequence sets: one fresh calibration set and one test point per trial (METHODS 3 and 4).

Tasks come in three types with fixed lists of labeling probabilities; the truth of a task has a fixed rank
distribution and is sometimes out of reach. Scores then have finite support, and the coverage of every score and
boundary rule is a finite sum, worked out here without the library.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product
from math import ceil

import numpy as np
import pytest
from scipy import stats

from conformal.quantile import StackedTable, threshold
from conformal.scores import Boundary, Method, Ranks

TRIALS = 200_000
N = 16
ALPHA = "0.18"
K = ceil(Fraction("0.82") * (N + 1))  # 14

# Probabilities of the four best labelings of each type; the rest of the mass is never true.
LISTS = np.array([[0.5, 0.25, 0.125, 0.0625], [0.40625, 0.3125, 0.15625, 0.03125], [0.875, 0.09375, 0.015625, 2.0**-8]])
TYPE_SHARES = np.array([0.5, 0.2, 0.3])
RANK_SHARES = np.array([[0.70, 0.14, 0.08, 0.04], [0.40, 0.25, 0.15, 0.12], [0.85, 0.08, 0.03, 0.02]])  # rest: lost
LOST = 4

Expected = Callable[[Method], float]


class World:
    """Trials: arrays (R, n + 1), the last column being the test task."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shape = (TRIALS, N + 1)
        self.kind = rng.choice(3, size=shape, p=TYPE_SHARES)
        ends = np.cumsum(RANK_SHARES, axis=1)  # (3, 4)
        draw = rng.random(shape)
        self.place = (draw[..., None] >= ends[self.kind]).sum(axis=-1)  # 0..3 the rank, 4 lost
        self.u = rng.random(shape)
        self.ranks = self._describe(self.place)

    def _describe(self, place: np.ndarray) -> Ranks:
        reach = np.minimum(place, 3)
        lost = place == LOST
        logs = np.where(lost, -np.inf, np.log(LISTS)[self.kind, reach])
        cumulative = np.cumsum(LISTS, axis=1)[self.kind, reach]
        mass = LISTS.sum(axis=1)[self.kind]
        return Ranks(logs, np.where(lost, 0, place + 1), cumulative, mass)

    def scores(self, method: Method) -> np.ndarray:
        return method.scores(self.ranks, u=self.u if method.smooths_scores else None)

    def covered(self, method: Method) -> np.ndarray:
        scores = self.scores(method)
        above = self._describe(np.where((self.place > 0) & (self.place < LOST), self.place - 1, LOST))
        plain = Method(method.name, limit=method.limit, top_k=method.top_k).scores(above)[:, -1]
        place = self.place[:, -1]
        previous = np.where(place == 0, -np.inf, np.where(place == LOST, np.inf, plain))
        return method.members(scores[:, -1], StackedTable(scores[:, :-1]), ALPHA, previous=previous, u=self.u[:, -1])


@pytest.fixture(scope="module")
def world() -> World:
    return World(20_240_401)


# The law, from the definitions alone.


def atoms(method: Method) -> list[tuple[float, float, float]]:
    """(probability, score, score of the labeling ranked above) of every kind of truth, unsmoothed."""
    found: list[tuple[float, float, float]] = []
    for kind, share in enumerate(TYPE_SHARES):
        p = LISTS[kind] / (LISTS[kind].sum() if method.top_k else 1.0)
        by_name = {"nc1": 1 - p, "nc2": np.cumsum(p), "nc3": np.arange(1.0, 5.0)}
        scores = by_name[method.name]
        before = [-np.inf, *scores[:-1]]
        found.extend(zip(share * RANK_SHARES[kind], scores, before, strict=True))
        found.append((share * (1 - RANK_SHARES[kind].sum()), np.inf, np.inf))
    return found


def law(method: Method) -> float:
    points = atoms(method)
    if method.boundary is Boundary.SMOOTHED:
        if method.name == "nc1":
            return float(1 - Fraction(ALPHA))
        # Continuous but for the mass at +inf: with J of n + 1 finite, k/(n + 1) if J >= k, else certain.
        lost = sum(weight for weight, score, _ in points if score == np.inf)
        open_share = stats.binom.cdf(K - 1, N + 1, 1 - lost)
        return float(open_share + (1 - open_share) * K / (N + 1))
    values = sorted({score for _, score, _ in points})
    total = 0.0
    below = 0.0
    for t in values:
        at = sum(weight for weight, score, _ in points if score == t)
        under = sum(weight for weight, score, _ in points if score < t)
        for a, b in product(range(K), range(N + 1)):  # a scores below t, b equal to it: t is the threshold
            if a + b < K or a + b > N:
                continue
            chance = stats.multinomial.pmf([a, b, N - a - b], N, [under, at, max(0.0, 1 - under - at)])
            total += chance * covers_given(method, points, t, a, b)
            below += chance
    assert below == pytest.approx(1.0)
    return total


def covers_given(method: Method, points: list[tuple[float, float, float]], t: float, a: int, b: int) -> float:
    if t == np.inf:
        return 1.0
    sure = sum(weight for weight, score, _ in points if score < t)
    if method.boundary is Boundary.EARLY:
        return sure
    if method.boundary is Boundary.INCLUDE:
        return sure + sum(weight for weight, score, _ in points if score == t)
    total = sure
    for weight, score, before in points:
        if score >= t and before < t:
            low = max(before, 0.0)
            if method.boundary is Boundary.FULL:
                share = 1.0
            elif method.name == "nc3":
                share = (0.82 - a / N) / (b / N)
            else:
                share = (t - low) / (score - low)
            total += weight * min(max(share, 0.0), 1.0)
    return total


METHODS = [
    Method(name, boundary, 4, top_k)
    for name, boundary, top_k in product(("nc1", "nc2", "nc3"), Boundary, (None, 4))
    if top_k is None or boundary in (Boundary.INCLUDE, Boundary.SMOOTHED)
]


@pytest.mark.parametrize(
    "method", METHODS, ids=lambda m: f"{m.name}-{m.boundary.value}-{'top' if m.top_k else 'exact'}"
)
def test_score_and_boundary_rule_cover_as_their_law_says(
    world: World, method: Method, obeys: Callable[..., bool]
) -> None:
    assert obeys(world.covered(method), law(method))


@pytest.mark.parametrize("name", ["nc1", "nc2", "nc3"])
def test_exact_rules_keep_the_promise_and_early_breaks_it(name: str) -> None:
    assert law(Method(name, limit=4)) >= 0.82
    assert 0.82 <= law(Method(name, Boundary.SMOOTHED, 4)) <= 0.82 + 1 / (N + 1) + 0.01  # 0.01: chance of an open set
    assert law(Method(name, Boundary.EARLY, 4)) < 0.82


# The same judgement must refuse each of the known mistakes.


def sabotaged(world: World, method: Method, rank: Callable[[int], int], *, drop_lost: bool = False) -> np.ndarray:
    scores = world.scores(method)
    calibration, test = scores[:, :-1], scores[:, -1]
    kept = np.isfinite(calibration) if drop_lost else np.ones(calibration.shape, bool)
    ordered = np.sort(np.where(kept, calibration, np.inf), axis=1)
    k = np.array([rank(n) for n in range(N + 1)])[kept.sum(axis=1)]
    tau = np.where(k > kept.sum(axis=1), np.inf, np.take_along_axis(ordered, np.clip(k, 1, N)[:, None] - 1, 1)[:, 0])
    return test <= tau


def right_rank(n: int) -> int:
    return ceil(Fraction("0.82") * (n + 1))


@pytest.mark.parametrize(
    "method", [m for m in METHODS if not m.top_k and (m.boundary is Boundary.INCLUDE or m.smooths_scores)]
)
def test_the_judgement_refuses_wrong_ranks_and_dropped_labels(
    world: World, method: Method, obeys: Callable[..., bool]
) -> None:
    expected = law(method)
    assert obeys(sabotaged(world, method, right_rank), expected)  # the harness itself is sound
    assert not obeys(sabotaged(world, method, lambda n: right_rank(n) - 1), expected)
    assert not obeys(sabotaged(world, method, lambda n: right_rank(n) + 1), expected)
    assert not obeys(sabotaged(world, method, lambda n: n + 1 - right_rank(n)), expected)  # "k-th largest"
    assert not obeys(sabotaged(world, method, right_rank, drop_lost=True), expected)


@pytest.mark.parametrize("name", ["nc1", "nc2", "nc3"])
def test_the_judgement_refuses_wrong_smoothing(world: World, name: str, obeys: Callable[..., bool]) -> None:
    method = Method(name, Boundary.SMOOTHED, 4)
    plain = Method(name, limit=4)
    assert not obeys(world.covered(plain), law(method))
    if name == "nc1":  # one rank off in the smoothed p-value: n instead of n + 1 below the line
        scores = world.scores(method)
        calibration, test, u = scores[:, :-1], scores[:, -1], world.u[:, -1]
        greater = (calibration > test[:, None]).sum(axis=1)
        equal = (calibration == test[:, None]).sum(axis=1)
        assert obeys((greater + u * (1 + equal)) / (N + 1) > 0.18, 0.82)
        assert not obeys((greater + u * equal) / N > 0.18, 0.82)
    else:  # the draw left out of the calibration scores
        smooth, rough = world.scores(method)[:, -1], world.scores(plain)[:, :-1]
        assert not obeys(smooth <= threshold(rough, ALPHA), law(method))


def test_paper_rule_on_the_wrong_scale_is_refused(world: World, obeys: Callable[..., bool]) -> None:
    """Printed for nc1: (P(r-1) - tau) / (P(r-1) - P(r)), which mixes the scales of P and of 1 - P."""
    method = Method("nc1", Boundary.PAPER, 4)
    scores = 1 - np.exp(world.ranks.log_probability)
    tau = np.partition(scores[:, :-1], K - 1, axis=1)[:, K - 1]
    place, kind = world.place[:, -1], world.kind[:, -1]
    p = np.where(place == LOST, 0.0, LISTS[kind, np.minimum(place, 3)])
    before = np.where(place == 0, 1.0, LISTS[kind, np.clip(place - 1, 0, 3)])
    past = (1 - before < tau) & (scores[:, -1] >= tau) & (place < LOST)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (before - tau) / (before - p)
    printed = (scores[:, -1] < tau) | (past & (world.u[:, -1] <= share)) | (tau == 1.0)
    assert not obeys(printed, law(method))


@pytest.mark.parametrize(("n", "alpha"), [(9, "0.1"), (19, "0.05"), (60, "0.3"), (99, "0.01"), (99, "0.2")])
def test_continuous_scores_cover_with_probability_k_over_n_plus_1(
    n: int, alpha: str, obeys: Callable[..., bool]
) -> None:
    rng = np.random.default_rng(n)
    k = ceil((1 - Fraction(alpha)) * (n + 1))
    parts, offs = [], []
    for _ in range(10):
        scores = rng.exponential(size=(TRIALS // 10, n + 1))
        parts.append(scores[:, -1] <= threshold(scores[:, :-1], alpha))
        offs.append(scores[:, -1] <= np.sort(scores[:, :-1], axis=1)[:, k - 2])
    assert obeys(np.concatenate(parts), k / (n + 1))
    assert not obeys(np.concatenate(offs), k / (n + 1))
