"""p-values against a reference, discoveries at a false-discovery rate, and what is worth checking."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.discoveries import PValues, discover, reference_p_values, weakest_label, worth_checking
from conformal.errors import InvalidArgument, InvalidLabels, InvalidScores
from conformal.labels import LabelSpace, Span
from conformal.trellis import Potentials
from tests.support.oracles import probabilities

SPACE = LabelSpace(["LOC", "PER"])
scores = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=25)


def random_potentials(seed: int, length: int) -> Potentials:
    rng = np.random.default_rng(seed)
    size = len(SPACE)
    moves = rng.normal(size=(size, size))
    start = rng.normal(size=size)
    for y in range(size):
        if y and y % 2 == 0:  # I-w: after B-w and I-w only
            start[y] = -np.inf
            moves[[x for x in range(size) if x not in (y - 1, y)], y] = -np.inf
    return Potentials(
        emissions=rng.normal(size=(length, size)), transitions=moves, start=start, end=rng.normal(size=size)
    )


@given(scores, scores)
def test_a_p_value_counts_the_reference_at_or_above_and_the_label_itself(
    tested: list[float], known: list[float]
) -> None:
    found = reference_p_values(tested, known)
    assert found.values.tolist() == pytest.approx(
        [(1 + sum(other >= each for other in known)) / (len(known) + 1) for each in tested]
    )


@given(scores, scores, st.sampled_from(["0.05", "0.1", "0.3", "0.5"]))
def test_discoveries_are_those_of_the_textbook(tested: list[float], known: list[float], q: str) -> None:
    p_values = reference_p_values(tested, known)
    exact = [Fraction(int(a) + 1, int(n) + 1) for a, n in zip(p_values.above, p_values.size, strict=True)]
    m = len(exact)
    ranked = sorted(exact)
    passing = [k for k in range(1, m + 1) if ranked[k - 1] <= Fraction(q) * k / m]
    cut = ranked[passing[-1] - 1] if passing else Fraction(-1)
    assert discover(p_values, q).tolist() == [each <= cut for each in exact]


def test_groups_are_compared_with_their_own_reference() -> None:
    found = reference_p_values([5.0, 5.0], [1.0, 9.0, 9.0], groups=[0, 1], reference_groups=[0, 1, 1])
    assert found.values.tolist() == [0.5, 1.0]
    # a group without a reference can never be a discovery
    assert reference_p_values([5.0], [1.0], groups=[3], reference_groups=[0]).values.tolist() == [1.0]


def test_labels_that_are_each_others_reference_could_never_be_listed() -> None:
    """The k-th strangest of n has p = k/n: why the reference must be other labels."""
    ranks = np.arange(100)
    assert not discover(PValues(ranks, np.full(100, 99)), "0.9").any()


@pytest.mark.parametrize("wrong", [{"groups": [0]}, {"groups": [0, 0], "reference_groups": [0]}])
def test_groups_must_be_given_for_both(wrong: dict[str, list[int]]) -> None:
    with pytest.raises(InvalidArgument):
        reference_p_values([1.0], [2.0], **wrong)


def test_scores_must_be_numbers() -> None:
    with pytest.raises(InvalidScores):
        reference_p_values([float("nan")], [1.0])


@pytest.mark.parametrize("seed", range(12))
def test_the_weakest_word_by_enumeration(seed: int) -> None:
    p = random_potentials(seed, length=4)
    every = probabilities(p)
    for _, labels in every[:: max(1, len(every) // 7)]:
        spans = SPACE.spans(np.array(labels))
        each = [math.fsum(q for q, y in every if y[j] == labels[j]) for j in range(4)]
        found = weakest_label(p, SPACE, spans=spans)
        assert found.score == pytest.approx(-math.log(min(each)), abs=1e-9)
        assert each[found.token or 0] == pytest.approx(min(each))


def test_a_text_without_words_is_not_strange() -> None:
    p = random_potentials(0, length=1)
    empty = Potentials(emissions=np.zeros((0, len(SPACE))), transitions=p.transitions, start=p.start, end=p.end)
    assert weakest_label(empty, SPACE, spans=[]).score == 0.0
    with pytest.raises(InvalidLabels):
        weakest_label(empty, SPACE, spans=[Span(0, 1, "PER")])


@given(scores, scores, st.data())
def test_checking_what_is_not_worth_it_changes_nothing(
    known: list[float], tested: list[float], data: st.DataObject
) -> None:
    """If the other unchecked labels are left alone, no verdict on them can lengthen the list, whatever it is.

    As long as few labels were found right: afterwards it is an estimate.
    """
    q = "0.3"
    checked = data.draw(st.lists(st.booleans(), min_size=len(known), max_size=len(known)))
    checked[9:] = [False] * len(checked[9:])
    worth = set(worth_checking(known, checked, tested, q).tolist())
    assert all(not checked[i] for i in worth)
    best = [0.0 if i in worth else score for i, score in enumerate(known)]  # all errors, corrected to the plainest
    without = discover(reference_p_values(tested, best), q)
    everything = [score if checked[i] else 0.0 for i, score in enumerate(known)]
    assert discover(reference_p_values(tested, everything), q).tolist() == without.tolist()


def test_checked_labels_that_were_right_end_the_checking() -> None:
    rng = np.random.default_rng(0)
    known, tested = rng.exponential(size=300), rng.exponential(size=700)
    checked = np.zeros(300, np.bool_)
    for _ in range(300):
        worth = worth_checking(known, checked, tested, "0.1")
        if not worth.size:
            break
        assert known[worth[0]] == known[~checked].max()
        checked[worth[0]] = True
    assert checked.sum() < 30  # among right labels only, the strangest few are enough
