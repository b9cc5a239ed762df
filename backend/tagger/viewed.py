"""A tagger seen through something: the same model, under a hash of its own."""

from __future__ import annotations

from backend.tagger.tagger import Tagger
from conformal.labels import LabelSpace


class ViewedTagger:
    """What all views of a model share: its name, its labels, what it was trained on."""

    def __init__(self, tagger: Tagger, *, digest: str) -> None:
        self._tagger = tagger
        self._hash = digest

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._tagger.name

    @property
    def hash(self) -> str:
        """Hash of the model and of how it is seen."""
        return self._hash

    @property
    def base_hash(self) -> str:
        """Hash of the model alone: however it is seen, it has seen the same texts."""
        return self._tagger.base_hash

    @property
    def ancestors(self) -> tuple[str, ...]:
        """Hashes of the models that the model's training began with."""
        return self._tagger.ancestors

    @property
    def space(self) -> LabelSpace:
        """The labels of the model."""
        return self._tagger.space

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages the model names."""
        return self._tagger.languages
