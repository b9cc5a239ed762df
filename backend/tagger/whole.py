"""A tagger whose texts are not cut: the whole text is one unit, with one set of labelings (METHODS 10.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backend.tagger.hashes import whole_hash
from backend.tagger.tagger import Tagged, Tagger
from backend.tagger.viewed import ViewedTagger


class WholeTexts(ViewedTagger):
    """The same model over whole texts: its rows and thresholds are others, so its hash is another."""

    def __init__(self, tagger: Tagger) -> None:
        super().__init__(tagger, digest=whole_hash(tagger.hash))

    def potentials(self, texts: Sequence[str], *, languages: Sequence[str | None] | None = None) -> list[Tagged]:
        """Tag texts, and leave them whole."""
        return [replace(tagged, whole=True) for tagged in self._tagger.potentials(texts, languages=languages)]
