"""A tagger seen through a label config: classes without a label become O, classes that share a label become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from backend.labelstudio.config import Target
from backend.labelstudio.identity import is_merged, merged_hash
from backend.tagger.folded import restrict
from backend.tagger.tagger import Tagged, Tagger
from conformal.labels import LabelSpace


class MergedTagger:
    """The same model with some classes taken together, before decoding, so that no two labelings look alike.

    `merged` maps a class to the one that stands for it; classes that it does not name become O.
    """

    def __init__(self, tagger: Tagger, merged: Mapping[str, str]) -> None:
        space = tagger.space
        kept = [name for name in space.classes if merged.get(name) == name]
        groups: list[tuple[int, ...]] = []
        for name in kept:
            begins = [space.begin(name), *(space.begin(c) for c, to in merged.items() if to == name and c != name)]
            groups += [tuple(begins), tuple(begin + 1 for begin in begins)]  # I-x follows B-x in a label space
        used = {label for group in groups for label in group}
        outside = tuple(label for label in range(len(space)) if label not in used)
        self._tagger = tagger
        self._space = LabelSpace(kept)
        self._groups = (outside, *groups)
        self._hash = merged_hash(tagger.hash, merged)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._tagger.name

    @property
    def hash(self) -> str:
        """Hash of the model and of what is merged: another label space, other potentials."""
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
        """Tag texts and merge their potentials."""
        return [
            replace(tagged, potentials=tagged.potentials.fold(self._groups))
            for tagged in self._tagger.potentials(texts, languages=languages)
        ]


def project_tagger(tagger: Tagger, target: Target) -> Tagger:
    """Return the tagger over exactly the classes that the project's labels can tell apart."""
    return MergedTagger(tagger, target.merged) if is_merged(target) else restrict(tagger, target.classes)
