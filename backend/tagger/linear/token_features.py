"""What a token says in its place: its word, its neighbours, the string it is glued into, its place in the sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from backend.tagger.linear.word_features import (
    EXACT,
    KIND,
    LOWER,
    OUTLINE,
    SHAPE,
    SUFFIXES,
    Hashes,
    Ints,
    hash_strings,
    hash_word_list,
    join,
    mix,
)
from backend.tagger.tokens import Token

_EDGE = np.uint64(0x5BD1E995)  # stands for what lies beyond a sentence
BIAS = np.uint64(1)  # every token has it
_CHUNK = 24  # characters of a glued string that count at either end


def bias_row(known: Hashes) -> int:
    """Return the row of the feature that every token has."""
    return int(np.searchsorted(known, BIAS))


class TokenFeatures(NamedTuple):
    """Hashes of the features of T tokens: token t owns `values[offsets[t]:offsets[t + 1]]`."""

    values: Hashes  # (sum of counts,)
    offsets: Ints  # (T + 1,)


def hash_tokens(
    texts: Sequence[str], tokens: Sequence[Sequence[Token]], starts: Sequence[Sequence[int]]
) -> TokenFeatures:
    """Hash the features of all tokens of texts; `starts` are the tokens of each text that begin a further sentence.

    A token's features depend on its sentence alone: nothing is seen beyond a sentence's edge.
    """
    rows: dict[str, int] = {}
    chunk_rows: dict[str, int] = {}
    words: list[int] = []
    chunks: list[int] = []
    places: list[int] = []  # 0 alone in its chunk, 1 first, 2 inside, 3 last
    sentences: list[int] = []
    sentence = 0
    for text, own, begins in zip(texts, tokens, starts, strict=True):
        words += [rows.setdefault(text[start:end], len(rows)) for start, end in own]
        edges = set(begins)
        for j in range(len(own)):
            sentence += j == 0 or j in edges
            sentences.append(sentence)
        _glue(text, own, edges, chunk_rows, chunks, places)
    if not words:
        return TokenFeatures(np.zeros(0, np.uint64), np.zeros(1, np.int64))
    matrix, grams, gram_offsets = hash_word_list(list(rows))
    word = np.array(words, np.int64)
    columns = _columns(matrix, word, np.array(sentences, np.int64))
    columns += _chunk_columns(list(chunk_rows), np.array(chunks, np.int64), np.array(places, np.int64))
    return _ragged(np.stack(columns, axis=1), word, grams, gram_offsets)


def _glue(
    text: str,
    tokens: Sequence[Token],
    edges: set[int],
    rows: dict[str, int],
    chunks: list[int],
    places: list[int],
) -> None:
    """Find the runs of tokens with nothing between them: `5-HT` is three tokens and one string."""
    j = 0
    while j < len(tokens):
        k = j + 1
        while k < len(tokens) and tokens[k].start == tokens[k - 1].end and k not in edges:
            k += 1
        begin, end = tokens[j].start, tokens[k - 1].end
        whole = text[begin:end]
        if len(whole) > 2 * _CHUNK:
            whole = whole[:_CHUNK] + whole[-_CHUNK:]
        row = rows.setdefault(whole, len(rows))
        chunks += [row] * (k - j)
        places += [0] if k - j == 1 else [1, *[2] * (k - j - 2), 3]
        j = k


def _columns(matrix: Hashes, word: Ints, sentence: Ints) -> list[Hashes]:
    """Return one array (T,) for each feature every token has; 0 says that this token has none."""
    own = matrix[word]  # (T, COLUMNS)
    T = len(word)

    def beside(values: Hashes, offset: int) -> Hashes:
        moved = np.full(T, _EDGE, np.uint64)
        if abs(offset) < T:
            here = slice(max(0, -offset), T - max(0, offset))
            there = slice(max(0, offset), T - max(0, -offset))
            moved[here] = np.where(sentence[here] == sentence[there], values[there], _EDGE)
        return moved

    columns = [np.full(T, BIAS, np.uint64), *(own[:, k] for k in range(own.shape[1]))]
    lower, shapes, outlines, kinds = own[:, LOWER], own[:, SHAPE], own[:, OUTLINE], own[:, KIND]
    for offset in (-2, -1, 1, 2):
        salt = 200 + 10 * (offset + 2)
        columns += [mix(beside(lower, offset), salt), mix(beside(outlines, offset), salt + 1)]
        columns += [mix(beside(own[:, SUFFIXES[2]], offset), salt + 2)]
        if abs(offset) == 1:
            columns += [mix(beside(kinds, offset), salt + 3), mix(beside(shapes, offset), salt + 4)]
    columns += [mix(beside(lower, offset), 260 + offset) for offset in (-3, 3)]
    before, after = beside(lower, -1), beside(lower, 1)
    columns += [
        join(before, lower, salt=300),
        join(lower, after, salt=301),
        join(before, after, salt=302),
        join(beside(outlines, -1), outlines, beside(outlines, 1), salt=303),
        join(beside(lower, -2), before, salt=304),
        join(after, beside(lower, 2), salt=305),
    ]
    return columns


def _chunk_columns(strings: Sequence[str], chunk: Ints, place: Ints) -> list[Hashes]:
    """Return features of the string that a token is glued into, for tokens that are not alone in it."""
    matrix, _, _ = hash_word_list(strings)
    own = matrix[chunk]  # (T, COLUMNS)
    glued = place > 0
    where = hash_strings(["alone", "first", "inside", "last"], salt=400)[place]
    return [
        where,
        np.where(glued, join(own[:, EXACT], where, salt=401), 0),
        np.where(glued, join(own[:, LOWER], salt=402), 0),
        np.where(glued, join(own[:, OUTLINE], where, salt=403), 0),
        np.where(glued, join(own[:, SUFFIXES[2]], where, salt=404), 0),
    ]


def _ragged(fixed: Hashes, word: Ints, grams: Hashes, gram_offsets: Ints) -> TokenFeatures:
    """Join the columns that are not 0 with each token's n-grams."""
    T = fixed.shape[0]
    used = fixed != 0
    counts = used.sum(axis=1)  # (T,)
    gram_counts = gram_offsets[word + 1] - gram_offsets[word]  # (T,)
    offsets = np.zeros(T + 1, np.int64)
    np.cumsum(counts + gram_counts, out=offsets[1:])
    values = np.empty(offsets[-1], np.uint64)
    inner = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    values[np.repeat(offsets[:-1], counts) + inner] = fixed[used]
    inner = np.arange(gram_counts.sum()) - np.repeat(np.cumsum(gram_counts) - gram_counts, gram_counts)
    places = np.repeat(offsets[:-1] + counts, gram_counts) + inner
    values[places] = grams[np.repeat(gram_offsets[word], gram_counts) + inner]
    return TokenFeatures(values, offsets)
