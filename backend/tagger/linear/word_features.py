"""What one word says by itself, as 64-bit hashes of strings.

No vocabulary is stored, and hardly two strings share a hash.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from backend.tagger.features import normalise, shape

Hashes = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

_SEED = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_WIDTH = 28  # characters of a string that are hashed; `normalise` and `shape` leave at most 24
_KEPT = 24
_AFFIXES = 5
_NGRAMS = (3, 4)

# Columns of a word's own hashes; others refer to them by these names.
EXACT, LOWER, SHAPE, OUTLINE, KIND = range(5)
PREFIXES = tuple(range(5, 5 + _AFFIXES))
SUFFIXES = tuple(range(5 + _AFFIXES, 5 + 2 * _AFFIXES))
COLUMNS = 5 + 2 * _AFFIXES


def mix(hashes: Hashes, salt: int) -> Hashes:
    """Return other hashes of the same things, one family for each salt.

    >>> mix(np.array([1], np.uint64), 1) == mix(np.array([1], np.uint64), 2)
    array([False])
    """
    with np.errstate(over="ignore"):
        mixed = hashes + np.uint64((salt + 1) * _GOLDEN % 2**64)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def join(*parts: Hashes, salt: int) -> Hashes:
    """Return hashes of things side by side; their order counts."""
    total = mix(parts[0], salt)
    for part in parts[1:]:
        total = mix(total ^ part, salt)
    return total


def hash_strings(strings: Sequence[str], *, salt: int) -> Hashes:
    """Hash the beginnings of strings: (U,)."""
    return mix(_rolling(_codes(strings))[:, -1], salt)


def _codes(strings: Sequence[str]) -> Hashes:
    """Return code points, padded with 0: (U, width)."""
    padded = np.array(strings, dtype=f"<U{_WIDTH}")
    return padded.view(np.uint32).reshape(len(strings), _WIDTH).astype(np.uint64)


def _rolling(codes: Hashes) -> Hashes:
    """Return the hash of every beginning: column k is of the first k + 1 characters. (U, W)."""
    hashes = np.empty_like(codes)
    state: Hashes = np.full(codes.shape[0], _SEED, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in range(codes.shape[1]):
            state = (state ^ codes[:, column]) * _PRIME
            state = state ^ (state >> np.uint64(32))
            hashes[:, column] = state
    return hashes


def outline(word: str) -> str:
    """Return the shape with every run cut to one.

    >>> outline("McDonald"), outline("NATO-2")
    ('XxXx', 'X-d')
    """
    letters = shape(word)
    return "".join(c for i, c in enumerate(letters) if i == 0 or letters[i - 1] != c)


def kind_of(word: str) -> str:
    """Return character classes and length of a word in a few letters.

    >>> kind_of("NATO"), kind_of("B12"), kind_of("-"), kind_of("Anna")
    ('U4', 'AD3', 'P1', 'T4')
    """
    letters = "U" if len(word) > 1 and word.isupper() and word.isalpha() else "T" if word.istitle() else ""
    letters = letters if word.isalpha() else "A" if any(c.isalpha() for c in word) else ""
    digits = "D" if any(c.isdigit() for c in word) else ""
    return (letters + digits or ("L" if word.isalpha() else "P")) + str(min(len(word), 9))


def hash_word_list(words: Sequence[str]) -> tuple[Hashes, Hashes, Ints]:
    """Hash distinct words: their columns (U, COLUMNS), and ragged n-grams with offsets (U + 1,).

    Depends on the words alone. Columns: as written, folded (`normalise`), shape, outline, kind, first and last 1-5
    characters of the folded form. An affix as long as its word says no more than the word: it is 0 and left out.
    """
    U = len(words)
    if U == 0:
        return np.zeros((0, COLUMNS), np.uint64), np.zeros(0, np.uint64), np.zeros(1, np.int64)
    folded = [normalise(word) for word in words]
    codes = _codes(folded)  # (U, W)
    lengths = (codes != 0).sum(axis=1)  # (U,)
    out = np.zeros((U, COLUMNS), np.uint64)
    out[:, EXACT] = hash_strings([word[:_WIDTH] for word in words], salt=EXACT)
    out[:, LOWER] = mix(_rolling(codes)[:, -1], LOWER)
    out[:, SHAPE] = hash_strings([shape(word) for word in words], salt=SHAPE)
    out[:, OUTLINE] = hash_strings([outline(word) for word in words], salt=OUTLINE)
    out[:, KIND] = hash_strings([kind_of(word) for word in words], salt=KIND)
    starts = _rolling(codes[:, :_AFFIXES])
    endings = _rolling(_codes([form[: -_AFFIXES - 1 : -1] for form in folded])[:, :_AFFIXES])
    for k in range(_AFFIXES):
        longer = lengths > k + 1
        out[:, PREFIXES[k]] = np.where(longer, mix(starts[:, k], PREFIXES[k]), 0)
        out[:, SUFFIXES[k]] = np.where(longer, mix(endings[:, k], SUFFIXES[k]), 0)
    grams, offsets = _ngrams(codes, lengths)
    return out, grams, offsets


def _ngrams(codes: Hashes, lengths: Ints) -> tuple[Hashes, Ints]:
    U = codes.shape[0]
    framed = np.zeros((U, _KEPT + 2), np.uint64)  # 2 opens and 3 closes a word; neither occurs inside one
    framed[:, 0] = 2
    framed[:, 1:-1] = codes[:, :_KEPT]
    framed[np.arange(U), np.minimum(lengths, _KEPT) + 1] = 3
    found: list[Hashes] = []
    kept: list[npt.NDArray[np.bool_]] = []
    for n in _NGRAMS:
        places = framed.shape[1] - n + 1
        windows = np.stack([framed[:, k : k + places] for k in range(n)], axis=-1).reshape(U * places, n)
        found.append(mix(_rolling(windows)[:, -1], 100 + n).reshape(U, places))
        kept.append(np.arange(places)[None, :] <= (lengths + 2 - n)[:, None])
    mask = np.concatenate(kept, axis=1)  # (U, all places)
    offsets = np.zeros(U + 1, np.int64)
    np.cumsum(mask.sum(axis=1), out=offsets[1:])
    return np.concatenate(found, axis=1)[mask], offsets
