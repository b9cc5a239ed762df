"""Exact law of the methods that combine scores: one fresh calibration set and one test point per trial.

Whatever is frozen comes from a tuning part drawn once, as METHODS 4.4 to 4.7 and 7.3 have it. Exact methods obey
Binomial(R, k/(n+1)); the paper's conditional, Šidák and index sets are held to the same judgement and fail it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import ceil

import numpy as np
import pytest

from conformal.integrated_paper import index_reach, sidak_thresholds
from conformal.pairs import StackedPairs
from conformal.quantile import StackedTable, threshold
from conformal.rows import EntityRows, TaskRows
from conformal.scores import Boundary, Method, Ranks, Tuned
from conformal.tuning import tune

TRIALS = 200_000
N = 16
ALPHA = "0.18"
K = ceil(Fraction("0.82") * (N + 1))
LENGTH = 12  # labelings per task

Judge = Callable[..., bool]


def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Ranks:
    """Tasks with their own list of probabilities; harder tasks have flatter lists, and later truths."""
    hard = rng.random(shape)
    p = np.exp(-np.arange(LENGTH) * (0.3 + 2.0 * (1 - hard))[..., None]) * rng.uniform(0.7, 1.0, (*shape, LENGTH))
    p = -np.sort(-p, axis=-1)
    p /= p.sum(axis=-1, keepdims=True) * rng.uniform(1.0, 1.02, shape)[..., None]
    place = np.minimum(rng.geometric(1 - 0.5 * hard) - 1, LENGTH - 1)
    own = np.take_along_axis(p, place[..., None], -1)[..., 0]
    cumulative = np.take_along_axis(np.cumsum(p, axis=-1), place[..., None], -1)[..., 0]
    return Ranks(np.log(own), place + 1, cumulative)


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    rng = np.random.default_rng(77)
    parts = [draw(rng, (TRIALS // 10, N + 1)) for _ in range(10)]
    return Ranks(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in ("log_probability", "rank", "cumulative"))
    )


@pytest.fixture(scope="module")
def tuning() -> TaskRows:
    found = draw(np.random.default_rng(5), (400,))
    return TaskRows.of(["en/1-10"] * 400, found.log_probability, rank=found.rank, cumulative=found.cumulative)


def finite_law(scores: np.ndarray) -> np.ndarray:
    """Per trial: k/(n+1) if at least k of its n + 1 scores are finite, else the set is open and certain to cover."""
    return np.where(np.isfinite(scores).sum(axis=1) >= K, K / (N + 1), 1.0)


@pytest.mark.parametrize(
    "name", ["logrank+nc1", "raps+nc1", "raps+nc2", "conditional+nc1", "conditional+nc2", "joint+nc1", "joint+nc2"]
)
def test_frozen_scores_obey_the_exact_law(name: str, ranks: Ranks, tuning: TaskRows, obeys: Judge) -> None:
    method = tune(Method(name), tuning, alpha=ALPHA)
    assert method.worth == "exact"
    scores = method.scores(ranks)
    if name == "conditional+nc2":
        assert method.limit is not None
        assert method.limit < LENGTH  # the cap does cut
        assert np.isinf(scores).any()
    covered = StackedTable(scores[:, :-1]).contains(scores[:, -1], ALPHA)
    assert obeys(covered, finite_law(scores))
    ordered = np.sort(scores[:, :-1], axis=1)
    assert not obeys(scores[:, -1] <= ordered[:, K - 2], finite_law(scores))  # one rank too low


@pytest.mark.parametrize("name", ["raps+nc2", "conditional+nc2", "joint+nc1", "raps+nc1", "logrank+nc1"])
def test_smoothed_sets_obey_the_exact_law(name: str, ranks: Ranks, tuning: TaskRows, obeys: Judge) -> None:
    method = replace(tune(Method(name), tuning, alpha=ALPHA), boundary=Boundary.SMOOTHED)
    u = np.random.default_rng(9).random(ranks.rank.shape)
    scores = method.scores(ranks, u=u)
    covered = method.members(scores[:, -1], StackedTable(scores[:, :-1]), ALPHA, u=u[:, -1])
    assert obeys(covered, finite_law(scores) if method.smooths_scores else 0.82)


def test_a_truth_beyond_the_rank_limit_obeys_the_law_too(ranks: Ranks, obeys: Judge) -> None:
    """logrank goes on by probability: no score is infinite, however few ranks were looked at."""
    scores = Method("logrank+nc1", limit=2).scores(ranks)
    assert np.isfinite(scores).all()
    assert (ranks.rank > 2).mean() > 0.05
    assert obeys(StackedTable(scores[:, :-1]).contains(scores[:, -1], ALPHA), K / (N + 1))


def test_a_cap_taken_from_the_calibration_rows_themselves_breaks_the_law(obeys: Judge) -> None:
    """What exact `conditional` avoids: the cap depends on the rows that are then ranked against the test task."""
    rng = np.random.default_rng(3)
    rank = rng.random((TRIALS, N + 1))
    other = 1 - rank  # the rows just inside the first threshold have the smallest second score
    cap = threshold(rank[:, :-1], "0.06")
    scores = np.where(rank <= cap[:, None], other, np.inf)
    assert not obeys(StackedTable(scores[:, :-1]).contains(scores[:, -1], ALPHA), finite_law(scores))
    frozen = np.where(rank <= 0.94, other, np.inf)
    assert obeys(StackedTable(frozen[:, :-1]).contains(frozen[:, -1], ALPHA), finite_law(frozen))


@pytest.mark.parametrize("name", ["naive+nc1", "naive+nc2"])
def test_naive_intersection_keeps_its_bound(name: str, ranks: Ranks, obeys: Judge) -> None:
    for share in ("0.2", "0.5", "0.8"):
        method = Method(name, tuned=Tuned(share=share))
        pairs = method.scores(ranks)
        covered = StackedPairs(pairs[:, :-1], share).contains(pairs[:, -1], ALPHA)
        assert covered.mean() >= 0.82 - 4.5 * np.sqrt(0.15 / TRIALS)
    if name == "naive+nc1":
        return
    # Both at the full level, without splitting alpha: refused.
    both = [StackedTable(pairs[:, :-1, i]).contains(pairs[:, -1, i], ALPHA) for i in range(2)]
    assert (both[0] & both[1]).mean() < 0.82
    assert not obeys(both[0] & both[1], 0.82)


def test_the_papers_conditional_set_fails_the_law_that_the_exact_one_obeys(obeys: Judge) -> None:
    """Confident tasks have early truths and cumulative sums near 1, flat ones late truths and small sums.

    With the two scores in opposite order, the row that sets the first threshold always has the smallest second score:
    the claim k1/(n+1) * k2/(k1+1) becomes (k2-1)/(n+1), here 7/13 at target 0.56.
    """
    n, alpha, share = 12, "0.44", "0.35"
    rng = np.random.default_rng(12)
    rank = rng.integers(1, 900_000, (TRIALS, n + 1))
    ranks = Ranks(np.log(1e-9) - rank * 1e-9, rank, 1 - rank * 1e-6)
    method = Method("conditional_paper+nc2", limit=10**6, tuned=Tuned(share=share))
    assert method.worth == "approximate"
    pairs = method.scores(ranks)
    paper = StackedPairs(pairs[:, :-1], share, conditional=True).contains(pairs[:, -1], alpha)
    assert obeys(paper, 7 / 13)
    assert paper.mean() < 0.56 - 0.015
    assert not obeys(paper, 0.56)
    tuning = TaskRows.of(
        ["en/1-10"] * 400, np.full(400, -20.0), rank=rank[:400, 0], cumulative=1 - rank[:400, 0] * 1e-6
    )
    exact = tune(Method("conditional+nc2", limit=10**6), tuning, alpha=alpha)
    scores = exact.scores(ranks)
    assert np.isinf(scores).any()
    k = ceil(Fraction("0.56") * (n + 1))
    expected = np.where(np.isfinite(scores).sum(axis=1) >= k, k / (n + 1), 1.0)
    assert obeys(StackedTable(scores[:, :-1]).contains(scores[:, -1], alpha), expected)


# Entities: a task has s of them; entities of texts that list many are easy, those that stand alone are hard.


def entities(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of up to three entities (..., 3), -1 where there is none; their number; the O score of a span left out."""
    s = rng.integers(1, 4, shape)
    hard = rng.exponential(size=(*shape, 3)) / (s**3)[..., None]
    present = np.arange(3) < s[..., None]
    left_out = rng.exponential(size=shape) * s
    return np.where(present, hard, -1.0), s, left_out


def test_sidak_sets_fail_and_the_calibrated_integrated_set_obeys(obeys: Judge) -> None:
    rng = np.random.default_rng(41)
    scores, s, left_out = entities(rng, (400,))
    held = scores >= 0
    rows = EntityRows.of(
        [*np.nonzero(held)[0], *range(400)],
        ["PER"] * int(held.sum()) + ["O"] * 400,
        probability=np.exp(-np.concatenate([scores[held], left_out])),
    )
    logs = -rng.exponential(size=400) * s
    tasks = TaskRows.of(["en/1-10"] * 400, logs)
    alone = tune(Method("integrated"), tasks, entities=rows, classes=["PER"])
    joined = tune(Method("integrated+nc1"), tasks, entities=rows, classes=["PER"])
    assert alone.tuned is not None

    covered: dict[str, list[np.ndarray]] = {"sidak": [], "plain": [], "integrated": [], "smoothed": [], "joined": []}
    for _ in range(10):
        shape = (TRIALS // 10, N + 1)
        scores, s, left_out = entities(rng, shape)
        # The paper's way: class thresholds from pooled entities, Šidák by the (here: true) number of entities.
        pooled = scores[:, :-1].reshape(shape[0], -1)
        count = (pooled >= 0).sum(axis=1)
        levels = [
            1 - (1 - Fraction(ALPHA)),
            *(1 - Fraction((1 - 0.18) ** (1 / k)).limit_denominator(10**9) for k in (1, 2, 3)),
        ]
        taus = np.stack([threshold(pooled, level, where=pooled >= 0) for level in levels], axis=1)  # (R, 4)
        test, here = scores[:, -1], s[:, -1]
        covered["sidak"].append((test <= np.take_along_axis(taus, here[:, None], 1)).all(axis=1))
        covered["plain"].append((test <= taus[:, :1]).all(axis=1))
        assert count.min() >= N
        # Ours: one score per task.
        terms = np.where(scores >= 0, alone.tuned.part("PER")(scores), 0.0).max(axis=-1)
        worst = np.maximum(terms, alone.tuned.part("O")(left_out))
        ranks = Ranks(-rng.exponential(size=shape) * s, np.zeros(shape, np.int64), np.zeros(shape), None, worst)
        own = alone.scores(ranks)
        u = rng.random(shape[0])
        covered["integrated"].append(StackedTable(own[:, :-1]).contains(own[:, -1], ALPHA))
        covered["smoothed"].append(StackedTable(own[:, :-1]).contains(own[:, -1], ALPHA, u=u))
        both = joined.scores(ranks)
        covered["joined"].append(StackedTable(both[:, :-1]).contains(both[:, -1], ALPHA))
    found = {name: np.concatenate(parts) for name, parts in covered.items()}
    assert obeys(found["smoothed"], 0.82)
    assert obeys(found["joined"], K / (N + 1))
    assert 0.82 <= found["integrated"].mean() <= K / (N + 1) + 0.02  # ties of the frozen steps only add coverage
    assert not obeys(found["sidak"], 0.82)
    assert found["sidak"].mean() < 0.80
    assert not obeys(found["plain"], 0.82)


def test_sidak_thresholds_are_the_exact_ranks() -> None:
    scores = np.random.default_rng(0).permutation(np.arange(1.0, 100.0))
    assert sidak_thresholds(scores, "0.1", most=3).tolist() == [90.0, 90.0, 95.0, 97.0]
    assert np.isposinf(sidak_thresholds(scores, "0.01", most=2)[2])


def test_the_index_set_misses_truths_that_rank_after_their_parts(obeys: Judge) -> None:
    """30 % of tasks: y(1) has A, y(2) has B, the truth {A, B} is y(3). Every entity is found within two ranks."""
    rng = np.random.default_rng(8)
    runs = 200_000
    pair = rng.random((runs, N + 1)) < 0.3
    first = np.ones((runs, N + 1, 2), np.int64)  # first rank of A and B; single truths are y(1)
    first[..., 1] = np.where(pair, 2, 0)
    scores = first.astype(float)
    tau = threshold(scores[:, :-1].reshape(runs, -1), "0.1", where=scores[:, :-1].reshape(runs, -1) > 0)
    allowed = (first[:, -1] > 0) & (first[:, -1] <= tau[:, None])
    reach = np.array([index_reach(f, a) for f, a in zip(first[:2000, -1], allowed[:2000], strict=True)])
    truth = np.where(pair[:, -1], 3, 1)
    covered = truth <= np.where(allowed, first[:, -1], 1).max(axis=1)
    np.testing.assert_array_equal(reach, np.where(allowed, first[:, -1], 1).max(axis=1)[:2000])
    assert not obeys(covered, 0.9)
    assert covered.mean() < 0.75
