"""The tagger that runs a trained network of ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from backend.tagger.compiled.loading import LoadedNetwork
from backend.tagger.language import LanguageGuess
from backend.tagger.passes import Passes
from backend.tagger.reading import Read, read_rounds
from backend.tagger.tagger import Tagged
from backend.tagger.training_texts import contains, fingerprint
from conformal.labels import LabelSpace

# With the rounds texts are read in, these bound the memory of a call.
_BATCH_TOKENS = 1_024  # tokens of one forward pass: its arrays stay in the processor's caches
_WINDOW = 256  # a longer sentence is tagged in windows of this many tokens,
_MARGIN = 32  # of which this many at each inner edge are context only


class _Piece(NamedTuple):
    """Tokens `start .. end - 1` of a text run through the network, of which `first .. last - 1` are kept."""

    text: int
    start: int
    end: int
    first: int
    last: int


class NetworkTagger:
    """Runs a trained `Network`. One forward pass at a time unless `concurrency` allows more."""

    def __init__(self, model: LoadedNetwork, *, languages: Sequence[str] | None = None, concurrency: int = 1) -> None:
        network, info, self.seen = model
        self._network = network
        self.info = info
        self._guess = LanguageGuess(info.languages if languages is None else languages)
        self._passes = Passes(concurrency)
        self.chain = network.chain

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.info.name

    @property
    def hash(self) -> str:
        """Hash of weights and description."""
        return self.info.hash

    @property
    def base_hash(self) -> str:
        """The same: nothing is folded."""
        return self.info.hash

    @property
    def ancestors(self) -> tuple[str, ...]:
        """Hashes of the models that training began with."""
        return self.info.ancestors

    @property
    def space(self) -> LabelSpace:
        """The labels of the model."""
        return self.info.space

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that are told apart."""
        return self._guess.languages

    def potentials(self, texts: Sequence[str], *, languages: Sequence[str | None] | None = None) -> list[Tagged]:
        """Tag texts. A text's potentials do not depend on the texts beside it.

        Raises InvalidText for anything that is not a str, and for a wrong number of languages.
        """
        tagged: list[Tagged] = []
        for read in read_rounds(texts, self._guess, languages=languages):
            tagged += self._tag(read)
        return tagged

    def _tag(self, texts: list[Read]) -> list[Tagged]:
        return [
            Tagged(
                read.text,
                read.tokens,
                self.chain.potentials(e, boundaries=read.boundaries),
                read.language,
                self.has_seen(read),
            )
            for read, e in zip(texts, self.emissions(texts), strict=True)
        ]

    def has_seen(self, read: Read) -> bool:
        """Whether the model was trained on this very text."""
        return bool(read.tokens) and contains(self.seen, fingerprint(read.text, read.tokens))

    def emissions(self, texts: Sequence[Read]) -> list[npt.NDArray[np.float64]]:
        """Return the emissions (N, L) of texts that were read already, sentence by sentence."""
        emissions: list[npt.NDArray[np.float64]] = [np.zeros((len(read.tokens), len(self.space))) for read in texts]
        pieces = [piece for i, read in enumerate(texts) for piece in _pieces(i, len(read.tokens), read.boundaries)]
        for group in _groups(pieces):
            words = [
                texts[piece.text].text[start:end]
                for piece in group
                for start, end in texts[piece.text].tokens[piece.start : piece.end]
            ]
            lengths = np.array([piece.end - piece.start for piece in group])
            with self._passes.one():
                rows = self._network.emissions(words, lengths)
            at = 0
            for piece in group:
                kept = rows[at + piece.first - piece.start : at + piece.last - piece.start]
                emissions[piece.text][piece.first : piece.last] = kept
                at += piece.end - piece.start
        return emissions


def _pieces(text: int, length: int, boundaries: tuple[int, ...]) -> Iterator[_Piece]:
    """Cut a text into its sentences, and a long sentence into windows; depends on this text alone."""
    for start, end in zip((0, *boundaries), (*boundaries, length), strict=True):
        if end - start <= _WINDOW:
            if end > start:
                yield _Piece(text, start, end, start, end)
            continue
        step = _WINDOW - 2 * _MARGIN
        for first in range(start, end, step):
            last = min(first + step, end)
            yield _Piece(text, max(start, first - _MARGIN), min(end, last + _MARGIN), first, last)


def _groups(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    """Batches within the token budget, the longest pieces first."""
    group: list[_Piece] = []
    size = 0
    for piece in sorted(pieces, key=lambda p: p.start - p.end):
        length = piece.end - piece.start
        if group and size + length > _BATCH_TOKENS:
            yield group
            group, size = [], 0
        group.append(piece)
        size += length
    if group:
        yield group
