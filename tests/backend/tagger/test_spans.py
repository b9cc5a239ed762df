import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.tagger.errors import InvalidSpan
from backend.tagger.spans import CharSpan, Reason, to_char_spans, to_token_spans
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


@settings(max_examples=300)
@given(st.text(max_size=30), st.lists(st.tuples(st.integers(-2, 32), st.integers(-2, 32)), max_size=6))
def test_every_span_is_expressed_exactly_or_reported(text: str, ranges: list[tuple[int, int]]) -> None:
    tokens = tokenize(text)
    spans = {CharSpan(start, end, "X") for start, end in ranges}
    found = to_token_spans(spans, tokens, text=text)
    assert len(found.spans) + len(found.inexpressible) == len(spans)
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
        (CharSpan(0, 3, "PER"), Reason.CUTS),
        (CharSpan(2, 4, "PER"), Reason.CUTS),
        (CharSpan(1, 3, "PER"), Reason.CUTS),
        (CharSpan(4, 5, "PER"), Reason.EMPTY),
        (CharSpan(2, 2, "PER"), Reason.EMPTY),
        (CharSpan(5, 99, "PER"), Reason.OUTSIDE),
        (CharSpan(-1, 4, "PER"), Reason.OUTSIDE),
        (CharSpan(0, 4, "DATE"), Reason.UNKNOWN_CLASS),
        (CharSpan(0, 15, "PER"), Reason.CROSSES),
    ],
)
def test_reasons(span: CharSpan, reason: Reason) -> None:
    text = "Anna left. Bob stayed"
    tokens = tokenize(text)
    found = to_token_spans([span], tokens, text=text, boundaries=[3], classes=["PER"])
    assert [item.reason for item in found.inexpressible] == [reason]
    assert found.spans == ()
    assert reason.value in str(found.inexpressible[0])


def test_a_span_may_end_or_begin_at_a_sentence_boundary() -> None:
    text = "Anna left. Bob stayed"
    found = to_token_spans([CharSpan(0, 10, "X"), CharSpan(11, 21, "X")], tokenize(text), text=text, boundaries=[3])
    assert found.spans == (Span(0, 3, "X"), Span(3, 5, "X"))


def test_overlap_keeps_the_first_and_duplicates_count_once() -> None:
    text = "New York City"
    spans = [CharSpan(4, 13, "ORG"), CharSpan(0, 8, "LOC"), CharSpan(0, 8, "LOC")]
    found = to_token_spans(spans, tokenize(text), text=text)
    assert found.spans == (Span(0, 2, "LOC"),)
    assert [(item.span, item.reason) for item in found.inexpressible] == [(spans[0], Reason.OVERLAPS)]


def test_token_span_outside_the_text_is_refused() -> None:
    with pytest.raises(InvalidSpan, match=r"inside 0\.\.1, got 0\.\.2"):
        to_char_spans([Span(0, 2, "PER")], [Token(0, 3)])
