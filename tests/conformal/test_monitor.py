"""Special functions against scipy, online ranks against their definition, states that survive storage."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from conformal.errors import InvalidArgument, InvalidScores
from conformal.monitor import (
    AdaptiveLevel,
    Jumper,
    Martingale,
    RankStream,
    below_target,
    beta_binomial_cdf,
    clopper_pearson,
    confidence_sequence,
    jumper_path,
    online_p_values,
)
from conformal.monitor.beta import beta_quantile, incomplete_beta

shapes = st.floats(0.1, 500.0)


@given(shapes, shapes, st.floats(0.0, 1.0))
def test_incomplete_beta_is_scipys(a: float, b: float, x: float) -> None:
    assert incomplete_beta(a, b, x) == pytest.approx(float(special.betainc(a, b, x)), rel=1e-9, abs=1e-13)


@given(shapes, shapes, st.floats(0.0005, 0.9995))
def test_beta_quantile_is_scipys(a: float, b: float, q: float) -> None:
    assert beta_quantile(q, a, b) == pytest.approx(float(special.betaincinv(a, b, q)), rel=1e-7, abs=1e-10)


@pytest.mark.parametrize(("a", "b"), [(95_000.0, 5_001.0), (1.0, 1e6), (990_000.0, 10_000.0), (0.5, 0.5)])
def test_incomplete_beta_holds_for_large_shapes(a: float, b: float) -> None:
    for q in (0.001, 0.025, 0.5, 0.975, 0.999):
        x = float(special.betaincinv(a, b, q))
        assert incomplete_beta(a, b, x) == pytest.approx(q, rel=1e-6)


@given(st.integers(1, 3000), st.floats(0, 1))
def test_clopper_pearson_is_scipys(total: int, part: float) -> None:
    covered = round(total * part)
    low, high = clopper_pearson(covered, total, error="0.1")
    expected = (
        float(special.betaincinv(covered, total - covered + 1, 0.05)) if covered else 0.0,
        float(special.betaincinv(covered + 1, total - covered, 0.95)) if covered < total else 1.0,
    )
    assert (low, high) == pytest.approx(expected, abs=1e-7)


@given(st.integers(1, 400), st.floats(0, 1), st.integers(1, 300), st.integers(1, 300))
def test_beta_binomial_is_scipys(total: int, part: float, a: int, b: int) -> None:
    covered = round(total * part)
    assert beta_binomial_cdf(covered, total, a, b) == pytest.approx(
        float(stats.betabinom(total, a, b).cdf(covered)), rel=1e-8, abs=1e-12
    )


def test_below_target_is_judged_by_the_law_of_one_threshold() -> None:
    assert below_target(90, 100, n=199, alpha="0.05") == pytest.approx(float(stats.betabinom(100, 190, 10).cdf(90)))
    assert below_target(0, 100, n=5, alpha="0.05") == 1.0  # the threshold is infinite: nothing is missed
    rng = np.random.default_rng(0)
    share = rng.beta(190, 10, size=4000)
    p = [below_target(int(c), 100, n=199, alpha="0.05") for c in rng.binomial(100, share)]
    assert np.mean(np.array(p) <= 0.05) <= 0.05 + 0.012


def test_confidence_sequence_holds_at_all_times_where_pointwise_intervals_do_not() -> None:
    rng = np.random.default_rng(3)
    runs, rows, truth = 150, 800, 0.95
    hits = np.cumsum(rng.random((runs, rows)) < truth, axis=1)
    grid = range(10, rows, 15)
    missed = 0
    for run in range(runs):
        sequence = [confidence_sequence(int(hits[run, t]), t + 1) for t in grid]
        missed += any(not low <= truth <= high for low, high in sequence)
    at = np.array(grid)
    c, n = hits[:, at], at + 1
    low = np.where(c > 0, special.betaincinv(np.maximum(c, 1), n - c + 1, 0.025), 0.0)
    high = np.where(c < n, special.betaincinv(c + 1, np.maximum(n - c, 1), 0.975), 1.0)
    pointwise = int(((truth < low) | (truth > high)).any(axis=1).sum())
    assert missed / runs <= 0.05
    assert pointwise / runs > 0.1


@given(st.integers(1, 2000), st.floats(0, 1))
def test_confidence_sequence_ends_where_the_mixture_says(total: int, part: float) -> None:
    covered = round(total * part)
    low, high = confidence_sequence(covered, total)
    assert 0 <= low <= covered / total <= high <= 1
    missed = total - covered
    mixture = special.betaln(0.5 + covered, 0.5 + missed) - special.betaln(0.5, 0.5)
    for end in (low, high):
        if 0 < end < 1:
            assert covered * math.log(end) + missed * math.log1p(-end) == pytest.approx(
                mixture + math.log(0.05), rel=1e-6, abs=1e-6
            )


values = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 2.0, 2.5, math.inf]), st.floats(0, 1, exclude_max=True)), max_size=70
)


@given(values)
def test_online_ranks_follow_their_definition(rows: list[tuple[float, float]]) -> None:
    stream = RankStream()
    expected = []
    for t, (score, v) in enumerate(rows):
        before = [s for s, _ in rows[:t]]
        greater, equal = sum(s > score for s in before), sum(s == score for s in before)
        expected.append((greater + v * (1 + equal)) / (t + 1))
        assert stream.p_value(score, v=v) == expected[-1]
    scores, v = [s for s, _ in rows], [v for _, v in rows]
    np.testing.assert_array_equal(online_p_values(scores, v), expected)
    np.testing.assert_array_equal(stream.sorted_scores(), np.sort(scores))
    assert len(stream) == len(rows)


@given(st.lists(st.floats(0, 1), max_size=80))
def test_the_jumper_is_a_mixture_of_bets(p_values: list[float]) -> None:
    capital = [1 / 3] * 3
    state = Jumper()
    path = jumper_path(p_values)
    for t, p in enumerate(p_values):
        whole = sum(capital)
        capital = [0.99 * c + 0.01 * whole / 3 for c in capital]
        capital = [c * (1 + eps * (p - 0.5)) for c, eps in zip(capital, (-1, 0, 1), strict=True)]
        state = state.bet(p)
        assert state.log_wealth == pytest.approx(math.log(sum(capital)), abs=1e-9)
        assert path[t] == pytest.approx(state.log_wealth, abs=1e-12)
    assert state.peak == pytest.approx(max([0.0, *path.tolist()]), abs=1e-12)
    assert state.steps == len(p_values)


def test_alarm_needs_twenty_times_the_number_of_strata() -> None:
    assert Jumper(peak=math.log(20.0)).alarmed()
    assert not Jumper(peak=math.log(19.9)).alarmed()
    assert not Jumper(peak=math.log(20.0)).alarmed(strata=2)
    with pytest.raises(InvalidArgument):
        Jumper().alarmed(strata=0)


def test_a_stored_martingale_goes_on_bit_for_bit() -> None:
    rng = np.random.default_rng(5)
    scores, v = rng.exponential(size=300), rng.random(300)
    whole = Martingale()
    part = Martingale()
    for i in range(300):
        whole.update(scores[i], v=v[i])
        if i == 137:
            part = Martingale.from_dict(json.loads(json.dumps(part.to_dict())))
        part.update(scores[i], v=v[i])
    assert part.to_dict() == whole.to_dict()
    assert whole.state.steps == 300
    scores[150:] *= 8
    drifted = Martingale()
    for i in range(300):
        drifted.update(scores[i], v=v[i])
    assert drifted.alarmed()
    assert not whole.alarmed()


def test_adaptive_level_follows_the_misses() -> None:
    state = AdaptiveLevel.start("0.1", gamma="0.02")
    rng = np.random.default_rng(6)
    misses = 0
    for _ in range(4000):  # the world is harder than calibrated: true miss share is thrice the nominal level
        miss = state.none_in or (not state.all_in and rng.random() < min(1.0, 3 * float(state.current)))
        misses += miss
        state = state.update(covered=not miss)
    assert abs(misses / 4000 - 0.1) <= (0.9 + 0.02) / (0.02 * 4000)
    assert AdaptiveLevel.from_dict(json.loads(json.dumps(state.to_dict()))) == state
    assert AdaptiveLevel(Fraction(1, 10), Fraction(1, 2), Fraction(0)).all_in
    with pytest.raises(InvalidArgument):
        AdaptiveLevel.from_dict({"target": "x"})


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="covered"):
        clopper_pearson(3, 2)
    with pytest.raises(InvalidArgument, match="prior"):
        confidence_sequence(1, 2, prior=(0.0, 1.0))
    with pytest.raises(InvalidArgument, match="above 0"):
        incomplete_beta(0.0, 1.0, 0.5)
    with pytest.raises(InvalidArgument, match="probability"):
        beta_quantile(1.5, 1.0, 1.0)
    with pytest.raises(InvalidArgument, match="p-value"):
        Jumper().bet(1.5)
    with pytest.raises(InvalidArgument, match="p-values"):
        jumper_path([2.0])
    with pytest.raises(InvalidScores, match="NaN"):
        RankStream().p_value(math.nan, v=0.5)
    with pytest.raises(InvalidArgument, match="u in"):
        RankStream().p_value(1.0, v=1.0)
    stored = Martingale().to_dict()
    for damage in ({"version": 2}, {"steps": 4}, {"shares": ["0x1p-1"]}, {"peak": None}):
        with pytest.raises(InvalidScores):
            Martingale.from_dict({**stored, "jumper": {**stored["jumper"], **damage}})
    for whole in ({"scores": "!"}, {"jumper": None}):
        with pytest.raises(InvalidScores):
            Martingale.from_dict({**stored, **whole})
    assert confidence_sequence(0, 0) == (0.0, 1.0)
    assert clopper_pearson(0, 0) == (0.0, 1.0)
