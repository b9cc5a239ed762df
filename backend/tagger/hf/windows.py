"""Windows of pieces that fit a model: whole texts where they fit, else runs of words with context at either side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from backend.tagger.hf.subwords import Ints, Subworder, Subwords
from backend.tagger.reading import Read
from backend.tagger.tokens import Token


class Window(NamedTuple):
    """Words `begin .. end - 1` of a text, of which `first .. last - 1` are kept; the rest is context."""

    begin: int
    end: int
    first: int
    last: int


class Piece(NamedTuple):
    """A window as the model gets it: ids without special tokens, and the first piece of each of its words (or -1).

    Its words are counted from word `offset` of the text with this number.
    """

    text: int
    offset: int
    window: Window
    ids: Ints  # (S,)
    firsts: Ints  # (end - begin,)


def word_starts(subwords: Subwords) -> Ints:
    """Return the piece at which each word begins, and the number of pieces; a word without one begins at the next.

    >>> word_starts(Subwords(np.arange(5), np.array([0, -1, 2, 2, -1]))).tolist()
    [0, 2, 2, 2, 5, 5]
    """
    ends = np.append(subwords.firsts, len(subwords.ids))
    filled = np.where(ends < 0, len(subwords.ids), ends)
    return np.minimum.accumulate(filled[::-1])[::-1].astype(np.int64)


def find_windows(starts: Ints, *, limit: int, margin: int) -> Iterator[Window]:
    """Cut words that begin at the pieces `starts` (N + 1,) into windows of at most `limit` pieces.

    Each word is kept once, with up to `margin` pieces of context on either side. A word of more than
    `limit - 2 * margin` pieces has a window of its own.

    >>> list(find_windows(np.arange(6), limit=8, margin=2))
    [Window(begin=0, end=5, first=0, last=5)]
    >>> [(window.first, window.last) for window in find_windows(np.arange(6), limit=4, margin=1)]
    [(0, 2), (2, 4), (4, 5)]
    """
    N = len(starts) - 1
    if N == 0:
        return
    if starts[-1] <= limit:
        yield Window(0, N, 0, N)
        return
    first = 0
    while first < N:
        fits = int(np.searchsorted(starts, starts[first] + limit - 2 * margin, "right")) - 1
        last = min(N, max(first + 1, fits))
        begin = min(first, int(np.searchsorted(starts, starts[first] - margin, "left")))
        end = max(last, int(np.searchsorted(starts, starts[last] + margin, "right")) - 1)
        yield Window(begin, min(end, N), first, last)
        first = last


def cut_texts(
    texts: Sequence[Read], subworder: Subworder, *, limit: int, margin: int, by_sentence: bool
) -> list[Piece]:
    """Return the windows of texts: of each sentence by itself, or of whole texts.

    What is run together depends on the text alone.
    """
    places: list[tuple[int, int]] = []
    parts: list[str] = []
    words: list[list[Token]] = []
    for number, read in enumerate(texts):
        inner = read.boundaries if by_sentence else ()
        for start, end in zip((0, *inner), (*inner, len(read.tokens)), strict=True):
            if start == end:
                continue
            # A whole text keeps the blanks at its ends, as the tokenizer would see them.
            begin, stop = (read.tokens[start].start, read.tokens[end - 1].end) if by_sentence else (0, len(read.text))
            places.append((number, start))
            parts.append(read.text[begin:stop])
            words.append([Token(token.start - begin, token.end - begin) for token in read.tokens[start:end]])
    pieces = subworder.split(parts, words)
    return [
        piece
        for (number, offset), subwords in zip(places, pieces, strict=True)
        for piece in _cut(number, offset, subwords, limit, margin)
    ]


def _cut(text: int, offset: int, subwords: Subwords, limit: int, margin: int) -> Iterator[Piece]:
    """Yield the windows of one text or sentence. One that fits is given whole, exactly as it was tokenised."""
    starts = word_starts(subwords)
    for window in find_windows(starts, limit=limit, margin=margin):
        if window == (0, len(subwords.firsts), 0, len(subwords.firsts)) and len(subwords.ids) <= limit:
            yield Piece(text, offset, window, subwords.ids, subwords.firsts)
            continue
        begin, end = window.begin, window.end
        from_piece = int(starts[begin])
        firsts = subwords.firsts[begin:end]
        # Words may share a piece with the next one: the last word's own first piece belongs to the window.
        to_piece = min(max(int(starts[end]), int(firsts.max(initial=-1)) + 1), from_piece + limit)
        # A word cut off by the limit is context of a giant word; it is not kept, and needs no piece.
        inside = (firsts >= 0) & (firsts < to_piece)
        yield Piece(text, offset, window, subwords.ids[from_piece:to_piece], np.where(inside, firsts - from_piece, -1))
