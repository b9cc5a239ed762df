"""Estimates against what they must be by definition (METHODS 14)."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformal.errors import InvalidArgument, InvalidScores
from conformal.estimates import (
    Counts,
    Trial,
    agree,
    compare_spans,
    estimate_errors,
    estimate_rates,
    estimate_saving,
    forecast_total,
    krippendorff_alpha,
    plain_rates,
)

LABELS = ("PER", "LOC")
SPAN = st.tuples(st.integers(0, 12), st.integers(1, 5), st.sampled_from(LABELS)).map(
    lambda s: (s[0], s[0] + s[1], s[2])
)
SPANS = st.lists(SPAN, max_size=6)


def a_project(rng: np.random.Generator, tasks: int) -> tuple[Counts, Counts]:
    """Return what labels would find in each task, and what a model that knows itself expects there."""
    predicted = rng.poisson(2.0, tasks)
    sure = rng.beta(6, 1.5, tasks)
    right = rng.binomial(predicted, sure)
    extra = rng.gamma(1.0, 0.3, tasks)
    return (
        Counts(right, predicted, right + rng.poisson(extra)),
        Counts(predicted * sure, predicted, predicted * sure + extra),
    )


@pytest.mark.parametrize("rate", ["precision", "recall", "f1"])
def test_all_tasks_labelled_give_the_rate_itself(rate: str) -> None:
    truth, expected = a_project(np.random.default_rng(1), 400)
    found = getattr(estimate_rates(truth, expected, collection=expected), rate)
    right, predicted, true = truth.right.sum(), truth.predicted.sum(), truth.true.sum()
    exact = {"precision": right / predicted, "recall": right / true, "f1": 2 * right / (predicted + true)}[rate]
    assert found.value == pytest.approx(exact, abs=1e-9)
    assert found.low < exact < found.high


def test_a_model_that_says_nothing_changes_nothing() -> None:
    truth, _ = a_project(np.random.default_rng(2), 300)
    nothing = Counts(np.zeros(300), np.zeros(300), np.zeros(300))
    assert estimate_rates(truth, nothing, collection=nothing) == plain_rates(truth)


def test_expectations_narrow_the_interval() -> None:
    truth, expected = a_project(np.random.default_rng(3), 5_000)
    few = np.arange(300)
    with_model = estimate_rates(truth.take(few), expected.take(few), collection=expected)
    alone = plain_rates(truth.take(few))
    assert with_model.f1 is not None
    assert alone.f1 is not None
    assert with_model.f1.high - with_model.f1.low < alone.f1.high - alone.f1.low


def test_a_sample_of_the_collection_widens_the_interval() -> None:
    truth, expected = a_project(np.random.default_rng(4), 5_000)
    few = np.arange(300)
    widths = []
    for tasks in (None, 5_000, 100_000):
        found = estimate_rates(truth.take(few), expected.take(few), collection=expected, tasks=tasks).f1
        assert found is not None
        widths.append(found.high - found.low)
    assert widths[0] == widths[1] < widths[2]


@given(st.floats(0.01, 100))
@settings(max_examples=20)
def test_only_the_proportions_of_chances_matter(factor: float) -> None:
    truth, expected = a_project(np.random.default_rng(5), 250)
    chance = np.random.default_rng(6).choice([0.1, 0.5], 250)
    one = estimate_rates(truth, expected, collection=expected, chance=chance).f1
    other = estimate_rates(truth, expected, collection=expected, chance=chance * factor).f1
    assert one is not None
    assert other is not None
    assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high))


def test_chances_undo_an_unequal_draw() -> None:
    rng = np.random.default_rng(7)
    truth, expected = a_project(rng, 40_000)
    chance = np.where(truth.errors > 0, 0.5, 0.1)  # tasks with errors are drawn five times as often
    drawn = np.flatnonzero(rng.random(40_000) < chance)
    weighted = estimate_rates(
        truth.take(drawn), expected.take(drawn), collection=expected, chance=chance[drawn]
    ).precision
    plain = estimate_rates(truth.take(drawn), expected.take(drawn), collection=expected).precision
    exact = truth.right.sum() / truth.predicted.sum()
    assert weighted is not None
    assert plain is not None
    assert weighted.low < exact < weighted.high
    assert plain.high < exact


def test_without_spans_there_is_no_rate() -> None:
    none = Counts(np.zeros(5), np.zeros(5), np.zeros(5))
    rates = estimate_rates(none, none, collection=none)
    assert (rates.precision, rates.recall, rates.f1, rates.labels) == (None, None, None, 5)
    empty = Counts(np.zeros(0), np.zeros(0), np.zeros(0))
    assert estimate_errors(empty, empty, collection=none) is None


def test_errors_of_a_task_are_missing_and_false_spans() -> None:
    truth, expected = a_project(np.random.default_rng(8), 300)
    found = estimate_errors(truth, expected, collection=expected)
    assert found is not None
    assert found.value == pytest.approx(truth.errors.mean())


def test_counts_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidScores, match="no more right spans"):
        Counts(np.array([2.0]), np.array([1.0]), np.array([3.0]))
    both = Counts(np.ones(2), np.ones(2), np.ones(2))
    with pytest.raises(InvalidScores, match="at most 1 tasks"):
        estimate_rates(both, both, collection=both, tasks=1)
    with pytest.raises(InvalidScores, match="positive chance"):
        estimate_rates(both, both, collection=both, chance=[0.0, 1.0])


def test_the_interval_of_a_saving_is_the_inverted_permutation_test() -> None:
    rng = np.random.default_rng(9)
    blind = np.array([1, 1, 1, 0, 0, 0, 0], dtype=bool)
    logs = rng.normal(3, 0.5, 7)
    found = estimate_saving(
        Trial(np.exp(logs), blind, np.zeros(7), np.ones(7)), rng=np.random.default_rng(10), shuffles=9_999
    )
    assert found is not None

    def tails(effect: float) -> tuple[float, float]:
        rest = logs - effect * ~blind
        observed = rest[~blind].mean() - rest[blind].mean()
        every = []
        for chosen in combinations(range(7), 4):
            mark = np.isin(np.arange(7), chosen)
            every.append(rest[mark].mean() - rest[~mark].mean())
        drawn = np.array(every)
        return float(np.mean(drawn >= observed - 1e-12)), float(np.mean(drawn <= observed + 1e-12))

    inside = np.log(np.linspace(found.low * 1.01, found.high * 0.99, 15))
    assert all(min(tails(effect)) > 0.02 for effect in inside)
    assert min(tails(float(np.log(found.low * 0.98)))) < 0.035
    assert min(tails(float(np.log(found.high * 1.02)))) < 0.035


@given(st.floats(0.3, 3.0))
@settings(max_examples=15, deadline=None)
def test_an_effect_moves_the_whole_interval(effect: float) -> None:
    rng = np.random.default_rng(11)
    blind = np.arange(80) % 4 == 0
    seconds = np.exp(rng.normal(3, 0.4, 80))
    block = np.arange(80) // 40
    plain = estimate_saving(Trial(seconds, blind, block, np.ones(80)), rng=np.random.default_rng(1), cap=1e6)
    changed = estimate_saving(
        Trial(np.where(blind, seconds, seconds * effect), blind, block, np.ones(80)),
        rng=np.random.default_rng(1),
        cap=1e6,
    )
    assert plain is not None
    assert changed is not None
    assert changed.ratio == pytest.approx(plain.ratio * effect)
    assert (changed.low, changed.high) == pytest.approx((plain.low * effect, plain.high * effect))


def test_a_slow_annotator_who_sees_more_blind_tasks_is_no_saving() -> None:
    rng = np.random.default_rng(12)
    block = np.repeat([0, 1], 150)
    blind = rng.random(300) < np.where(block == 0, 0.7, 0.1)
    seconds = np.where(block == 0, 60.0, 10.0) * np.exp(rng.normal(0, 0.3, 300))
    apart = estimate_saving(Trial(seconds, blind, block, np.ones(300)), rng=rng)
    together = estimate_saving(Trial(seconds, blind, np.zeros(300), np.ones(300)), rng=rng)
    assert apart is not None
    assert together is not None
    assert apart.verdict == "not significant"
    assert together.verdict == "saves"


def test_slower_with_a_prelabel_is_said() -> None:
    rng = np.random.default_rng(13)
    blind = rng.random(400) < 0.3
    seconds = np.where(blind, 20.0, 30.0) * np.exp(rng.normal(0, 0.4, 400))
    found = estimate_saving(Trial(seconds, blind, np.zeros(400), np.full(400, 2)), rng=rng)
    assert found is not None
    assert found.verdict == "slower"
    assert found.assisted_seconds_an_entity == pytest.approx(found.assisted_seconds / 2)


def test_idle_times_count_as_the_cap_and_blocks_of_one_kind_say_nothing() -> None:
    seconds = np.array([9_000.0, 20.0, 20.0, 50.0])
    blind = np.array([True, False, False, True])
    found = estimate_saving(
        Trial(seconds, blind, np.array([0, 0, 0, 1]), np.zeros(4)), rng=np.random.default_rng(14), cap=100.0
    )
    assert found is not None
    assert (found.blind, found.assisted, found.blind_seconds) == (1, 2, 100.0)
    assert found.ratio == pytest.approx(0.2)
    assert found.verdict == "not significant"
    assert found.blind_seconds_an_entity is None
    one = Trial(seconds, np.ones(4, dtype=bool), np.zeros(4), np.zeros(4))
    assert estimate_saving(one, rng=np.random.default_rng(15)) is None
    with pytest.raises(InvalidArgument, match="shuffles"):
        estimate_saving(one, rng=np.random.default_rng(16), shuffles=10)


@given(SPANS, SPANS)
def test_every_served_and_every_submitted_span_is_counted_once(served: list, submitted: list) -> None:
    edits = compare_spans(served, submitted)
    assert edits.served == len(set(served))
    assert edits.submitted == len(set(submitted))
    assert edits.kept == len(set(served) & set(submitted))
    assert (edits.actions == 0) == (set(served) == set(submitted))
    back = compare_spans(submitted, served)
    assert (back.kept, back.relabelled) == (edits.kept, edits.relabelled)


def test_what_became_of_a_span() -> None:
    served = [(0, 4, "PER"), (10, 14, "PER"), (20, 24, "PER"), (30, 34, "PER")]
    submitted = [(0, 4, "PER"), (10, 14, "LOC"), (20, 26, "PER"), (40, 44, "PER")]
    edits = compare_spans(served, submitted)
    assert (edits.kept, edits.relabelled, edits.moved, edits.deleted, edits.added) == (1, 1, 1, 1, 1)


@given(st.lists(SPANS, min_size=2, max_size=4))
def test_agreement_is_between_none_and_all_and_does_not_depend_on_the_order(people: list) -> None:
    words = [(i, i + 1) for i in range(18)]
    found = agree([(words, people)])
    turned = agree([(words, people[::-1])])
    assert found.pairs == len(people) * (len(people) - 1) // 2
    assert found.exact == turned.exact
    if found.exact is not None and found.overlapping is not None:
        assert 0 <= found.exact <= found.overlapping <= 1
    same = agree([(words, [people[0], people[0]])])
    assert same.exact in (None, 1.0)
    assert same.alpha in (None, 1.0)


def test_alpha_of_a_published_table() -> None:
    # Krippendorff (2011), "Computing Krippendorff's alpha-reliability", example B: two observers, nominal data.
    one = ["a", "a", "b", "b", "d", "c", "c", "c", "e", "d", "d", "a"]
    other = ["b", "a", "b", "b", "b", "c", "c", "c", "e", "d", "d", "d"]
    assert krippendorff_alpha(zip(one, other, strict=True)) == pytest.approx(0.692, abs=0.0005)
    assert krippendorff_alpha([["a"], ["b"]]) is None  # nobody to disagree with


def test_a_forecast_needs_something_to_go_by() -> None:
    assert forecast_total(np.ones(29), left=10) is None
    with pytest.raises(InvalidArgument, match="at least 0 tasks"):
        forecast_total(np.ones(40), left=-1)
    with pytest.raises(InvalidScores, match="finite"):
        forecast_total([float("nan")] * 40, left=1)
