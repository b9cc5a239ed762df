"""predict_set with a level of flags: what is flagged, what is shown of it, what stays as it was (METHODS 11)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.labels import OUTSIDE, LabelSpace, Span
from conformal.prediction import PredictionSet, predict_set, text_candidates
from conformal.risk import FLOOR, span_doubts
from conformal.rows import EntityRows, TaskRows, score_unit
from conformal.subsequence import Candidates, candidate_spans, listing_floor
from conformal.thresholds import Thresholds, calibrate
from conformal.trellis import Chain, Potentials, entity_marginals, kbest

SPACE = LabelSpace(["PER", "LOC"])
WIDTH = 2 * len(SPACE.classes) + 1
CHAIN = Chain(
    transitions=np.where(SPACE.allowed, 0.0, -np.inf),
    start=np.where(SPACE.allowed_start, 0.0, -np.inf),
    end=np.zeros(5),
)


def _thresholds() -> Thresholds:
    rng = np.random.default_rng(4)
    rows = TaskRows.of(["en/1-10"] * 120, np.log(rng.uniform(0.05, 0.9, 120)))
    spans = EntityRows.of(np.arange(360), ["PER", "LOC", "O"] * 120, probability=rng.uniform(0.2, 1.0, 360))
    return calibrate(rows, spans, classes=SPACE.classes)


THRESHOLDS = _thresholds()
P_MIN = THRESHOLDS.entity_method.p_min
LEVELS = st.one_of(
    st.floats(FLOOR, 1.0),
    st.sampled_from([FLOOR, 1.0]),
)


@st.composite
def texts(draw: st.DrawFn) -> Potentials:
    """Texts from flat to sharp, of one word to eight."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    length, sharp = draw(st.integers(1, 8)), draw(st.sampled_from([0.2, 2.0, 6.0]))
    return CHAIN.potentials(rng.normal(size=(length, WIDTH)) * sharp)


def predict(potentials: Potentials, level: float | None, candidates: Candidates | None = None) -> PredictionSet:
    return predict_set(
        potentials,
        SPACE,
        stratum="en/1-10",
        thresholds=THRESHOLDS,
        alpha="0.1",
        flag_level=level,
        candidates=candidates,
    )


def said(made: PredictionSet) -> dict[tuple[int, int], str]:
    return {(span.start, span.end): span.label for span in made.labelings[0].spans}


def listed(potentials: Potentials, made: PredictionSet) -> Candidates:
    return text_candidates(potentials, SPACE, thresholds=THRESHOLDS, best=made.labelings[0].spans)


def doubts(candidates: Candidates, best: dict[tuple[int, int], str]) -> dict[tuple[int, int], float]:
    """The doubt of every listed span, by the definition."""
    found = {}
    for key, row in zip(candidates.keys, candidates.probabilities.tolist(), strict=True):
        at = SPACE.classes.index(best[key]) if key in best else len(SPACE.classes)
        doubt = 1.0 - row[at]
        found[key] = 0.0 if doubt < FLOOR else doubt
    return found


def tokens(spans: list[tuple[int, int]]) -> set[int]:
    return {token for start, end in spans for token in range(start, end)}


def flagged(made: PredictionSet) -> list[tuple[int, int]]:
    return [(span.start, span.end) for span in made.spans if span.flagged]


@given(texts(), LEVELS)
def test_a_span_is_flagged_exactly_if_its_doubt_reaches_the_level(potentials: Potentials, level: float) -> None:
    made = predict(potentials, level)
    best = said(made)
    known = doubts(listed(potentials, made), best)
    reported = {(span.start, span.end) for span in made.spans}
    assert reported >= set(best)
    for span in made.spans:
        assert span.doubt == pytest.approx(known[span.start, span.end], abs=1e-12)
        assert span.flagged == (known[span.start, span.end] >= level)
        assert span.flagged or (span.start, span.end) in best
    # Not every flagged span is shown, but every character of every one is.
    assert tokens(flagged(made)) == tokens([key for key, doubt in known.items() if doubt >= level])


@given(texts(), LEVELS, LEVELS)
def test_a_smaller_level_flags_a_superset(potentials: Potentials, one: float, other: float) -> None:
    fewer, more = (tokens(flagged(predict(potentials, level))) for level in (max(one, other), min(one, other)))
    assert fewer <= more


@given(texts(), LEVELS)
def test_a_flag_names_what_is_to_be_decided(potentials: Potentials, level: float) -> None:
    made = predict(potentials, level)
    best = said(made)
    found = listed(potentials, made)
    rows = dict(zip(found.keys, found.probabilities.tolist(), strict=True))
    names = (*SPACE.classes, OUTSIDE)
    plain = {(span.start, span.end): span for span in predict(potentials, None).spans}
    for span in made.spans:
        held = [label.label for label in span.labels]
        assert [label.p_value for label in span.labels] == sorted((x.p_value for x in span.labels), reverse=True)
        assert all(0.0 < label.p_value <= 1.0 for label in span.labels)
        if span.flagged:
            here = best.get((span.start, span.end), OUTSIDE)
            row = rows[span.start, span.end]
            rival = max((name for name in names if name != here), key=lambda name: row[names.index(name)])
            assert len(held) >= 2
            assert {here, rival} <= set(held)
        elif (span.start, span.end) in plain:  # its set is the one that flags without a level show
            assert span.labels == plain[span.start, span.end].labels


@given(texts())
def test_the_ends_of_the_family(potentials: Potentials) -> None:
    nothing, everything = predict(potentials, math.inf), predict(potentials, 0.0)
    best = said(nothing)
    assert {(span.start, span.end) for span in nothing.spans} == set(best)
    assert flagged(nothing) == []
    assert all(span.flagged for span in everything.spans)
    assert set(best) <= {(span.start, span.end) for span in everything.spans}
    # All of the text is to be read then; what is marked is what is an entity, or may well be one.
    assert tokens(flagged(everything)) >= tokens(flagged(predict(potentials, P_MIN)))


def test_a_level_decides_between_a_sure_and_a_doubtful_entity() -> None:
    emissions = np.zeros((4, WIDTH))
    emissions[:, 0] = 14.0
    emissions[0, :2] = [0.0, 14.0]
    emissions[3, :] = [0.0, 14.0, 0.0, 13.0, 0.0]  # PER, with a fourth of it for LOC
    made = predict(CHAIN.potentials(emissions), 0.1)
    first, second = made.spans
    assert ((first.start, first.end), first.flagged) == ((0, 1), False)
    assert ((second.start, second.end), second.flagged) == ((3, 4), True)
    assert second.doubt == pytest.approx(1 / (1 + math.e), abs=1e-4)
    assert [label.label for label in second.labels][:2] == ["PER", "LOC"]
    assert flagged(predict(CHAIN.potentials(emissions), 0.3)) == []


@given(texts())
def test_sets_without_a_level_do_not_know_how_far_candidates_reach(potentials: Potentials) -> None:
    made = predict(potentials, None)
    assert all(span.doubt is None for span in made.spans)
    marginals = entity_marginals(potentials, SPACE, floor=listing_floor(SPACE, P_MIN))
    narrow = candidate_spans(marginals, SPACE, p_min=P_MIN, extra=made.labelings[0].spans)
    assert predict(potentials, None, narrow) == made
    assert predict(potentials, None, listed(potentials, made)) == made


@given(texts(), st.sampled_from([0.01, 0.05, 0.3]), st.sampled_from([1e-4, 1e-3, 0.01]))
def test_a_floor_lists_more_and_above_gives_the_old_list_back(
    potentials: Potentials, p_min: float, floor: float
) -> None:
    best = [Span(*each) for each in SPACE.spans(kbest(potentials, 1).labels[0])]
    marginals = entity_marginals(potentials, SPACE, floor=listing_floor(SPACE, p_min))
    old = candidate_spans(marginals, SPACE, p_min=p_min, extra=best)
    wide = candidate_spans(marginals, SPACE, p_min=p_min, extra=best, floor=floor)
    assert set(wide.keys) >= set(old.keys)
    assert list(wide.keys) == sorted(wide.keys)
    again = wide.above(p_min, extra=[(span.start, span.end) for span in best])
    assert again.keys == old.keys
    np.testing.assert_array_equal(again.probabilities, old.probabilities)
    for start, end in set(wide.keys) - set(old.keys):
        assert floor <= marginals.of_span(start, end).sum() + 1e-9
    # Nothing that is an entity with at least the floor's probability is left out.
    for start in range(potentials.length):
        for end in range(start + 1, potentials.length + 1):
            total = marginals.of_span(start, end).sum()
            if total >= floor * 1.2:
                assert (start, end) in wide.keys


def test_taking_keeps_ranks_beside_their_spans() -> None:
    found = Candidates(
        np.array([0, 1, 2]),
        np.array([1, 2, 3]),
        np.array([[0.5, 0.3, 0.2], [0.001, 0.0, 0.999], [0.004, 0.005, 0.991]]),
        np.array([[1, 2, 1], [9, 0, 1], [3, 4, 1]]),
    )
    kept = found.above(0.005, extra=[(1, 2)])
    assert kept is found
    few = found.above(0.005)
    assert few.keys == ((0, 1), (2, 3))
    assert few.ranks is not None
    assert few.ranks.tolist() == [[1, 2, 1], [3, 4, 1]]


@given(texts(), st.integers(0, 2**32 - 1))
def test_what_is_listed_for_flags_does_not_depend_on_the_label(potentials: Potentials, seed: int) -> None:
    """Rows that calibrate and sets that are served must flag the same: otherwise nothing is exchangeable."""
    rng = np.random.default_rng(seed)
    labelings = kbest(potentials, 50)
    truth = SPACE.spans(labelings.labels[rng.integers(labelings.count)])
    one = score_unit(potentials, SPACE, spans=truth, p_min=P_MIN)
    other = score_unit(potentials, SPACE, spans=[], lost=["PER"], p_min=P_MIN)
    served = listed(potentials, predict(potentials, None))
    for scored in (one, other):
        assert scored.best == tuple(SPACE.spans(labelings.labels[0]))
        assert scored.listed is not None
        assert scored.listed.keys == served.keys
        np.testing.assert_array_equal(scored.listed.probabilities, served.probabilities)
        classes = [
            next((SPACE.classes.index(s.label) for s in scored.best if (s.start, s.end) == key), None)
            for key in scored.listed.keys
        ]
        assert span_doubts(scored.listed.probabilities, classes).min(initial=0.0) >= 0.0
