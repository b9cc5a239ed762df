from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.domain.records import TextSpan
from backend.tagger.errors import InvalidSpan
from backend.tagger.spans import Reason, to_char_spans, to_token_spans
from backend.tagger.tokens import Token, tokenize
from conformal.labels import Span

text_and_cuts = st.text(min_size=1, max_size=40).flatmap(
    lambda text: st.tuples(st.just(text), st.lists(st.integers(0, len(tokenize(text))), unique=True, max_size=8))
)


@settings(max_examples=300)
@given(text_and_cuts, st.data())
def test_token_spans_survive_the_round_trip(pair: tuple[str, list[int]], data: st.DataObject) -> None:
    text, cuts = pair
    tokens = tokenize(text)
    edges = sorted(cuts)
    spans = [
        Span(start, end, data.draw(st.sampled_from(["PER", "LOC"])))
        for start, end in zip(edges[::2], edges[1::2], strict=False)
    ]
    there = to_char_spans(spans, tokens)
    back = to_token_spans(there, tokens, text=text)
    assert list(back.spans) == spans
    assert not back.inexpressible
    for char, token in zip(there, spans, strict=True):
        assert (char.start, char.end) == (tokens[token.start].start, tokens[token.end - 1].end)


def _tokens_of(span: TextSpan, tokens: Sequence[Token]) -> tuple[int, int] | None:
    """Return the tokens that a span covers exactly, white space at its edges aside; None where it cuts one."""
    inside = [i for i, token in enumerate(tokens) if span.start <= token.start and token.end <= span.end]
    touched = [i for i, token in enumerate(tokens) if token.start < span.end and span.start < token.end]
    return (inside[0], inside[-1] + 1) if inside and inside == touched else None


def test_spans_of_one_class_over_the_same_tokens_count_once() -> None:
    text = "Anna met Bob."
    twice = [TextSpan(0, 5, "PER"), TextSpan(0, 4, "PER"), TextSpan(0, 4, "LOC")]
    found = to_token_spans(twice, tokenize(text), text=text)
    assert found.spans == (Span(0, 1, "PER"),)
    assert [(each.span, each.reason) for each in found.inexpressible] == [(TextSpan(0, 4, "LOC"), Reason.OVERLAPS)]


@settings(max_examples=300)
@given(st.text(max_size=30), st.lists(st.tuples(st.integers(-2, 32), st.integers(-2, 32)), max_size=6))
def test_every_span_is_expressed_exactly_or_reported(text: str, ranges: list[tuple[int, int]]) -> None:
    tokens = tokenize(text)
    spans = {TextSpan(start, end, "X") for start, end in ranges}
    found = to_token_spans(spans, tokens, text=text)
    said = {_tokens_of(span, tokens) for span in spans}
    expressed = {(span.start, span.end) for span in found.spans}
    assert len(expressed) == len(found.spans)
    assert expressed <= said
    reported = {each.span for each in found.inexpressible}
    assert all(span in reported or _tokens_of(span, tokens) in expressed for span in spans)
    assert {span for span in spans if _tokens_of(span, tokens) is None} <= reported
    for start, end, _ in to_char_spans(found.spans, tokens):
        # Only characters of no token (white space) may lie between a drawn span's edge and its tokens.
        assert any(
            s.start <= start
            and end <= s.end
            and not tokenize(text[s.start : start])
            and not tokenize(text[end : s.end])
            for s in spans
        )
    previous = 0
    for span in found.spans:
        assert previous <= span.start < span.end
        previous = span.end


@pytest.mark.parametrize(
    ("span", "reason"),
    [
        (TextSpan(0, 3, "PER"), Reason.CUTS),
        (TextSpan(2, 4, "PER"), Reason.CUTS),
        (TextSpan(1, 3, "PER"), Reason.CUTS),
        (TextSpan(4, 5, "PER"), Reason.EMPTY),
        (TextSpan(2, 2, "PER"), Reason.EMPTY),
        (TextSpan(5, 99, "PER"), Reason.OUTSIDE),
        (TextSpan(-1, 4, "PER"), Reason.OUTSIDE),
        (TextSpan(0, 4, "DATE"), Reason.UNKNOWN_CLASS),
        (TextSpan(0, 15, "PER"), Reason.CROSSES),
    ],
)
def test_reasons(span: TextSpan, reason: Reason) -> None:
    text = "Anna left. Bob stayed"
    tokens = tokenize(text)
    found = to_token_spans([span], tokens, text=text, boundaries=[3], classes=["PER"])
    assert [item.reason for item in found.inexpressible] == [reason]
    assert found.spans == ()
    assert reason.value in str(found.inexpressible[0])


def test_a_span_may_end_or_begin_at_a_sentence_boundary() -> None:
    text = "Anna left. Bob stayed"
    found = to_token_spans([TextSpan(0, 10, "X"), TextSpan(11, 21, "X")], tokenize(text), text=text, boundaries=[3])
    assert found.spans == (Span(0, 3, "X"), Span(3, 5, "X"))


def test_overlap_keeps_the_first_and_duplicates_count_once() -> None:
    text = "New York City"
    spans = [TextSpan(4, 13, "ORG"), TextSpan(0, 8, "LOC"), TextSpan(0, 8, "LOC")]
    found = to_token_spans(spans, tokenize(text), text=text)
    assert found.spans == (Span(0, 2, "LOC"),)
    assert [(item.span, item.reason) for item in found.inexpressible] == [(spans[0], Reason.OVERLAPS)]


def test_token_span_outside_the_text_is_refused() -> None:
    with pytest.raises(InvalidSpan, match=r"inside 0\.\.1, got 0\.\.2"):
        to_char_spans([Span(0, 2, "PER")], [Token(0, 3)])
