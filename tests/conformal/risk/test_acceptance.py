"""Levels of acceptance against brute force, their bounds against scipy, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from conformal.errors import InvalidArgument
from conformal.monitor.coverage import clopper_pearson
from conformal.risk.acceptance import (
    DELTA,
    Promise,
    checked_share,
    choose_level,
    count_due,
    equal_chance,
    labels_needed,
    level_grid,
    lower_sequence,
    most_wrong,
    next_count,
    spend,
    upper_bound,
)


@pytest.mark.parametrize("value", [0, 1, "0", "1", "abc", -0.1, float("nan"), True, ""])
def test_a_share_is_a_number_between_0_and_1(value: object) -> None:
    with pytest.raises(InvalidArgument):
        checked_share(value)  # type: ignore[arg-type]


def test_all_decisions_together_spend_delta() -> None:
    assert sum(spend(j) for j in range(1, 100_000)) == pytest.approx(DELTA, abs=1e-6)
    with pytest.raises(InvalidArgument):
        spend(0)


@pytest.mark.parametrize("promise", list(Promise))
@pytest.mark.parametrize("max_error", [0.05, 0.02, 0.01])
def test_with_one_label_less_than_needed_nothing_can_be_accepted(max_error: float, promise: Promise) -> None:
    needed = labels_needed(max_error, delta=0.025, promise=promise)
    for labels, accepts in ((needed, True), (needed - 1, False)):
        doubts = np.linspace(0, 0.5, labels)
        grid = level_grid(doubts, levels=1)
        choice = choose_level(doubts, np.zeros(labels), grid=grid, max_error=max_error, delta=0.025, promise=promise)
        assert (choice.level is not None) is accepts
        assert choice.needed == needed
    assert choice.why == f"needs {needed:,} labels, has {needed - 1:,}"


def test_decisions_are_made_at_125_250_500_from_the_first_that_can_suffice() -> None:
    assert [next_count(after, needed=72) for after in (0, 124, 125, 249, 250, 700)] == [125, 125, 250, 250, 500, 1000]
    assert next_count(0, needed=368) == 500
    assert count_due(124, after=0, needed=72) is None
    assert count_due(131, after=0, needed=183) is None
    assert count_due(1_100, after=0, needed=183) == 1_000  # what was not looked at is not spent
    assert count_due(999, after=500, needed=183) is None


@given(total=st.integers(0, 400), wrong=st.integers(0, 20), max_error=st.sampled_from([0.01, 0.05, 0.3]))
def test_the_number_that_may_be_wrong_is_clopper_and_pearsons(total: int, wrong: int, max_error: float) -> None:
    wrong = min(wrong, total)
    bound = upper_bound(wrong, total, delta=0.025)
    assert (wrong <= most_wrong(total, max_error=max_error, delta=0.025)) == (bound <= max_error)
    if total:
        assert bound == pytest.approx(clopper_pearson(wrong, total, error="0.05")[1])
        expected = stats.beta.ppf(0.975, wrong + 1, total - wrong) if wrong < total else 1.0
        assert bound == pytest.approx(expected)


@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), min_size=90, max_size=200),
    promise=st.sampled_from(list(Promise)),
    levels=st.integers(1, 30),
)
def test_the_level_is_the_last_before_the_first_that_fails(
    rows: list[tuple[int, bool, bool]], promise: Promise, levels: int
) -> None:
    doubts = np.array([row[0] / 10 for row in rows])
    # Mostly right below a doubt of 0.6, so that some levels pass; a few were lost by earlier decisions.
    losses = np.array([row[1] and row[0] > 5 for row in rows], dtype=float)
    earlier = np.array([row[2] and row[0] == 9 for row in rows], dtype=float) * (np.arange(len(rows)) % 7 == 0)
    grid = level_grid(doubts, levels=levels)
    choice = choose_level(doubts, losses, grid=grid, max_error=0.05, delta=0.025, promise=promise, earlier=earlier)
    last = None
    for level, share in zip(grid.levels, grid.shares, strict=True):
        inside = doubts <= level
        if promise is Promise.ALL:
            wrong, total = np.maximum(earlier, losses * inside).sum(), len(rows)
        else:
            if share * len(rows) < 1.2 * np.log(0.025) / np.log(0.95):
                continue
            wrong, total = losses[inside].sum(), inside.sum()
        if total == 0 or stats.binom.cdf(wrong, total, 0.05) > 0.025:
            break
        last = level
    if len(rows) < labels_needed(0.05, delta=0.025, promise=promise):
        last = None
    assert choice.level == last
    if last is not None:
        assert choice.bound <= 0.05
        assert choice.below == (doubts <= last).sum()


def test_promise_b_starts_where_enough_labels_are_expected() -> None:
    doubts = np.linspace(0, 1, 500)
    losses = np.zeros(500)
    losses[0] = 1.0  # one error at the very bottom: from the smallest level upwards nothing would be accepted
    grid = level_grid(doubts, levels=100)
    choice = choose_level(doubts, losses, grid=grid, max_error=0.05, delta=0.025, promise=Promise.ACCEPTED)
    assert choice.level is None  # 87 labels with one error are not enough for 5 %
    losses[0] = 0.0
    losses[300] = 1.0
    choice = choose_level(doubts, losses, grid=grid, max_error=0.05, delta=0.025, promise=Promise.ACCEPTED)
    assert choice.level == 1.0


def test_what_earlier_decisions_lost_counts_in_promise_a_alone() -> None:
    doubts, losses = np.linspace(0, 1, 200), np.zeros(200)
    earlier = np.zeros(200)
    earlier[:30] = 1.0
    grid = level_grid(doubts, levels=10)
    options = {"grid": grid, "max_error": 0.05, "delta": 0.025, "earlier": earlier}
    assert choose_level(doubts, losses, promise=Promise.ALL, **options).level is None  # type: ignore[arg-type]
    assert choose_level(doubts, losses, promise=Promise.ACCEPTED, **options).level == 1.0  # type: ignore[arg-type]


def test_shares_have_a_bound_that_holds_for_any_losses_between_0_and_1() -> None:
    rng = np.random.default_rng(5)
    misses = 0
    for _ in range(2_000):
        losses = (rng.random(150) < 0.2) * rng.random(150) * 0.6  # mean 0.06
        misses += upper_bound(float(losses.sum()), 150, delta=0.05, binary=False) < 0.06
    assert misses <= stats.binom.ppf(1 - 1e-5, 2_000, 0.05)
    # Where losses are 0 or 1 it is no sharper than the exact bound.
    for wrong in (0, 1, 5, 40):
        assert upper_bound(wrong, 150, delta=0.05, binary=False) >= upper_bound(wrong, 150, delta=0.05) - 1e-12


def test_documents_are_accepted_up_to_a_share() -> None:
    doubts = np.linspace(0, 0.4, 600)
    losses = np.where(doubts < 0.2, 0.01, 0.4)
    grid = level_grid(doubts, levels=100)
    with pytest.raises(InvalidArgument, match="shares"):
        choose_level(doubts, losses, grid=grid, max_error=0.05, delta=0.025)
    choice = choose_level(doubts, losses, grid=grid, max_error=0.05, delta=0.025, shares=True)
    assert choice.level is not None
    assert 0.5 < choice.share < 0.7
    assert choice.bound <= 0.05
    assert choice.lost / 600 <= choice.bound


def test_the_lower_sequence_stays_below_the_mean_at_all_times() -> None:
    rng = np.random.default_rng(9)
    above = 0
    for _ in range(400):
        losses = (rng.random(300) < 0.1) * rng.random(300)  # mean 0.05
        above += any(lower_sequence(losses[:n]) > 0.05 for n in range(20, 301, 40))
    assert above <= stats.binom.ppf(1 - 1e-5, 400, 0.05)
    assert lower_sequence((rng.random(300) < 0.4) * rng.random(300)) > 0.05  # mean 0.2: it is seen


def test_rows_below_the_least_that_was_passed_over_had_equal_chance() -> None:
    rng = np.random.default_rng(3)
    uniforms = rng.random(20_000)
    share = np.where(np.arange(20_000) < 10_000, 0.2, 0.05)  # the share was lowered halfway
    drawn = uniforms < share
    kept = equal_chance(uniforms[drawn], uniforms[~drawn])
    rows = np.flatnonzero(drawn)[kept]
    assert drawn[:10_000].sum() > 3 * drawn[10_000:].sum()
    first = int((rows < 10_000).sum())
    assert stats.binomtest(first, rows.size, 0.5).pvalue > 1e-3
    assert equal_chance([0.1, 0.2], []).all()


@pytest.mark.parametrize(
    ("doubts", "losses"),
    [([0.1, 0.2], [0.0]), ([0.1], [2.0]), ([np.nan], [0.0]), ([[0.1]], [0.0]), ([0.1], [-0.1])],
)
def test_arrays_that_cannot_be_are_refused(doubts: object, losses: object) -> None:
    grid = level_grid([0.1, 0.2], levels=2)
    with pytest.raises(InvalidArgument):
        choose_level(doubts, losses, grid=grid, max_error=0.05, delta=0.025)  # type: ignore[arg-type]


def test_a_collection_without_tasks_has_no_level() -> None:
    assert not level_grid([], levels=10).levels.size
