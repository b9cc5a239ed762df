"""Exact law of the span methods that use the rank: one entity a task, fresh calibration every trial (METHODS 6.5)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil

import numpy as np
import pytest

from conformal.pairs import StackedPairs
from conformal.quantile import StackedTable
from conformal.rows import EntityRows
from conformal.scores import EntityMethod, Tuned
from conformal.subsequence import SpanScores
from conformal.tuning import tune_spans

TRIALS = 200_000
N = 16
ALPHA = "0.18"
K = ceil(Fraction("0.82") * (N + 1))

Judge = Callable[..., bool]


def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[SpanScores, np.ndarray]:
    """Entities with their probability and the first rank that holds them: the less likely, the later."""
    hard = rng.random(shape)
    p = np.clip(rng.beta(8 - 6 * hard, 2), 1e-12, 1.0)
    rank = np.minimum(rng.geometric(0.95 - 0.6 * hard), 40)
    return SpanScores(p, np.minimum(1.0, p + (1 - p) * rng.random(shape)), rank), rank


@pytest.fixture(scope="module")
def drawn() -> tuple[SpanScores, np.ndarray]:
    return draw(np.random.default_rng(1), (TRIALS, N + 1))


def frozen(name: str) -> EntityMethod:
    scored, rank = draw(np.random.default_rng(2), (500,))
    rows = EntityRows.of(
        np.arange(500), ["PER"] * 500, probability=scored.probability, cumulative=scored.cumulative, rank=rank
    )
    return tune_spans(EntityMethod(name), rows, alpha=ALPHA)


@pytest.mark.parametrize("name", ["raps+nc1", "raps+nc2", "conditional+nc1", "conditional+nc2"])
def test_frozen_span_methods_obey_the_exact_law(name: str, drawn: tuple[SpanScores, np.ndarray], obeys: Judge) -> None:
    method = frozen(name)
    scores = method.scores(drawn[0], rank=drawn[1])
    law = np.where(np.isfinite(scores).sum(axis=1) >= K, K / (N + 1), 1.0)
    if name.startswith("conditional"):
        assert np.isinf(scores).any()  # the cap does cut
    covered = StackedTable(scores[:, :-1]).contains(scores[:, -1], ALPHA)
    assert obeys(covered, law)
    assert not obeys(scores[:, -1] <= np.sort(scores[:, :-1], axis=1)[:, K - 2], law)  # one rank too low


@pytest.mark.parametrize("name", ["naive+nc1", "naive+nc2"])
def test_the_naive_intersection_keeps_its_bound(name: str, drawn: tuple[SpanScores, np.ndarray]) -> None:
    for share in ("0.2", "0.5", "0.8"):
        method = EntityMethod(name, tuned=Tuned(share=share))
        pairs = method.scores(drawn[0], rank=drawn[1])
        covered = StackedPairs(pairs[:, :-1], share).contains(pairs[:, -1], ALPHA)
        assert covered.mean() >= 0.82 - 4.5 * np.sqrt(0.15 / TRIALS)
