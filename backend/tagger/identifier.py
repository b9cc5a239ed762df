"""py3langid's identifier with its walk over the bytes of a text compiled: the same scores, to the last bit."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
from py3langid.langid import LanguageIdentifier

from backend.tagger.unpacked import LanguageModel, load_language_model
from conformal.trellis.jit import kernel

Integers = npt.NDArray[np.int64]


@kernel
def count_features(
    text: npt.NDArray[np.uint8],
    moves: npt.NDArray[Any],
    rows: npt.NDArray[Any],
    outputs: npt.NDArray[Any],
    counts: npt.NDArray[np.int32],
) -> tuple[Integers, npt.NDArray[np.float32]]:
    """Walk the automaton over a text; return the features it met, in the order of their first visit, and how often.

    The order matters: the library's sum over features runs in it. `counts` has a zero for every feature, before and
    after.
    """
    met = np.empty(text.shape[0], np.int64)
    found, state = 0, np.int64(0)
    for letter in text:
        state = np.int64(moves[(np.int64(rows[state]) << 8) + letter])
        feature = outputs[state]
        if feature >= 0:
            if counts[feature] == 0:
                met[found] = feature
                found += 1
            counts[feature] += 1
    often = np.empty(found, np.float32)
    for i in range(found):
        often[i] = counts[met[i]]
        counts[met[i]] = 0
    return met[:found], often


class CompiledIdentifier(LanguageIdentifier):  # type: ignore[misc]
    """The library's identifier; only the way to a text's features is another. Safe to share between threads."""

    __slots__ = ("_moves", "_outputs", "_rows", "_scratch")

    def __init__(self, model: LanguageModel) -> None:
        # The rows are the library's own way through the automaton, which is not taken here.
        super().__init__(
            model.scores, model.priors, model.classes, model.moves, model.outputs, norm_probs=True, tk_row=()
        )
        # Plain arrays over the same memory: compiled code knows no mapped files.
        self._moves, self._rows, self._outputs = (
            np.asarray(table).view(np.ndarray) for table in (model.moves, model.rows, model.outputs)
        )
        self._scratch = threading.local()

    def _raw_score(self, text: bytes) -> Any:  # noqa: ANN401 - the library has no types
        try:
            counts = self._scratch.counts
        except AttributeError:
            counts = self._scratch.counts = np.zeros(self.nb_ptc.shape[0], np.int32)
        met, often = count_features(np.frombuffer(text, np.uint8), self._moves, self._rows, self._outputs, counts)
        if not len(met):
            return super()._raw_score(b"")
        return np.log1p(often) @ self.nb_ptc[met] + self.nb_pc


def load_identifier() -> CompiledIdentifier:
    """Load the library's packaged model; its scores come as probabilities."""
    return CompiledIdentifier(load_language_model())
