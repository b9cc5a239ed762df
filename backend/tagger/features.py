"""Hashed features of words: no vocabulary, so no word is unknown and no list of words is stored.

A word gives, all hashed with a fixed 64-bit function: itself in lower case, its first and last 1-4 characters, the
shape of its letters, and the character n-grams of `<word>`. Case lives in the shape alone. For hashing only,
compatibility forms (NFKC) and variants of quotes and dashes are folded and digits of longer numbers become 0; the
text itself is never changed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import regex

from backend.tagger.compiled.hashing import hash_codes
from backend.tagger.errors import InvalidModel

Indices = npt.NDArray[np.int64]

# A longer word is known by its first and last characters: bounds the work for a 100,000-character "word".
_KEPT = 24
_AFFIXES = 4
# Typographic variants of one mark, which files and keyboards exchange freely.
_VARIANTS = str.maketrans("’‘ʼ`´‐‑‒–—−“”„«»‹›", '\'\'\'\'\'------"""""""')
_RUN = regex.compile(r"(.)\1{2,}", regex.DOTALL)


@dataclass(frozen=True)
class FeatureConfig:
    """Rows of each hashed table and the n-gram lengths; part of a saved model."""

    word_rows: int = 98_304
    prefix_rows: int = 12_288
    suffix_rows: int = 12_288
    shape_rows: int = 2_048
    ngram_rows: int = 65_536
    ngram_lengths: tuple[int, ...] = (3, 4, 5)

    def __post_init__(self) -> None:
        for name in ("word_rows", "prefix_rows", "suffix_rows", "shape_rows", "ngram_rows"):
            rows = getattr(self, name)
            if not isinstance(rows, int) or not 1 <= rows < 2**31:
                raise InvalidModel(f"expected {name} to be a whole number from 1, got {rows!r}")
        if not self.ngram_lengths or any(not 1 <= n <= 8 for n in self.ngram_lengths):
            raise InvalidModel(f"expected n-gram lengths in 1..8, got {self.ngram_lengths}")


class WordFeatures(NamedTuple):
    """Table rows of U words. Fixed counts are matrices; n-grams are ragged: word i owns `offsets[i]:offsets[i+1]`."""

    words: Indices  # (U, 2): two independent hashes, so that two words rarely share both
    prefixes: Indices  # (U, 4)
    suffixes: Indices  # (U, 4)
    shapes: Indices  # (U, 1)
    ngrams: Indices  # (sum of counts,)
    offsets: Indices  # (U + 1,)


def normalise(word: str) -> str:
    """Return the form of a word that is hashed.

    >>> normalise("Straße"), normalise("1984"), normalise("U2"), normalise("ﬁn")
    ('straße', '0000', 'u2', 'fin')
    """
    folded = word[: 4 * _KEPT] + word[-_KEPT:] if len(word) > 5 * _KEPT else word
    if not folded.isascii():
        folded = unicodedata.normalize("NFKC", folded.translate(_VARIANTS))
    folded = folded.lower()
    if len(folded) > 2 and not folded.isalpha():
        folded = "".join("0" if c.isdecimal() else c for c in folded)
    if len(folded) > _KEPT:
        folded = folded[: _KEPT // 2] + folded[-_KEPT // 2 :]
    return folded


class _Shapes(dict[int, str]):
    def __missing__(self, code: int) -> str:
        c = chr(code)
        category = unicodedata.category(c)
        if category in {"Lu", "Lt"}:
            kind = "X"
        elif category == "Ll":
            kind = "x"
        elif category == "Nd":
            kind = "d"
        else:
            kind = "c" if category[0] in "LMN" else c
        self[code] = kind
        return kind


_SHAPES = _Shapes()


def shape(word: str) -> str:
    """Return the letter pattern, runs cut to two.

    >>> shape("McDonald"), shape("NATO"), shape("B-52"), shape("„")
    ('XxXxx', 'XX', 'X-dd', '"')
    """
    return _RUN.sub(r"\1\1", word[:_KEPT].translate(_VARIANTS).translate(_SHAPES))


def _codes(words: Sequence[str], width: int) -> npt.NDArray[np.uint32]:
    """Return code points, padded with 0: (U, width)."""
    return np.array(words, dtype=f"=U{width}").view(np.uint32).reshape(len(words), width)


def hash_words(words: Sequence[str], config: FeatureConfig) -> WordFeatures:
    """Hash words into table rows, all words at once. Depends on the word and the config alone.

    >>> hashed = hash_words(["Berlin", "BERLIN"], FeatureConfig())
    >>> bool((hashed.words[0] == hashed.words[1]).all()), bool((hashed.shapes[0] == hashed.shapes[1]).all())
    (True, False)
    """
    U = len(words)
    if U == 0:
        none = np.zeros((0,), np.int64)
        return WordFeatures(
            none.reshape(0, 2), none.reshape(0, 4), none.reshape(0, 4), none.reshape(0, 1), none, np.zeros(1, np.int64)
        )
    forms = [normalise(word) for word in words]
    sizes = np.array([len(form) for form in forms], np.int64)
    lengths = np.array(config.ngram_lengths, np.int64)
    hashed = WordFeatures(
        np.empty((U, 2), np.int64),
        np.empty((U, _AFFIXES), np.int64),
        np.empty((U, _AFFIXES), np.int64),
        np.empty((U, 1), np.int64),
        np.empty(len(lengths) * int(sizes.sum() + 2 * U), np.int64),
        np.empty(U + 1, np.int64),
    )
    rows = (config.word_rows, config.prefix_rows, config.suffix_rows, config.shape_rows, config.ngram_rows)
    shapes = _codes([shape(word) for word in words], _KEPT)
    hash_codes(_codes(forms, _KEPT), sizes, shapes, np.array(rows, np.int64), lengths, *hashed)
    return hashed._replace(ngrams=hashed.ngrams[: hashed.offsets[-1]])
