"""One class for all: how well entities are found, whatever their class (the paper's reduced benchmark)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backend.tagger.folded import FoldedTagger
from backend.tagger.hashes import merged_hash
from backend.tagger.readers import LabelledText
from backend.tagger.tagger import Tagger
from conformal.labels import LabelSpace


def merge_classes(tagger: Tagger, name: str) -> Tagger:
    """Return the tagger over one class: each token's probabilities of B of all classes added up, and those of I.

    Moves are those of the model's first class, as wherever classes are folded (`Potentials.fold`).
    """
    space = tagger.space
    begins = tuple(space.begin(each) for each in space.classes)
    groups = ((0,), begins, tuple(begin + 1 for begin in begins))
    digest = merged_hash(tagger.hash, dict.fromkeys(space.classes, name))
    return FoldedTagger(tagger, space=LabelSpace([name]), groups=groups, digest=digest)


def merge_texts(texts: Sequence[LabelledText], name: str) -> tuple[LabelledText, ...]:
    """Return the texts with every span's class renamed."""
    return tuple(
        replace(text, spans=type(text.spans)(span._replace(label=name) for span in text.spans)) for text in texts
    )
