"""Character spans to token spans and back. Nothing is ever moved to make it fit.

A span drawn by a person that begins or ends inside a token, or covers no token, cannot be said by any labeling of
the tokens: it is reported with the reason, and its task scores `+inf` (METHODS 3.3).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from backend.domain.records import TextSpan
from backend.tagger.errors import InvalidSpan
from backend.tagger.tokens import Token
from conformal.labels import Span


class Reason(Enum):
    """Why no labeling of the tokens says this span."""

    OUTSIDE = "it reaches outside the text"
    EMPTY = "it covers no token"
    CUTS = "it cuts a token"
    CROSSES = "it crosses a sentence boundary"
    OVERLAPS = "it overlaps another span"
    UNKNOWN_CLASS = "its class is not one of the model's"


@dataclass(frozen=True)
class Inexpressible:
    """A span that cannot be expressed, and why."""

    span: TextSpan
    reason: Reason

    def __str__(self) -> str:
        start, end, label = self.span
        return f"span {start}..{end} ({label}) is not expressible: {self.reason.value}"


@dataclass(frozen=True)
class Alignment:
    """Token spans of the expressible character spans, in text order, and the rest with reasons."""

    spans: tuple[Span, ...]
    inexpressible: tuple[Inexpressible, ...]


def to_token_spans(
    spans: Iterable[TextSpan],
    tokens: Sequence[Token],
    *,
    text: str,
    boundaries: Iterable[int] = (),
    classes: Iterable[str] | None = None,
) -> Alignment:
    """Express character spans in tokens; white space at a span's edges belongs to no token and is no obstacle.

    `boundaries` are the tokens that begin a further sentence: no entity reaches across one (METHODS 1). Of two
    spans that overlap, the one that begins first (the longer at a tie) is kept and the other reported. Spans of one
    class over the same tokens say the same thing and count once, also where one of them has white space at its edges.

    >>> text = "Anna met O'Brien."
    >>> tokens = [Token(0, 4), Token(5, 8), Token(9, 10), Token(10, 11), Token(11, 16), Token(16, 17)]
    >>> aligned = to_token_spans([TextSpan(0, 4, "PER"), TextSpan(9, 14, "PER")], tokens, text=text)
    >>> aligned.spans
    (Span(start=0, end=1, label='PER'),)
    >>> str(aligned.inexpressible[0])
    'span 9..14 (PER) is not expressible: it cuts a token'
    """
    starts = [token.start for token in tokens]
    ends = [token.end for token in tokens]
    known = None if classes is None else frozenset(classes)
    crossing = sorted(boundaries)
    good: list[Span] = []
    bad: list[Inexpressible] = []
    for span in sorted(set(spans), key=lambda s: (s.start, -s.end, s.label)):
        first, last, reason = _locate(span, text, starts, ends)
        if reason is None and known is not None and span.label not in known:
            reason = Reason.UNKNOWN_CLASS
        if reason is None and bisect_left(crossing, first + 1) != bisect_left(crossing, last):
            reason = Reason.CROSSES
        if reason is None and good and good[-1] == Span(first, last, span.label):
            continue
        if reason is None and good and first < good[-1].end:
            reason = Reason.OVERLAPS
        if reason is None:
            good.append(Span(first, last, span.label))
        else:
            bad.append(Inexpressible(span, reason))
    return Alignment(tuple(good), tuple(bad))


def _locate(span: TextSpan, text: str, starts: list[int], ends: list[int]) -> tuple[int, int, Reason | None]:
    """Return the half-open token range of a character span, or why there is none."""
    start, end, _ = span
    if not 0 <= start <= end <= len(text):
        return 0, 0, Reason.OUTSIDE
    first = bisect_left(ends, start + 1)  # first token that ends after the span's start
    last = bisect_left(starts, end)  # tokens before this one start inside the span or earlier
    if start == end or first >= last:
        return 0, 0, Reason.EMPTY
    if starts[first] < start or ends[last - 1] > end:
        return 0, 0, Reason.CUTS
    return first, last, None


def to_char_spans(spans: Iterable[Span], tokens: Sequence[Token]) -> list[TextSpan]:
    """Token spans as character spans from the first token's start to the last token's end.

    >>> to_char_spans([Span(0, 2, "LOC")], [Token(0, 3), Token(4, 8)])
    [TextSpan(start=0, end=8, label='LOC')]
    """
    converted: list[TextSpan] = []
    for start, end, label in spans:
        if not 0 <= start < end <= len(tokens):
            raise InvalidSpan(f"expected a token span inside 0..{len(tokens)}, got {start}..{end} ({label})")
        converted.append(TextSpan(tokens[start].start, tokens[end - 1].end, label))
    return converted
