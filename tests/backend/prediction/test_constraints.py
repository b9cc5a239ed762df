"""Fixed spans as constraints, against full enumeration: the labelings that hold them, in order, and no others."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.records import TextSpan
from backend.prediction.constraints import constrain
from backend.tagger.spans import Reason
from backend.tagger.tagger import Tagged
from backend.tagger.tokens import Token
from conformal import Chain, LabelSpace, Span, kbest, log_partition

SPACE = LabelSpace(["PER", "LOC"])
WORDS = 4
# One word is three characters and a space: word i is text[4 * i : 4 * i + 3].
TEXT = "abc " * WORDS


def tagged(seed: int, boundaries: tuple[int, ...] = ()) -> Tagged:
    rng = np.random.default_rng(seed)
    L = len(SPACE)
    chain = Chain(
        transitions=np.where(SPACE.allowed, rng.normal(size=(L, L)), -np.inf),
        start=np.where(SPACE.allowed_start, rng.normal(size=L), -np.inf),
        end=rng.normal(size=L),
    )
    tokens = tuple(Token(4 * i, 4 * i + 3) for i in range(WORDS))
    return Tagged(TEXT, tokens, chain.potentials(rng.normal(size=(WORDS, L)), boundaries=boundaries), "en")


def characters(span: Span) -> TextSpan:
    return TextSpan(4 * span.start, 4 * span.end - 1, span.label)


def every_labeling(text: Tagged) -> list[tuple[float, tuple[int, ...]]]:
    everything = kbest(text.potentials, len(SPACE) ** WORDS)
    labels = [tuple(row) for row in everything.labels.tolist()]
    assert len(labels) == sum(
        SPACE.is_legal(each) and all(each[j] % 2 or not each[j] for j in text.boundaries)
        for each in product(range(len(SPACE)), repeat=WORDS)
    )
    return list(zip(everything.scores.tolist(), labels, strict=True))


spans = st.lists(
    st.builds(
        lambda start, length, label: Span(start, min(WORDS, start + length), label),
        st.integers(0, WORDS - 1),
        st.integers(1, 2),
        st.sampled_from(SPACE.classes),
    ),
    max_size=2,
).filter(lambda found: len(found) < 2 or found[0].end <= found[1].start or found[1].end <= found[0].start)


@given(st.integers(0, 50), spans)
def test_exactly_the_labelings_that_hold_the_fixed_spans_are_left(seed: int, fixed: list[Span]) -> None:
    text = tagged(seed)
    bound, ignored = constrain(text, [characters(span) for span in fixed], space=SPACE)
    assert ignored == ()
    wanted = [each for each in every_labeling(text) if set(fixed) <= set(SPACE.spans(each[1]))]
    found = kbest(bound.potentials, len(SPACE) ** WORDS)
    assert [tuple(row) for row in found.labels.tolist()] == [labels for _, labels in wanted]
    np.testing.assert_allclose(found.scores, [score for score, _ in wanted])
    # Probabilities are conditional on what is fixed.
    total = np.logaddexp.reduce([score for score, _ in wanted])
    assert log_partition(bound.potentials) == pytest.approx(total)
    assert np.exp(found.log_probabilities).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("span", "boundaries", "reason", "kept_free"),
    [
        (TextSpan(1, 3, "PER"), (), Reason.CUTS, {0}),
        (TextSpan(0, 7, "MISC"), (), Reason.UNKNOWN_CLASS, {0, 1}),
        (TextSpan(4, 11, "PER"), (2,), Reason.CROSSES, {1, 2}),
        (TextSpan(3, 4, "PER"), (), Reason.EMPTY, set()),
        (TextSpan(0, 99, "PER"), (), Reason.OUTSIDE, {0, 1, 2, 3}),
    ],
)
def test_what_cannot_be_said_keeps_its_tokens_free(
    span: TextSpan, boundaries: tuple[int, ...], reason: Reason, kept_free: set[int]
) -> None:
    text = tagged(3, boundaries)
    bound, ignored = constrain(text, [span], space=SPACE)
    assert [each.reason for each in ignored] == [reason]
    wanted = [labels for _, labels in every_labeling(text) if all(labels[i] == 0 for i in kept_free)]
    assert [tuple(row) for row in kbest(bound.potentials, 10_000).labels.tolist()] == wanted


def test_a_fixed_span_wins_over_one_that_overlaps_it() -> None:
    text = tagged(5)
    bound, ignored = constrain(text, [TextSpan(0, 7, "PER"), TextSpan(4, 11, "LOC")], space=SPACE)
    assert [each.reason for each in ignored] == [Reason.OVERLAPS]
    best = kbest(bound.potentials, 1).labels[0]
    assert SPACE.spans(best)[0] == Span(0, 2, "PER")
    assert best[2] == 0


def test_nothing_fixed_changes_nothing() -> None:
    text = tagged(1)
    assert constrain(text, [], space=SPACE) == (text, ())
