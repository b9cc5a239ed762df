"""The tagger that runs a trained network of ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from backend.tagger.features import hash_words
from backend.tagger.language import LanguageGuess
from backend.tagger.model import Model
from backend.tagger.network import WordBatch
from backend.tagger.passes import Passes
from backend.tagger.reading import Read, read_rounds
from backend.tagger.tagger import Tagged
from backend.tagger.training_texts import contains, fingerprint
from conformal.labels import LabelSpace
from conformal.trellis.potentials import Chain

# With the rounds texts are read in, these bound the memory of a call.
_BATCH_TOKENS = 4_096  # tokens, padding included, of one forward pass
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

    def __init__(self, model: Model, *, languages: Sequence[str] | None = None, concurrency: int = 1) -> None:
        network, info, self.seen = model
        self._network = network
        self.info = info
        self._guess = LanguageGuess(info.languages if languages is None else languages)
        self._passes = Passes(concurrency)
        with torch.no_grad():
            transitions, start, end = (t.double().numpy() for t in network.chain())
        self.chain = Chain(transitions=transitions, start=start, end=end)

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
        """Tag texts. A text's potentials do not depend on the texts beside it, beyond the last bits of a float.

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
        rows: dict[str, int] = {}
        places = [
            np.array([rows.setdefault(read.text[start:end], len(rows)) for start, end in read.tokens], np.int64)
            for read in texts
        ]
        pieces = [piece for i, read in enumerate(texts) for piece in _pieces(i, len(read.tokens), read.boundaries)]
        if pieces:
            words = WordBatch.of(hash_words(list(rows), self.info.features))
            vectors: torch.Tensor | None = None
            for group in _groups(pieces):
                with self._passes.one(), torch.inference_mode():
                    if vectors is None:
                        vectors = self._network.word_vectors(words)  # (U, mixed_width)
                    self._run(group, vectors, places, emissions)
        return emissions

    def _run(
        self,
        group: list[_Piece],
        vectors: torch.Tensor,
        places: list[npt.NDArray[np.int64]],
        emissions: list[npt.NDArray[np.float64]],
    ) -> None:
        lengths = np.array([piece.end - piece.start for piece in group])
        table = np.zeros((len(group), int(lengths.max())), np.int64)  # (B, N)
        for row, piece in zip(table, group, strict=True):
            row[: piece.end - piece.start] = places[piece.text][piece.start : piece.end]
        rows = self._network.emissions(vectors, torch.from_numpy(table), torch.from_numpy(lengths)).numpy()
        for row, piece in zip(rows, group, strict=True):
            kept = row[piece.first - piece.start : piece.last - piece.start]
            emissions[piece.text][piece.first : piece.last] = kept


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
    """Batches of similar length within the token budget."""
    group: list[_Piece] = []
    for piece in sorted(pieces, key=lambda p: p.start - p.end):
        if group and (len(group) + 1) * (group[0].end - group[0].start) > _BATCH_TOKENS:
            yield group
            group = []
        group.append(piece)
    if group:
        yield group
