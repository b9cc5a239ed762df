"""The tagger over windows of subwords: reads texts, runs an encoder on windows of similar length, joins the chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from backend.tagger.hf.batches import Emitter, collate, group_pieces
from backend.tagger.hf.subwords import Subworder
from backend.tagger.hf.windows import Piece, cut_texts
from backend.tagger.language import LanguageGuess
from backend.tagger.passes import Passes
from backend.tagger.reading import Read, read_rounds
from backend.tagger.tagger import Tagged
from backend.tagger.training_texts import Fingerprints, contains, fingerprint
from conformal.labels import LabelSpace
from conformal.trellis.potentials import Chain

# Eight windows of similar length fill a CPU; more only pad more. A GPU is filled by the pieces alone.
_CPU_ROWS = 8
_GPU_ROWS = 64
_BATCH_PIECES = 8_192
_ROUND_TOKENS = 8_192


@dataclass(frozen=True, eq=False)
class WindowModel:
    """Everything a `WindowTagger` runs.

    `limit` are the pieces of a window without special tokens, of which `margin` at each inner edge are context.
    """

    name: str
    hash: str
    base_hash: str
    space: LabelSpace
    languages: tuple[str, ...]
    subworder: Subworder
    emit: Emitter
    chain: Chain
    seen: Fingerprints
    limit: int
    margin: int
    by_sentence: bool
    gpu: bool = False


class WindowTagger:
    """Runs an encoder. One forward pass at a time unless `concurrency` allows more."""

    def __init__(self, model: WindowModel, *, languages: Sequence[str] | None = None, concurrency: int = 1) -> None:
        self.model = model
        self._guess = LanguageGuess(model.languages if languages is None else languages)
        self._passes = Passes(concurrency)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    @property
    def hash(self) -> str:
        """Hash of everything that decides the potentials."""
        return self.model.hash

    @property
    def base_hash(self) -> str:
        """Hash of the model itself."""
        return self.model.base_hash

    @property
    def ancestors(self) -> tuple[str, ...]:
        """None: an encoder is trained from a checkpoint, never from a model of ours."""
        return ()

    @property
    def space(self) -> LabelSpace:
        """The labels of the model."""
        return self.model.space

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that are told apart."""
        return self._guess.languages

    @property
    def chain(self) -> Chain:
        """The scores of moves."""
        return self.model.chain

    def potentials(self, texts: Sequence[str], *, languages: Sequence[str | None] | None = None) -> list[Tagged]:
        """Tag texts. A text's potentials do not depend on the texts beside it, beyond the last bits of a float.

        Raises InvalidText for anything that is not a str, and for a wrong number of languages.
        """
        tagged: list[Tagged] = []
        for reads in read_rounds(texts, self._guess, languages=languages, round_tokens=_ROUND_TOKENS):
            tagged += self._tag(reads)
        return tagged

    def _tag(self, reads: list[Read]) -> list[Tagged]:
        model = self.model
        emissions: list[npt.NDArray[np.float64]] = [np.zeros((len(read.tokens), len(model.space))) for read in reads]
        pieces = cut_texts(
            reads, model.subworder, limit=model.limit, margin=model.margin, by_sentence=model.by_sentence
        )
        rows = _GPU_ROWS if model.gpu else _CPU_ROWS
        for group in group_pieces(pieces, rows=rows, budget=_BATCH_PIECES):
            self._run(group, emissions)
        return [
            Tagged(
                read.text,
                read.tokens,
                model.chain.potentials(scores, boundaries=read.boundaries),
                read.language,
                bool(read.tokens) and contains(model.seen, fingerprint(read.text, read.tokens)),
            )
            for read, scores in zip(reads, emissions, strict=True)
        ]

    def _run(self, group: list[Piece], emissions: list[npt.NDArray[np.float64]]) -> None:
        batch = collate(group, self.model.subworder)
        with self._passes.one(), torch.inference_mode():
            batch_emissions = self.model.emit(batch).double().numpy()  # (B, N, L)
        for row, piece in zip(batch_emissions, group, strict=True):
            begin, _, first, last = piece.window
            emissions[piece.text][piece.offset + first : piece.offset + last] = row[first - begin : last - begin]
