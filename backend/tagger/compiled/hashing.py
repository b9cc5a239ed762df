"""The hashes of `backend.tagger.features` as compiled code: one pass over the characters of each word."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from conformal.trellis.jit import inner_kernel

Codes = npt.NDArray[np.uint32]
Indices = npt.NDArray[np.int64]

_PRIME = np.uint64(0x100000001B3)
_SEED = np.uint64(0xCBF29CE484222325)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_OPEN, _CLOSE = np.uint64(2), np.uint64(3)  # open and close a word; neither occurs inside one
_WORD, _PREFIX, _SUFFIX, _SHAPE, _NGRAM = (np.uint64(salt) for salt in (1, 2, 3, 4, 16))


@inner_kernel
def _begin(salt: np.uint64) -> np.uint64:
    return _SEED ^ (salt * _GOLDEN)


@inner_kernel
def _step(state: np.uint64, code: np.uint64) -> np.uint64:
    state = (state ^ code) * _PRIME
    return state ^ (state >> _HALF)


@inner_kernel
def _finish(state: np.uint64) -> np.uint64:
    state ^= state >> _SHIFT
    state *= _MIX_1
    state ^= state >> _SHIFT
    state *= _MIX_2
    return state ^ (state >> _SHIFT)


@inner_kernel
def _row(state: np.uint64, count: int) -> np.int64:
    return np.int64((state & _LOW) % np.uint64(count))


@inner_kernel
def _framed(codes: Codes, length: int, place: int) -> np.uint64:
    """Return the character at a place of a word between its opening and closing marks."""
    if place == 0:
        return _OPEN
    return _CLOSE if place == length + 1 else np.uint64(codes[place - 1])


@inner_kernel
def hash_codes(
    codes: Codes,
    sizes: Indices,
    shapes: Codes,
    rows: Indices,
    ngram_lengths: Indices,
    words: Indices,
    prefixes: Indices,
    suffixes: Indices,
    patterns: Indices,
    ngrams: Indices,
    offsets: Indices,
) -> None:
    """Hash U words, given as code points padded with 0, into table rows.

    Args:
        codes: of the normal forms (U, W); `sizes` (U,) are their lengths.
        shapes: code points of the shapes (U, W).
        rows: of the tables of words, prefixes, suffixes, shapes and n-grams.
        words: (U, 2), prefixes: (U, A), suffixes: (U, A), patterns: (U, 1), ngrams: (at least their number,) and
            offsets: (U + 1,) are filled in.
    """
    U, W = codes.shape
    A = prefixes.shape[1]
    found = 0
    offsets[0] = 0
    for u in range(U):
        length = 0
        for k in range(W):
            length += codes[u, k] != 0
        state = _begin(_WORD)
        for k in range(max(length, 1)):
            state = _step(state, np.uint64(codes[u, k]))
        state = _finish(state)
        words[u, 0] = _row(state, rows[0])
        words[u, 1] = _row(state >> _HALF, rows[0])
        before, behind = _begin(_PREFIX), _begin(_SUFFIX)
        for k in range(A):
            before = _step(before, np.uint64(codes[u, k]))
            prefixes[u, k] = _row(_finish(before), rows[1])
            place = sizes[u] - 1 - k
            behind = _step(behind, np.uint64(codes[u, place]) if place >= 0 else np.uint64(0))
            suffixes[u, k] = _row(_finish(behind), rows[2])
        state = _begin(_SHAPE)
        for k in range(shapes.shape[1]):
            state = _step(state, np.uint64(shapes[u, k]))
        patterns[u, 0] = _row(_finish(state), rows[3])
        for n in ngram_lengths:
            for first in range(length + 2 - n + 1):
                state = _begin(_NGRAM + np.uint64(n))
                for k in range(first, first + n):
                    state = _step(state, _framed(codes[u], length, k))
                ngrams[found] = _row(_finish(state), rows[4])
                found += 1
        offsets[u + 1] = found
