"""Sentence boundaries inside a text, found by `sentencex` and expressed in tokens.

Only a token's index is kept: boundary j means that token j begins a further sentence, where the chain scores
`end + start` instead of a transition (METHODS 1). The library sees the text in windows, because its time grows with
the square of the number of sentences in some scripts; a window begins where the last complete sentence ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import regex
import sentencex

from backend.documents.document import TURN_BREAK
from backend.tagger.borders import or_instead
from backend.tagger.tokens import Token

_WINDOW = 4_000  # characters
_TURN_BREAK = regex.compile(regex.escape(TURN_BREAK))
_SURROGATE = regex.compile(r"\p{Cs}")
# The library cuts a byte before a full stop, which kills it where white space of several bytes stands there (1.0.32;
# tests/backend/tagger/test_sentences.py says when that is mended). One space for one keeps the offsets.
_WIDE_SPACE = regex.compile(r"[^\S\x00-\x7f](?=\s*\.)")
_DEFAULT = "en"
# The library knows abbreviations by language; names bring these into every language, and cut a name in two if believed.
_TITLES = frozenset({"dr", "mr", "mrs", "ms", "st", "prof", "jr", "sr"})


def find_boundaries(text: str, tokens: Sequence[Token], *, language: str = "und") -> tuple[int, ...]:
    """Return the tokens, in 1 .. N-1 and in order, that begin a further sentence.

    A boundary inside a token, or one that no token follows, is dropped: tokens are never cut. So is one after an
    initial or a title (`J. Lee`, `Dr. Dre`). Where a turn or a block of a page ended a sentence begins in
    any case. The rule for other texts is part of what their stored sets and scores mean, under the hash of their model:
    change it only with all model hashes.

    >>> from backend.tagger.tokens import tokenize
    >>> text = "Dr. Smith left. Nobody saw it."
    >>> find_boundaries(text, tokenize(text), language="en")
    (5,)
    """
    if len(tokens) < 2:
        return ()
    starts = [token.start for token in tokens]
    first_tokens: set[int] = set()
    for start in _sentence_starts(text, language):
        j = bisect_left(starts, start)
        if 0 < j < len(tokens) and tokens[j - 1].end <= start and not _after_title(text, tokens, j):
            first_tokens.add(j)
    first_tokens |= {bisect_left(starts, found.end()) for found in _TURN_BREAK.finditer(text)} - {0, len(tokens)}
    return tuple(sorted(first_tokens))


def _after_title(text: str, tokens: Sequence[Token], j: int) -> bool:
    """Whether the tokens before j are an initial or title and its point, with nothing between."""
    if j < 2 or text[tokens[j - 1].start : tokens[j - 1].end] != "." or tokens[j - 2].end != tokens[j - 1].start:
        return False
    word = text[tokens[j - 2].start : tokens[j - 2].end]
    return (len(word) == 1 and word.isupper()) or word.lower() in _TITLES


def _sentence_starts(text: str, language: str) -> Iterator[int]:
    """Yield the character positions at which sentences begin, the first one aside."""
    code = _DEFAULT if language == "und" else language
    # The library takes UTF-8 only; a lone surrogate has none. It knows blank lines. One for one keeps the offsets.
    clean = _WIDE_SPACE.sub(" ", _SURROGATE.sub("\ufffd", text.replace(TURN_BREAK, "\n\n")))
    begin = 0
    while begin < len(clean):
        window = clean[begin : begin + _WINDOW]
        rest = begin + _WINDOW < len(clean)
        starts = [start for start in _starts_in(window, code) if 0 < start < len(window)]
        yield from (begin + start for start in starts)
        # The last sentence of a window may go on: it is read again, from its start, unless it fills the window.
        begin += starts[-1] if rest and starts else _WINDOW


def _starts_in(window: str, code: str) -> list[int]:
    """Ask the library; its offsets are believed only where its own copy of the sentence stands there."""
    sentences: list[dict[str, Any]] = or_instead(
        lambda: sentencex.get_sentence_boundaries(code, window), instead=[], library="sentencex", text=window
    )
    return [
        int(item["start_index"])
        for item in sentences
        if window.startswith(item["text"], item["start_index"]) and not item["is_paragraph_break"]
    ]
