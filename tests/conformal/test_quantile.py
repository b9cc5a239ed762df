"""Ranks, thresholds and p-values against their definitions in fractions."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import ceil, inf, lcm

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.errors import InvalidArgument, InvalidScores
from conformal.quantile import (
    ScoreTable,
    StackedTable,
    effective_sample_size,
    exact_level,
    hierarchical_threshold,
    least_n,
    rank,
    threshold,
)

levels = st.one_of(
    st.decimals("0.001", "0.999", places=3).map(str),
    st.fractions(Fraction(1, 200), Fraction(199, 200), max_denominator=200),
)
# Few distinct values, so that ties, and ties at +inf, are common.
scores = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, inf]), max_size=30)
draws = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1 - 2**-53]), st.floats(0, 1, exclude_max=True))
QUERIES = np.array([-1.0, 0.0, 0.25, 0.5, 1.0, 1.25, 1.5, 2.0, 3.0, inf])


def p_value(weights: list[tuple[float, Fraction]], unit: Fraction, score: float) -> Fraction:
    total = sum((w for _, w in weights), Fraction(0))
    return (unit + sum((w for s, w in weights if s >= score), Fraction(0))) / (total + unit)


def least_threshold(weights: list[tuple[float, Fraction]], unit: Fraction, alpha: Fraction) -> float:
    total = sum((w for _, w in weights), Fraction(0))
    for t in sorted({s for s, _ in weights}):
        if sum((w for s, w in weights if s <= t), Fraction(0)) >= (1 - alpha) * (total + unit):
            return t
    return inf


def check(table: ScoreTable, weights: list[tuple[float, Fraction]], unit: Fraction, level: str | Fraction) -> None:
    alpha = Fraction(level)
    tau = table.threshold(level)
    assert tau == least_threshold(weights, unit, alpha)
    members = table.contains(QUERIES, level)
    p_values = table.p_values(QUERIES)
    for query, member, p in zip(QUERIES.tolist(), members.tolist(), p_values.tolist(), strict=True):
        exact = p_value(weights, unit, query)
        assert member == (query <= tau) == (exact > alpha)  # y in C <=> p(y) > alpha
        assert p == pytest.approx(float(exact), rel=1e-12)


@given(scores, levels)
def test_membership_is_p_value_above_alpha(values: list[float], level: str | Fraction) -> None:
    check(ScoreTable.of(values), [(s, Fraction(1)) for s in values], Fraction(1), level)


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, inf]), min_size=1, max_size=6), max_size=12), levels)
def test_hierarchical_membership_is_p_value_above_alpha(tasks: list[list[float]], level: str | Fraction) -> None:
    flat = [(s, Fraction(1, len(task))) for task in tasks for s in task]
    sizes = [len(task) for task in tasks for _ in task]
    table = ScoreTable.hierarchical([s for s, _ in flat], np.array(sizes, dtype=np.int64))
    check(table, flat, Fraction(1), level)
    assert table.n == len(tasks)
    assert float(hierarchical_threshold([s for s, _ in flat], np.array(sizes, np.int64), level)) == table.threshold(
        level
    )


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 1.0, 2.0, inf]), st.floats(1e-3, 1e3)), min_size=1, max_size=15),
    st.floats(1e-3, 1e3),
    levels,
)
def test_weighted_membership_is_p_value_above_alpha(
    rows: list[tuple[float, float]], test_weight: float, level: str | Fraction
) -> None:
    table = ScoreTable.weighted([s for s, _ in rows], [w for _, w in rows], test_weight=test_weight)
    check(table, [(s, Fraction(w)) for s, w in rows], Fraction(test_weight), level)


def test_weights_with_a_huge_common_denominator_stay_exact() -> None:
    sizes = [m for m in range(1, 61) for _ in range(m)]
    assert lcm(*range(1, 61)) > 2**63
    values = np.random.default_rng(0).integers(0, 20, len(sizes)).astype(float)
    table = ScoreTable.hierarchical(values, sizes)
    assert table.above.dtype == object
    rows = [(float(s), Fraction(1, m)) for s, m in zip(values, sizes, strict=True)]
    for level in ("0.05", "0.5", "0.9"):
        check(table, rows, Fraction(1), level)
        assert float(hierarchical_threshold(values, sizes, level)) == table.threshold(level)
    assert table.n == 60


@given(scores, levels, draws)
def test_smoothed_membership_is_decided_exactly(values: list[float], level: str | Fraction, u: float) -> None:
    table = ScoreTable.of(values)
    members = table.contains(QUERIES, level, u=u)
    last = table.threshold(level, u=u)
    for query, member in zip(QUERIES.tolist(), members.tolist(), strict=True):
        greater = sum(s > query for s in values)
        equal = sum(s == query for s in values)
        assert member == (greater + Fraction(u) * (1 + equal) > Fraction(level) * (len(values) + 1))
        assert not (member and query > last)
    assert np.all(np.diff(members.astype(int)) <= 0)  # stranger labels leave first


def test_smoothed_membership_on_the_very_edge() -> None:
    table = ScoreTable.of([1.0, 2.0, 3.0])
    assert table.contains([2.5, 3.0], "0.25", u=0.0).tolist() == [False, False]  # 1 + 0 > 0.25 * 4 fails
    assert table.contains([2.5], "0.25", u=2.0**-60).tolist() == [True]
    empty = ScoreTable.of([])
    assert bool(empty.contains(0.0, "0.1", u=0.1))  # the float 0.1 is a little more than 1/10
    assert not bool(empty.contains(0.0, "0.3", u=0.3))  # the float 0.3 is a little less than 3/10
    stack = StackedTable(np.zeros((2, 0)))
    assert stack.contains([0.0, 0.0], "0.1", u=[0.1, 0.0]).tolist() == [True, False]


@given(st.lists(scores, min_size=1, max_size=5), levels, draws, st.sampled_from(QUERIES))
def test_batches_agree_with_single_tables(
    sets: list[list[float]], level: str | Fraction, u: float, query: float
) -> None:
    size = max(len(values) for values in sets)
    where = np.array([[i < len(values) for i in range(size)] for values in sets]).reshape(len(sets), size)
    padded = np.array([values + [0.0] * (size - len(values)) for values in sets]).reshape(len(sets), size)
    tables = [ScoreTable.of(values) for values in sets]
    np.testing.assert_array_equal(threshold(padded, level, where=where), [t.threshold(level) for t in tables])
    stack = StackedTable(padded)
    single = [ScoreTable.of(row) for row in padded]
    np.testing.assert_array_equal(stack.threshold(level), [t.threshold(level) for t in single])
    at = np.full(len(sets), query)
    np.testing.assert_array_equal(stack.contains(at, level), [bool(t.contains(query, level)) for t in single])
    np.testing.assert_array_equal(stack.contains(at, level, u=u), [bool(t.contains(query, level, u=u)) for t in single])
    np.testing.assert_allclose(stack.share_at_most(at), [float(t.share_at_most(query)) for t in single])


@pytest.mark.parametrize("n", [0, 1, 18, 19, 99, 149])
@pytest.mark.parametrize("text", ["0.18", "0.05", "0.1", "0.3", "0.7", "0.01"])
def test_ranks_come_from_decimal_digits(n: int, text: str) -> None:
    exact = ceil((1 - Fraction(text)) * (n + 1))
    assert rank(n, text) == rank(n, float(text)) == rank(n, Decimal(text)) == rank(n, np.float64(text)) == exact
    assert np.isfinite(ScoreTable.of(np.zeros(n)).threshold(text)) == (n >= least_n(text))


def test_the_rank_that_floats_get_wrong() -> None:
    assert rank(149, "0.18") == 123
    assert ceil((1 - Fraction(0.18)) * 150) == 124  # what must not come back


@pytest.mark.parametrize(
    "bad", ["0", "1", "-0.1", "1.5", 0, 1, 0.0, 1.0, "nan", "inf", float("nan"), "five", "1/0", True, None, b"0.1"]
)
def test_bad_levels_are_refused(bad: object) -> None:
    with pytest.raises(InvalidArgument, match="expected alpha"):
        exact_level(bad)  # type: ignore[arg-type]


def test_bad_scores_and_weights_are_refused() -> None:
    for make in (ScoreTable.of, StackedTable, lambda s: threshold(s, "0.1")):
        with pytest.raises(InvalidScores, match="NaN"):
            make([1.0, float("nan")])
    with pytest.raises(InvalidScores, match="numbers"):
        ScoreTable.of(["a"])
    with pytest.raises(InvalidScores, match="NaN"):
        ScoreTable.of([1.0]).contains(float("nan"), "0.1")
    with pytest.raises(InvalidArgument, match="weights above 0"):
        ScoreTable.weighted([1.0], [0.0])
    with pytest.raises(InvalidArgument, match="bounded"):
        ScoreTable.weighted([1.0, 2.0], [1e-9, 1e9])
    with pytest.raises(InvalidArgument, match="no whole"):
        ScoreTable.hierarchical([1.0, 2.0], [2, 3])
    with pytest.raises(InvalidArgument, match="at least 0"):
        hierarchical_threshold([1.0], [-1], "0.1")
    with pytest.raises(InvalidArgument, match="whole group sizes"):
        hierarchical_threshold([1.0], [0.5], "0.1")
    with pytest.raises(InvalidArgument, match="u in"):
        ScoreTable.of([1.0]).contains(0.0, "0.1", u=1.0)
    with pytest.raises(InvalidArgument):
        rank(-1, "0.1")


def test_effective_sample_size() -> None:
    assert effective_sample_size([2.0, 2.0, 2.0]) == pytest.approx(3.0)
    assert effective_sample_size([]) == 0.0
    weights = np.array([1.0, 2.0, 3.0])
    assert effective_sample_size(weights * 1e200) == pytest.approx(weights.sum() ** 2 / (weights**2).sum())
    with pytest.raises(InvalidArgument):
        effective_sample_size([1.0, -1.0])


def test_a_million_rows_answer_exactly() -> None:
    rng = np.random.default_rng(1)
    values = rng.random(1_000_000)
    table = ScoreTable.of(values)
    k = rank(values.size, "0.05")
    assert table.threshold("0.05") == np.partition(values, k - 1)[k - 1]
    sizes = np.repeat(np.arange(1, 41), 41 * 40 // np.arange(1, 41) // 41 * np.arange(1, 41))
    assert ScoreTable.hierarchical(rng.random(sizes.size), sizes).n == sum(40 // m for m in range(1, 41))
