"""The tagger of a project whose labels its model does not know: every token is outside, and nothing is suggested.

Texts are read as the model would read them, so that what is stored of a task is the same before and after there is a
model for its labels. It knows nothing, so it is never scored or calibrated: the word for its sets is `none`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from backend.tagger.hashes import blank_hash
from backend.tagger.identity import BLANK, blank_classes
from backend.tagger.language import LanguageGuess
from backend.tagger.reading import read_rounds
from backend.tagger.tagger import Tagged, Tagger
from backend.tagger.viewed import ViewedTagger
from backend.tagger.whole import WholeTexts
from conformal.labels import LabelSpace
from conformal.trellis.potentials import Chain

BLANK_REASON = "the model knows no label of the project: there is nothing to fit until a model is trained on its labels"


class BlankTagger(ViewedTagger):
    """Has one labeling for every text, the empty one, over labels that the model does not know (METHODS 13.1)."""

    def __init__(self, tagger: Tagger, unknown: Sequence[str]) -> None:
        super().__init__(tagger, digest=blank_hash(tagger.hash, unknown))
        self._space = LabelSpace(blank_classes(unknown))
        self._guess = LanguageGuess(tagger.languages)
        self._whole = isinstance(tagger, WholeTexts)
        L = len(self._space)
        self._row = np.full(L, -np.inf)  # (L,)
        self._row[0] = 0.0
        moves = np.where(self._space.allowed, 0.0, -np.inf)  # (L, L)
        self._chain = Chain(transitions=moves, start=np.where(self._space.allowed_start, 0.0, -np.inf), end=np.zeros(L))

    @property
    def name(self) -> str:
        """What stands where the name of a model stands."""
        return BLANK

    @property
    def space(self) -> LabelSpace:
        """The labels of the project."""
        return self._space

    def potentials(self, texts: Sequence[str], *, languages: Sequence[str | None] | None = None) -> list[Tagged]:
        """Read texts; no entity is possible anywhere."""
        return [
            Tagged(
                read.text,
                read.tokens,
                self._chain.potentials(np.tile(self._row, (len(read.tokens), 1)), boundaries=read.boundaries),
                read.language,
                whole=self._whole,
            )
            for reads in read_rounds(texts, self._guess, languages=languages)
            for read in reads
        ]
