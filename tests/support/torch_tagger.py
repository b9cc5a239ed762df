"""The tagger as it was until its network was compiled: torch's own LSTM over padded batches. The reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from backend.tagger.compiled.loading import load_network
from backend.tagger.features import hash_words
from backend.tagger.model import load_model
from backend.tagger.network import WordBatch
from backend.tagger.network_tagger import NetworkTagger, _pieces
from backend.tagger.reading import Read

_BATCH_TOKENS = 4_096


class TorchTagger(NetworkTagger):
    """A `NetworkTagger` whose emissions are computed by torch."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(load_network(path))
        self.torch_network = load_model(path).network

    def emissions(self, texts: Sequence[Read]) -> list[npt.NDArray[np.float64]]:
        """Return the emissions (N, L) of texts that were read already, sentence by sentence."""
        emissions = [np.zeros((len(read.tokens), len(self.space))) for read in texts]
        rows: dict[str, int] = {}
        places = [
            np.array([rows.setdefault(read.text[start:end], len(rows)) for start, end in read.tokens], np.int64)
            for read in texts
        ]
        pieces = [piece for i, read in enumerate(texts) for piece in _pieces(i, len(read.tokens), read.boundaries)]
        pieces.sort(key=lambda piece: piece.start - piece.end)
        if not pieces:
            return emissions
        with torch.inference_mode():
            vectors = self.torch_network.word_vectors(WordBatch.of(hash_words(list(rows), self.info.features)))
            while pieces:
                longest = pieces[0].end - pieces[0].start
                group, pieces = pieces[: _BATCH_TOKENS // longest], pieces[_BATCH_TOKENS // longest :]
                lengths = np.array([piece.end - piece.start for piece in group])
                table = np.zeros((len(group), longest), np.int64)
                for row, piece in zip(table, group, strict=True):
                    row[: piece.end - piece.start] = places[piece.text][piece.start : piece.end]
                found = self.torch_network.emissions(vectors, torch.from_numpy(table), torch.from_numpy(lengths))
                for row, piece in zip(found.numpy(), group, strict=True):
                    kept = row[piece.first - piece.start : piece.last - piece.start]
                    emissions[piece.text][piece.first : piece.last] = kept
        return emissions
