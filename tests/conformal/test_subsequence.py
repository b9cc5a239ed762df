"""Entity scores, candidate spans and flags against direct definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conformal.errors import InvalidArgument, InvalidScores, NoLegalLabeling
from conformal.flags import flag_spans
from conformal.labels import LabelSpace, Span
from conformal.subsequence import (
    EntityMethod,
    TopMarginals,
    candidate_spans,
    entity_ranks,
    label_members,
    list_spans,
    score_spans,
    span_labels,
    with_outside,
)
from conformal.trellis import Potentials, entity_marginals, kbest
from tests.conformal.trellis import strategies


@given(arrays(np.float64, (4, 3), elements=st.sampled_from([0.0, 0.1, 0.2, 0.3])))
def test_entity_scores_follow_their_definitions(classes: np.ndarray) -> None:
    p = with_outside(classes)
    assert p.shape == (4, 4)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    scored = score_spans(p)
    for i in range(4):
        for w in range(4):
            at_least = [v for v in range(4) if p[i, v] >= p[i, w]]
            assert scored.class_rank[i, w] == len(at_least)
            assert scored.cumulative[i, w] == pytest.approx(sum(p[i, v] for v in at_least))
            assert scored.scores("nc3")[i, w] == len(at_least)
            assert np.exp(-scored.scores("nc1")[i, w]) == pytest.approx(p[i, w])
    likeliest = p.argmax(axis=1)
    assert np.all(scored.scores("nc3").argmin(axis=1) == likeliest)  # never the strangest


def test_junk_is_strange_for_every_class() -> None:
    junk = score_spans([[0.004, 0.002, 0.994]])
    assert junk.class_rank.tolist() == [[2, 3, 1]]
    assert junk.cumulative[0, 0] == pytest.approx(0.998)


@given(strategies.tagged(max_length=4), st.sampled_from([0.01, 0.1, 0.3]))
def test_candidates_are_all_spans_with_enough_entity_mass(chain: tuple[LabelSpace, Potentials], p_min: float) -> None:
    space, potentials = chain
    try:
        marginals = entity_marginals(potentials, space)
    except NoLegalLabeling:
        return
    N = potentials.length
    extra = [Span(0, N, space.classes[0])] if N else []
    found = candidate_spans(marginals, space, p_min=p_min, extra=extra)
    sums = {(a, b): marginals.of_span(a, b).sum() for a in range(N) for b in range(a + 1, N + 1)}
    expected = {key for key, total in sums.items() if total >= p_min} | {(s.start, s.end) for s in extra}
    assert set(found.keys) == expected
    assert list(found.keys) == sorted(found.keys)
    assert found.probabilities.shape == (len(expected), len(space.classes) + 1)
    for key, row in zip(found.keys, found.probabilities, strict=True):
        np.testing.assert_array_equal(row[:-1], marginals.of_span(*key))
        assert row[-1] == pytest.approx(max(0.0, 1 - row[:-1].sum()))


@given(strategies.tagged(max_length=4), st.integers(1, 30))
def test_top_marginals_sum_over_the_list(chain: tuple[LabelSpace, Potentials], k: int) -> None:
    space, potentials = chain
    try:
        best = kbest(potentials, k, space=space)
    except NoLegalLabeling:
        return
    shares = np.exp(best.log_probabilities)
    shares = shares / shares.sum()
    found = TopMarginals.of(best.labels, best.log_probabilities, space=space)
    expected: dict[Span, float] = {}
    first: dict[Span, int] = {}
    for r, labels in enumerate(best.labels):
        for span in space.spans(labels):
            expected[span] = expected.get(span, 0.0) + shares[r]
            first.setdefault(span, r + 1)
    for span, total in expected.items():
        row = found.of_span(span.start, span.end)
        assert row[space.classes.index(span.label)] == pytest.approx(total)
    assert found.probabilities.size == len(expected)
    assert entity_ranks(best, space, list(first)) == list(first.values())
    missing = Span(0, potentials.length + 5, space.classes[0])
    assert entity_ranks(best, space, [missing]) == [0]
    rows, starts, ends, classes = list_spans(best.labels)
    listed = [
        (r, Span(int(a), int(b), space.classes[int(w)])) for r, a, b, w in zip(rows, starts, ends, classes, strict=True)
    ]
    assert listed == [(r, span) for r, labels in enumerate(best.labels) for span in space.spans(labels)]


def slow_flags(spans: list[tuple[int, int]], sets: np.ndarray, best: list[int | None]) -> tuple[list[bool], list[bool]]:
    """METHODS 6.4, word for word."""
    has_class = [bool(row[:-1].any()) for row in sets]
    reported = [has or b is not None for has, b in zip(has_class, best, strict=True)]
    flagged = []
    for i, (a, b) in enumerate(spans):
        exact = best[i] is not None and set(np.flatnonzero(sets[i])) == {best[i]}
        rival = any(
            j != i and reported[j] and has_class[j] and spans[j][0] < b and a < spans[j][1] for j in range(len(spans))
        )
        flagged.append(reported[i] and not (exact and not rival))
    return reported, flagged


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4)), unique=True, max_size=9).flatmap(
        lambda found: st.tuples(
            st.just([(a, a + size) for a, size in found]),
            arrays(np.bool_, (len(found), 3)),
            st.lists(st.sampled_from([None, 0, 1]), min_size=len(found), max_size=len(found)),
        )
    )
)
def test_flags_follow_the_rule(case: tuple[list[tuple[int, int]], np.ndarray, list[int | None]]) -> None:
    spans, sets, best = case
    reported, flagged = flag_spans([a for a, _ in spans], [b for _, b in spans], sets=sets, best=best)
    assert (reported.tolist(), flagged.tolist()) == slow_flags(spans, sets, best)


def test_uncalibrated_labels_stay_out_but_outside_stays_in() -> None:
    scores = np.zeros((2, 3))
    sets = label_members(scores, [np.array([True, False]), None, None])
    assert sets.tolist() == [[True, False, True], [False, False, True]]
    assert span_labels(LabelSpace(["PER", "LOC"])) == ("PER", "LOC", "O")


def test_bad_input_is_refused() -> None:
    for bad in ({"name": "nc9"}, {"weights": "equal"}, {"p_min": 0.0}, {"n_min": 0}, {"top_k": 0}):
        with pytest.raises(InvalidArgument):
            EntityMethod(**bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidScores, match="add up"):
        with_outside([[0.9, 0.9]])
    with pytest.raises(InvalidScores, match="NaN"):
        score_spans([[np.nan]])
    with pytest.raises(InvalidArgument, match="entity score"):
        score_spans([[0.5, 0.5]]).scores("nc7")
    with pytest.raises(InvalidScores, match="sets of shape"):
        flag_spans([0], [1], sets=[[True]], best=[None])
    with pytest.raises(InvalidScores, match="non-empty spans"):
        flag_spans([1], [1], sets=[[True, False]], best=[None])
    potentials = Potentials(
        emissions=np.zeros((1, 3)), transitions=np.zeros((3, 3)), start=np.zeros(3), end=np.zeros(3)
    )
    with pytest.raises(InvalidArgument, match="spans"):
        entity_ranks(kbest(potentials, 1), LabelSpace(["PER"]), [])
