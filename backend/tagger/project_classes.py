"""A tagger seen through a label config: classes without a label become O, classes that share a label become one."""

from __future__ import annotations

from collections.abc import Mapping

from backend.domain.target import Target
from backend.tagger.blank import BlankTagger
from backend.tagger.folded import FoldedTagger, restrict
from backend.tagger.hashes import merged_hash
from backend.tagger.identity import is_merged
from backend.tagger.tagger import Tagger
from conformal.labels import LabelSpace


def merge(tagger: Tagger, merged: Mapping[str, str]) -> Tagger:
    """Return the tagger with some classes taken together, before decoding, so that no two labelings look alike.

    `merged` maps a class to the one that stands for it; classes that it does not name become O.
    """
    space = tagger.space
    kept = [name for name in space.classes if merged.get(name) == name]
    groups: list[tuple[int, ...]] = []
    for name in kept:
        begins = [space.begin(name), *(space.begin(c) for c, to in merged.items() if to == name and c != name)]
        groups += [tuple(begins), tuple(begin + 1 for begin in begins)]  # I-x follows B-x in a label space
    used = {label for group in groups for label in group}
    outside = tuple(label for label in range(len(space)) if label not in used)
    return FoldedTagger(
        tagger,
        space=LabelSpace(kept),
        groups=(outside, *groups),
        digest=merged_hash(tagger.hash, merged),
    )


def project_tagger(tagger: Tagger, target: Target) -> Tagger:
    """Return the tagger over exactly the classes that the project's labels can tell apart; a blank one without any."""
    if target.blank:
        return BlankTagger(tagger, target.unknown)
    return merge(tagger, target.merged) if is_merged(target) else restrict(tagger, target.classes)
