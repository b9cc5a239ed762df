"""Bounds for mean losses: against scipy and against each other, and how often they hold (METHODS 11.4)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom

from conformal.errors import InvalidArgument, InvalidScores
from conformal.risk import (
    betting_upper,
    clopper_pearson_upper,
    hoeffding_bentkus,
    risk_is_below,
    risk_sequence,
    upper_bound,
)

some_losses = st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0]), min_size=1, max_size=30)


@pytest.mark.parametrize(("wrong", "total"), [(0, 10), (3, 50), (50, 50), (1, 400)])
def test_clopper_pearson_is_the_quantile_of_a_beta(wrong: int, total: int) -> None:
    wanted = 1.0 if wrong == total else beta.ppf(0.95, wrong + 1, total - wrong)
    assert clopper_pearson_upper(wrong, total) == pytest.approx(wanted, abs=1e-9)


@given(some_losses)
def test_hoeffding_bentkus_is_where_both_tails_turn(losses: list[float]) -> None:
    bound = hoeffding_bentkus(losses)
    n, mean = len(losses), float(np.mean(losses))

    def tail(risk: float) -> float:
        parts = [(mean, risk), (1 - mean, 1 - risk)]
        entropy = sum(p * np.log(p / q) for p, q in parts if p > 0)
        return min(np.exp(-n * entropy), np.e * binom.cdf(np.ceil(n * mean - 1e-9), n, risk))

    assert mean <= bound <= 1
    if bound < 1 - 1e-6:
        assert tail(bound + 1e-6) <= 0.05 <= tail(bound - 1e-6)


@given(some_losses, st.sampled_from(["0.01", "0.05", "0.2"]))
def test_the_decision_is_the_bound_and_equal_weights_are_none(losses: list[float], error: str) -> None:
    bound = betting_upper(losses, error=error)
    assert bound >= np.mean(losses) - 1e-9
    assert upper_bound(losses, error) == bound
    assert betting_upper(losses, error=error, weights=[3.0] * len(losses)) == pytest.approx(bound, abs=1e-9)
    for risk in (bound + 1e-6, bound - 1e-6):
        if 0 <= risk <= 1:
            assert risk_is_below(losses, risk, error=error) == (risk > bound)


def test_a_weight_counts_like_repeating_a_task() -> None:
    losses = np.tile([1.0] + [0.0] * 19, 40)
    light = np.where(losses > 0, 0.5, 1.0)
    wanted = 0.5 / 19.5
    bounds = [betting_upper(losses), betting_upper(losses, weights=light), betting_upper(losses, weights=1 / light)]
    assert wanted < bounds[1] < bounds[0] < bounds[2]
    assert betting_upper(losses, weights=light, test_weight=4.0) > bounds[1]


def draws(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, float]:
    shares = np.array([0.0, 0.25, 0.5, 1.0])
    chances = np.array([0.88, 0.06, 0.04, 0.02])
    return rng.choice(shares, size=shape, p=chances), float(shares @ chances)


def test_bounds_hold_as_often_as_they_say() -> None:
    losses, mean = draws(np.random.default_rng(5), (600, 80))
    for bound in (betting_upper, hoeffding_bentkus):
        missed = sum(bound(row) < mean for row in losses)
        assert missed <= binom.ppf(0.9999, 600, 0.05)
    # Without the bound, the plain mean lies below the truth half of the time: the test can fail.
    assert sum(float(row.mean()) < mean for row in losses) > binom.ppf(0.9999, 600, 0.05)


def test_the_sequence_holds_at_all_times_at_once() -> None:
    losses, mean = draws(np.random.default_rng(6), (150, 300))
    outside, final = 0, 0
    for row in losses:
        held = [risk_sequence(row[:n]) for n in range(20, 301, 20)]
        outside += any(not low <= mean <= high for low, high in held)
        final += held[-1][1] - held[-1][0] < 0.2
    assert outside <= binom.ppf(0.9999, 150, 0.05)
    assert final > 100


def test_the_sequence_rises_above_a_promise_that_is_broken() -> None:
    losses, _ = draws(np.random.default_rng(7), (1, 3000))
    low, high = risk_sequence(np.minimum(1.0, losses[0] * 2))
    assert 0.05 < low < 0.09 < high  # twice the losses, cut at 1: a mean of 0.09


def test_ends_of_the_scale() -> None:
    assert risk_sequence([]) == (0.0, 1.0)
    assert upper_bound([]) == hoeffding_bentkus([]) == 1.0
    assert not risk_is_below([], 0.9)
    assert risk_sequence([0.0] * 50)[0] == 0.0
    assert risk_sequence([1.0] * 50)[1] == pytest.approx(1.0)
    assert hoeffding_bentkus([1.0] * 50) == 1.0
    assert betting_upper([1.0] * 50) == pytest.approx(1.0)


def test_bad_input_is_refused() -> None:
    for wrong in ([1.5], [-0.1], [float("nan")]):
        with pytest.raises(InvalidScores, match="between 0 and 1"):
            upper_bound(wrong)
    with pytest.raises(InvalidScores, match="weight above 0 for each of 2"):
        betting_upper([0.0, 0.0], weights=[1.0])
    with pytest.raises(InvalidArgument, match="at least the greatest weight, 2"):
        betting_upper([0.0, 0.0], weights=[1.0, 2.0], test_weight=1.0)
    with pytest.raises(InvalidArgument, match=r"error below 0\.5"):
        clopper_pearson_upper(1, 2, error="0.6")
