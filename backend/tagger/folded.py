"""A tagger seen through a project's classes: what the project does not have is no entity (METHODS 1)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from backend.tagger.tagger import Tagged, Tagger
from conformal.labels import LabelSpace


class FoldedTagger:
    """The same model over fewer classes; the others' probabilities are added to O's before decoding.

    Ranks are then distinct labelings of the project. Classes stand in the model's order, whatever order they are
    given in, so that equal sets of classes are equal label spaces.
    """

    def __init__(self, tagger: Tagger, classes: Sequence[str]) -> None:
        kept = [name for name in tagger.space.classes if name in set(classes)]
        self._tagger = tagger
        self._space, self._groups = tagger.space.fold(kept)
        self._hash = hashlib.sha256("\0".join([tagger.hash, *kept]).encode()).hexdigest()

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._tagger.name

    @property
    def hash(self) -> str:
        """Hash of the model and of the classes that are kept: another label space, other potentials."""
        return self._hash

    @property
    def space(self) -> LabelSpace:
        """The labels that are left."""
        return self._space

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages the model names."""
        return self._tagger.languages

    def potentials(self, texts: Sequence[str], *, languages: Sequence[str | None] | None = None) -> list[Tagged]:
        """Tag texts and fold their potentials."""
        return [
            replace(tagged, potentials=tagged.potentials.fold(self._groups))
            for tagged in self._tagger.potentials(texts, languages=languages)
        ]


def restrict(tagger: Tagger, classes: Sequence[str]) -> Tagger:
    """Return the tagger over those of its classes that are given; itself if that is all of them.

    Raises InvalidLabels when none of its classes is given.
    """
    return tagger if set(tagger.space.classes) <= set(classes) else FoldedTagger(tagger, classes)
