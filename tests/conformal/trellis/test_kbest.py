"""Ranked labelings against full enumeration and against three other algorithms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from conformal import Chain, KBest, LabelSpace, NoLegalLabeling, Potentials, enumerate_above, kbest, rank_of
from conformal.trellis.reference import enumerate_labelings
from tests.conformal.trellis import strategies
from tests.support import oracles


def pairs(result: KBest) -> list[tuple[float, tuple[int, ...]]]:
    return [(s, tuple(y)) for s, y in zip(result.scores.tolist(), result.labels.tolist(), strict=True)]


@given(strategies.potentials(), st.sampled_from([1, 2, 3, 10, 5000]))
def test_equals_full_enumeration(p: Potentials, k: int) -> None:
    expected = oracles.all_labelings(p)
    if not expected:
        with pytest.raises(NoLegalLabeling, match="finite score"):
            kbest(p, k)
        return
    result = kbest(p, k)
    assert pairs(result) == expected[:k]  # bit for bit: scores are added in one fixed order
    assert result.count == min(k, len(expected))
    assert result.labels.shape == (result.count, p.length)
    assert result.exhausted == (len(expected) <= k)


@given(strategies.potentials())
def test_log_probabilities_equal_full_enumeration(p: Potentials) -> None:
    expected = oracles.all_labelings(p)
    assume(expected)
    result = kbest(p, 5000)
    log_z = oracles.log_sum([s for s, _ in expected])
    np.testing.assert_allclose(result.log_partition, log_z, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(np.exp(result.log_probabilities).sum(), 1.0, rtol=1e-9)


@given(strategies.potentials(), st.data())
def test_stopping_at_a_probability(p: Potentials, data: st.DataObject) -> None:
    assume(oracles.all_labelings(p))
    everything = kbest(p, 5000)
    # A limit that is exactly some labeling's own log-probability must keep that labeling.
    limit = data.draw(st.sampled_from(everything.log_probabilities.tolist()))
    expected = [tuple(y) for y, lp in zip(everything.labels, everything.log_probabilities, strict=True) if lp >= limit]
    stopped = kbest(p, 5000, above=limit)
    assert [tuple(y) for y in stopped.labels] == expected
    assert stopped.exhausted
    if -math.inf < limit <= 0:
        assert [tuple(y) for y, _ in enumerate_above(p, log_probability=limit)] == expected
    k = data.draw(st.integers(1, len(expected)))
    cut = kbest(p, k, above=limit)
    assert [tuple(y) for y in cut.labels] == expected[:k]
    assert cut.exhausted == (k == len(expected))


def test_a_labeling_that_rounding_puts_below_the_limit_is_not_left_over() -> None:
    # Many of the 81 labelings tie in exact arithmetic; in floats some sums are an ulp lower than others.
    emissions = np.array([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [0.1, 0.3, 0.2], [0.2, 0.1, 0.3]])
    p = Potentials(emissions=emissions, transitions=np.zeros((3, 3)), start=np.zeros(3), end=np.zeros(3))
    everything = kbest(p, 100)
    for limit in sorted(set(everything.log_probabilities.tolist())):
        count = int((everything.log_probabilities >= limit).sum())
        assert kbest(p, count, above=limit).exhausted
        assert kbest(p, count, above=limit).count == count
        if count > 1:
            assert not kbest(p, count - 1, above=limit).exhausted


@given(strategies.potentials(), st.floats(1e-6, 1.0))
def test_enumerate_above_is_complete_and_ordered(p: Potentials, probability: float) -> None:
    assume(oracles.all_labelings(p))
    listed = list(enumerate_above(p, probability))
    everything = kbest(p, 5000)
    inside = everything.log_probabilities >= math.log(probability)
    assert [tuple(y) for y, _ in listed] == [tuple(y) for y in everything.labels[inside]]
    assert [lp for _, lp in listed] == everything.log_probabilities[inside].tolist()
    assert len(listed) <= 1 / probability + 1e-6


def test_enumerate_above_is_lazy() -> None:
    space, transitions, start, end = oracles.random_chain(1, 4)
    p = Chain(transitions=transitions, start=start, end=end).potentials(
        np.random.default_rng(2).normal(size=(200, len(space)))
    )
    listed = enumerate_above(p, log_probability=-1000.0)  # more labelings than could ever be held
    first = [lp for _, lp in itertools.islice(listed, 1)]
    assert first[0] == kbest(p, 1).log_probabilities[0]


@given(strategies.potentials(), st.data())
def test_rank_of(p: Potentials, data: st.DataObject) -> None:
    ranked = oracles.all_labelings(p)
    assume(ranked)
    r = data.draw(st.integers(1, len(ranked)))
    labels = ranked[r - 1][1]
    assert rank_of(p, labels, 5000) == r
    assert rank_of(p, labels, r) == r
    if r > 1:
        assert rank_of(p, labels, r - 1) is None


def test_rank_of_a_forbidden_labeling_is_none() -> None:
    p = Potentials(emissions=np.zeros((2, 2)), transitions=[[0, -np.inf], [0, 0]], start=[0, 0], end=[0, 0])
    assert rank_of(p, [0, 1], 100) is None


@given(strategies.potentials(min_length=1), st.data())
def test_constraints_equal_filtered_enumeration(p: Potentials, data: st.DataObject) -> None:
    cells = st.tuples(st.integers(0, p.length - 1), st.integers(0, p.label_count - 1))
    fixed = dict(data.draw(st.lists(cells, max_size=2)))
    forbidden = {j: [y] for j, y in data.draw(st.lists(cells, max_size=3))}
    expected = [
        (s, y)
        for s, y in oracles.all_labelings(p)
        if all(y[j] == label for j, label in fixed.items())
        and not any(y[j] in labels for j, labels in forbidden.items())
    ]
    constrained = p.constrain(fixed=fixed, forbidden=forbidden)
    if not expected:
        with pytest.raises(NoLegalLabeling):
            kbest(constrained, 1)
        return
    result = kbest(constrained, 5000)
    assert pairs(result) == expected
    np.testing.assert_allclose(np.exp(result.log_probabilities).sum(), 1.0, rtol=1e-9)


@given(strategies.tagged())
def test_spans_come_with_the_labelings(made: tuple[LabelSpace, Potentials]) -> None:
    space, p = made
    assume(oracles.all_labelings(p))
    result = kbest(p, 50, space=space)
    table = result.spans
    assert table is not None
    for r, labels in enumerate(result.labels):
        rows = slice(table.offsets[r], table.offsets[r + 1])
        listed = [
            (a, b, space.classes[w])
            for a, b, w in zip(table.starts[rows], table.ends[rows], table.classes[rows], strict=True)
        ]
        assert listed == space.spans(labels)


@pytest.mark.parametrize(("classes", "length", "k"), [(4, 25, 100), (4, 50, 1000), (18, 12, 100), (18, 50, 1000)])
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_independent_algorithms_agree_on_long_texts(classes: int, length: int, k: int, spread: float) -> None:
    space, transitions, start, end = oracles.random_chain(classes, classes)
    rng = np.random.default_rng(length)
    p = Chain(transitions=transitions, start=start, end=end).potentials(
        rng.normal(size=(length, len(space))) * spread, boundaries=[length // 2]
    )
    result = kbest(p, k)
    assert result.count == k
    assert len({tuple(y) for y in result.labels.tolist()}) == k
    assert all(space.is_legal(y) for y in result.labels)
    reference = list(itertools.islice(enumerate_labelings(p), k))
    assert [y for _, y in reference] == [tuple(y) for y in result.labels.tolist()]
    np.testing.assert_allclose([result.scores[0] - loss for loss, _ in reference], result.scores, atol=1e-9)
    np.testing.assert_allclose(oracles.recursive_enumeration(p, k), result.scores, atol=1e-9)
    if length * k <= 6000:  # the oracle keeps k prefixes per label
        listed = oracles.list_viterbi(p, k)
        assert [y for _, y in listed] == [tuple(y) for y in result.labels.tolist()]


@given(strategies.potentials(max_length=4))
def test_reference_equals_full_enumeration(p: Potentials) -> None:
    expected = oracles.all_labelings(p)
    listed = list(enumerate_labelings(p))
    assert sorted(y for _, y in listed) == sorted(y for _, y in expected)
    losses = [loss for loss, _ in listed]
    assert losses == sorted(losses)


def test_many_ties_are_cut_lexicographically() -> None:
    # 3^12 labelings of equal score, far more than the tie limit.
    p = Potentials(emissions=np.zeros((12, 3)), transitions=np.zeros((3, 3)), start=np.zeros(3), end=np.zeros(3))
    expected = list(itertools.islice(itertools.product(range(3), repeat=12), 40))
    assert [tuple(y) for y in kbest(p, 40).labels.tolist()] == expected
    assert not kbest(p, 40).exhausted


def test_many_ties_behind_a_better_labeling() -> None:
    emissions = np.zeros((12, 3))
    emissions[0, 2] = 1.0  # a third of the labelings, all beginning with 2, lead by one
    emissions[1, 1] = 0.5
    p = Potentials(emissions=emissions, transitions=np.zeros((3, 3)), start=np.zeros(3), end=np.zeros(3))
    k = 3**10 + 25  # all that begin with (2, 1), then the first of those that begin with 2 only
    result = kbest(p, k)
    lead = list(itertools.product([2], [1], *[range(3)] * 10))
    then = list(itertools.islice(itertools.product([2], [0, 2], *[range(3)] * 10), 25))
    assert [tuple(y) for y in result.labels.tolist()] == lead + then


def test_rounding_does_not_lose_a_tie() -> None:
    # 0.1 + 0.2 + 0.3 depends on the order of addition; every permutation is a tie in exact arithmetic.
    emissions = np.array([[0.1, 0.2, 0.3]] * 4)
    p = Potentials(emissions=emissions, transitions=np.zeros((3, 3)), start=np.zeros(3), end=np.zeros(3))
    expected = oracles.all_labelings(p)
    for k in range(1, len(expected) + 1):
        assert pairs(kbest(p, k)) == expected[:k]


def test_no_token_has_one_empty_labeling() -> None:
    p = Potentials(emissions=np.zeros((0, 3)), transitions=np.zeros((3, 3)), start=np.zeros(3), end=np.zeros(3))
    result = kbest(p, 5)
    assert result.labels.shape == (1, 0)
    assert result.log_probabilities.tolist() == [0.0]
    assert [(y.tolist(), lp) for y, lp in enumerate_above(p, 1.0)] == [([], 0.0)]
    assert rank_of(p, [], 1) == 1
