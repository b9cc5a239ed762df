"""Which model a project's predictions are by: the tagger and the classes that its label config leaves it.

Another label space means other labelings and other scores, so it counts as another model: with a hash, thresholds and
calibration rows of its own. This says the hash without loading the tagger, because /setup may not wait for that.
"""

from __future__ import annotations

from dataclasses import dataclass

from backend.labelstudio.config import Target
from backend.tagger.hashes import folded_hash, merged_hash


@dataclass(frozen=True)
class ModelHeader:
    """What can be known of a model without loading it."""

    name: str
    hash: str
    classes: tuple[str, ...]

    @property
    def version(self) -> str:
        """`<name>@<first 8 of the hash>`."""
        return f"{self.name}@{self.hash[:8]}"


def viewed(model: ModelHeader, target: Target) -> ModelHeader:
    """Return the model as a project with this target sees it: what `classes.project_tagger` has as its name and hash.

    The target's classes must be of this model.
    """
    if is_merged(target):
        return ModelHeader(model.name, merged_hash(model.hash, target.merged), target.classes)
    if set(target.classes) == set(model.classes):
        return model
    return ModelHeader(model.name, folded_hash(model.hash, target.classes), target.classes)


def is_merged(target: Target) -> bool:
    """Whether some classes share a label."""
    return set(target.classes) != set(target.labels)
