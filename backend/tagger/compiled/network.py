"""The network of hashed words, ready to run: packed weights, and what is known of words that were read before.

What a word brings to the first layer depends on the word alone, so it is computed once and kept. Results do not change
by that: every product of a row is the same to the last bit whatever rows stand beside it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from backend.tagger.compiled.products import PANEL, pack
from backend.tagger.compiled.recurrent import emit, project, run_direction
from backend.tagger.compiled.words import average_rows, mix, sum_rows
from backend.tagger.errors import InvalidModel
from backend.tagger.features import hash_words
from backend.tagger.model_info import TABLES, ModelInfo
from backend.tagger.saved_file import Arrays
from conformal.trellis.potentials import Chain

Floats = npt.NDArray[np.float32]
Emissions = npt.NDArray[np.float64]

KNOWN_WORDS = 8_192  # kept at a time: 43 MB with the bundled model
_DIRECTIONS = ("rightward", "leftward")


class _Layer(NamedTuple):
    """A layer of cells: weights of its inputs in both directions side by side, and of its states in each."""

    inputs: Floats  # panels of (D, 2 W)
    bias: Floats  # (2 W,)
    states: tuple[Floats, Floats]  # panels of (H, W)


class _Shelf:
    """Rows of words, filled from the front; a full shelf is replaced by an empty one."""

    def __init__(self, size: int, width: int) -> None:
        self.rows = np.empty((size, width), np.float32)
        self.places: dict[str, int] = {}
        self.taken = 0


class CompiledNetwork:
    """Emissions of texts. A text's do not depend on the texts beside it. Safe to share between threads."""

    def __init__(self, arrays: Arrays, info: ModelInfo, *, known_words: int = KNOWN_WORDS) -> None:
        """Pack the stored weights; raises InvalidModel when they do not fit the description."""
        self._features = info.features
        self._labels = L = len(info.space)
        config = info.network
        H = config.hidden
        get = _Getter(arrays)
        widths = (config.word_width, config.affix_width, config.affix_width, config.shape_width, config.ngram_width)
        rows = (
            info.features.word_rows,
            info.features.prefix_rows,
            info.features.suffix_rows,
            info.features.shape_rows,
            info.features.ngram_rows,
        )
        self._tables = [
            (get.table(f"{name}.weight", (count, width)), get(f"{name}.weight.scale", (count, 1)))
            for name, count, width in zip(TABLES, rows, widths, strict=True)
        ]
        joined = sum(widths)
        self._joined = joined
        self._norm = get("norm.weight", (joined,)), get("norm.bias", (joined,))
        self._mix = pack(get("mix.weight", (config.mixed_width, joined)).T)
        self._mix_bias = _padded(get("mix.bias", (config.mixed_width,)))
        self._mixed = config.mixed_width
        layers = [
            _layer(get, number, config.mixed_width if number == 0 else 2 * H, H) for number in range(config.layers)
        ]
        from_word, from_states = np.split(get("emit.weight", (L, config.mixed_width + 2 * H)), [config.mixed_width], 1)
        # What words bring to the first layer and to the emissions lies in one row.
        self._word = np.concatenate([layers[0].inputs, pack(from_word.T).panels])
        self._word_bias = np.concatenate([layers[0].bias, _padded(get("emit.bias", (L,)))])
        self._layers = layers
        self._emit = pack(from_states.T).panels
        self._hidden = H
        self.chain = Chain(
            transitions=np.where(info.space.allowed, get("transitions", (L, L)), -np.inf),
            start=np.where(info.space.allowed_start, get("start", (L,)), -np.inf),
            end=get("end", (L,)),
        )
        get.finish()
        self._known_words = known_words
        self._shelf = _Shelf(0, self._word_bias.size)
        self._lock = threading.Lock()

    def emissions(self, words: Sequence[str], lengths: npt.NDArray[np.int64]) -> Emissions:
        """Return the emissions (T, L) of the words of texts, one text behind the other, the longest first."""
        rows, places = self._rows_of(words)
        starts = np.cumsum(lengths) - lengths
        inputs, at = rows, places
        states = np.empty((len(words), 2 * self._hidden), np.float32)
        for number, layer in enumerate(self._layers):
            if number:
                inputs, at = project(states, layer.inputs, layer.bias), np.arange(len(words))
            run_direction(inputs, at, starts, lengths, layer.states[0], states, False)
            run_direction(inputs, at, starts, lengths, layer.states[1], states, True)
        found: Emissions = emit(rows, places, states, self._emit, self._labels)
        return found

    def _rows_of(self, words: Sequence[str]) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Return rows of words, and where each of these words has its own."""
        with self._lock:
            shelf = self._shelf
            new = [word for word in dict.fromkeys(words) if word not in shelf.places]
            if shelf.taken + len(new) > len(shelf.rows):
                new = list(dict.fromkeys(words))
                shelf = self._shelf = _Shelf(max(self._known_words, len(new)), self._word_bias.size)
            first = shelf.taken
            shelf.taken += len(new)
        if new:
            # Without the lock: a word that two threads meet at once has two rows, which are the same.
            shelf.rows[first : first + len(new)] = project(self.word_vectors(new), self._word, self._word_bias)
            for place, word in enumerate(new, start=first):
                shelf.places.setdefault(word, place)
        return shelf.rows, np.array([shelf.places[word] for word in words], np.int64)

    def word_vectors(self, words: Sequence[str]) -> Floats:
        """Return the vectors (U, mixed_width) of words."""
        hashed = hash_words(words, self._features)
        joined = np.zeros((len(words), self._joined), np.float32)
        left = 0
        for (table, scale), rows in zip(self._tables, hashed[:5], strict=True):
            part = joined[:, left : left + table.shape[1]]
            left += table.shape[1]
            if rows is hashed.ngrams:
                average_rows(part, table, scale, rows, hashed.offsets)
            else:
                sum_rows(part, table, scale, rows)
        mixed: Floats = mix(joined, *self._norm, self._mix.panels, self._mix_bias)
        return np.ascontiguousarray(mixed[:, : self._mixed])


class _Getter:
    """Hands out stored arrays in float32, checks their shapes, and says in the end which nobody asked for."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._left = set(arrays)

    def __call__(self, name: str, shape: tuple[int, ...]) -> Floats:
        return self._find(name, shape).astype(np.float32)

    def table(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.int8]:
        """Return a table as it is stored."""
        found = self._find(name, shape)
        if found.dtype != np.int8:
            raise InvalidModel(f"expected weights that fit the description, got {name} of {found.dtype}, not int8")
        return found

    def _find(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        found = self._arrays.get(name)
        if found is None or found.shape != shape:
            got = "nothing" if found is None else found.shape
            raise InvalidModel(f"expected weights that fit the description: {name} of the shape {shape}, got {got}")
        self._left.discard(name)
        return found

    def finish(self) -> None:
        """Raise InvalidModel when an array is left that the description does not explain."""
        if self._left:
            raise InvalidModel(f"expected weights that fit the description, got others too: {sorted(self._left)[:3]}")


def _layer(get: _Getter, number: int, width: int, hidden: int) -> _Layer:
    inputs, biases, states = [], [], []
    for direction in _DIRECTIONS:
        name = f"{direction}.{number}"
        inputs.append(pack(get(f"{name}.weight_ih_l0", (4 * hidden, width)).T).panels)
        states.append(pack(get(f"{name}.weight_hh_l0", (4 * hidden, hidden)).T).panels)
        bias = get(f"{name}.bias_ih_l0", (4 * hidden,)) + get(f"{name}.bias_hh_l0", (4 * hidden,))
        biases.append(_padded(bias))
    return _Layer(np.concatenate(inputs), np.concatenate(biases), (states[0], states[1]))


def _padded(bias: Floats) -> Floats:
    """Return a bias with zeros for the columns that fill up the last panel."""
    return np.concatenate([bias, np.zeros(-len(bias) % PANEL, np.float32)])
