"""A tagger seen through a project's classes: what the project does not have is no entity (METHODS 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backend.tagger.hashes import folded_hash
from backend.tagger.tagger import Tagged, Tagger
from backend.tagger.viewed import ViewedTagger
from conformal.labels import Groups, LabelSpace


class FoldedTagger(ViewedTagger):
    """The same model over other labels: each has the added probabilities of a group of the model's, before decoding.

    Ranks are then distinct labelings of the project. `digest` must tell label spaces apart: other labels, other
    potentials.
    """

    def __init__(self, tagger: Tagger, *, space: LabelSpace, groups: Groups, digest: str) -> None:
        super().__init__(tagger, digest=digest)
        self._space = space
        self._groups = groups

    @property
    def space(self) -> LabelSpace:
        """The labels that are left."""
        return self._space

    def potentials(self, texts: Sequence[str], *, languages: Sequence[str | None] | None = None) -> list[Tagged]:
        """Tag texts and fold their potentials."""
        return [
            replace(tagged, potentials=tagged.potentials.fold(self._groups))
            for tagged in self._tagger.potentials(texts, languages=languages)
        ]


def restrict(tagger: Tagger, classes: Sequence[str]) -> Tagger:
    """Return the tagger over those of its classes that are given; itself if that is all of them.

    Classes stand in the model's order, whatever order they are given in, so that equal sets of classes are equal
    label spaces. Raises InvalidLabels when none of its classes is given.
    """
    if set(tagger.space.classes) <= set(classes):
        return tagger
    kept = [name for name in tagger.space.classes if name in set(classes)]
    space, groups = tagger.space.fold(kept)
    return FoldedTagger(tagger, space=space, groups=groups, digest=folded_hash(tagger.hash, kept))
