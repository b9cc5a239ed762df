"""Weighted thresholds repair a known selection (METHODS 3.7)."""

from __future__ import annotations

import numpy as np

from conformal.quantile import ScoreTable, effective_sample_size, threshold

TRIALS = 20_000
N = 60


def test_weights_repair_a_known_selection_that_plain_ranks_do_not() -> None:
    """Easy tasks are chosen more often, with known probability; the promise is for a random task."""
    rng = np.random.default_rng(31)
    weighted = plain = 0
    for _ in range(TRIALS // 100):
        hard = rng.random((100, N * 4)) < 0.5
        chance = np.where(hard, 0.2, 0.8)  # easy tasks are chosen four times as often
        score = rng.exponential(size=hard.shape) * np.where(hard, 5.0, 1.0)
        chosen = rng.random(hard.shape) < chance
        test_hard = rng.random(100) < 0.5
        test = rng.exponential(size=100) * np.where(test_hard, 5.0, 1.0)
        for run in range(100):
            rows = np.flatnonzero(chosen[run])[:N]
            weights = 1 / chance[run, rows]
            table = ScoreTable.weighted(score[run, rows], weights, test_weight=5.0 if test_hard[run] else 1.25)
            weighted += bool(table.contains(test[run], "0.1"))
            plain += bool(test[run] <= threshold(score[run, rows], "0.1"))
            assert N / 2.5 < effective_sample_size(weights) < N
    error = 4.5 * np.sqrt(0.09 / TRIALS)
    assert weighted / TRIALS >= 0.9 - error
    assert weighted / TRIALS <= 0.9 + 0.06
    assert plain / TRIALS < 0.87
