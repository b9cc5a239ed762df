"""Which model a project's predictions are by: the tagger and the classes that its label config leaves it.

Another label space means other labelings and other scores, so it counts as another model: with a hash, thresholds and
calibration rows of its own. This says the hash without loading the tagger, because /setup may not wait for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from backend.domain.target import Target
from backend.domain.units import SENTENCE
from backend.tagger.hashes import blank_hash, folded_hash, merged_hash

BLANK = "blank"  # what stands for the name of a model where it knows no label of a project
_NAMELESS = ("ENTITY",)  # stands for the labels of a control that names none
_MOST = 200  # labels that a blank view has as classes: it suggests none of them


@dataclass(frozen=True)
class Origin:
    """Where a model came from, as it was named, and what it is over all its classes: enough to load it again.

    `model_map`, `int8` and `unit` are the settings of that name, which change what a model says.
    """

    source: str
    hash: str
    classes: tuple[str, ...]
    model_map: str | None = None
    int8: bool = False
    unit: str = SENTENCE

    def details(self) -> dict[str, Any]:
        """Return this as it is kept with the model in the database."""
        return asdict(self) | {"classes": list(self.classes)}


def origin_of(details: Mapping[str, Any]) -> Origin | None:
    """Read what `Origin.details` wrote; None for a model kept by a release that did not say where it came from.

    >>> origin = Origin("bundled", "ab", ("PER",))
    >>> origin_of(origin.details()) == origin, origin_of({})
    (True, None)
    """
    try:
        return Origin(
            str(details["source"]),
            str(details["hash"]),
            tuple(details["classes"]),
            details.get("model_map"),
            bool(details.get("int8")),
            str(details.get("unit", SENTENCE)),
        )
    except (KeyError, TypeError):
        return None


@dataclass(frozen=True)
class ModelHeader:
    """What can be known of a model without loading it; `blank` says that it knows no label of the project."""

    name: str
    hash: str
    classes: tuple[str, ...]
    origin: Origin | None = field(default=None, compare=False)
    blank: bool = field(default=False, compare=False)

    @property
    def version(self) -> str:
        """`<name>@<first 8 of the hash>`."""
        return f"{self.name}@{self.hash[:8]}"


def viewed(model: ModelHeader, target: Target) -> ModelHeader:
    """Return the model as a project with this target sees it: what `classes.project_tagger` has as its name and hash.

    The target's classes must be of this model.
    """
    if target.blank:
        digest = blank_hash(model.hash, target.unknown)
        return ModelHeader(BLANK, digest, blank_classes(target.unknown), model.origin, blank=True)
    if is_merged(target):
        return ModelHeader(model.name, merged_hash(model.hash, target.merged), target.classes, model.origin)
    if set(target.classes) == set(model.classes):
        return model
    return ModelHeader(model.name, folded_hash(model.hash, target.classes), target.classes, model.origin)


def blank_classes(unknown: Sequence[str]) -> tuple[str, ...]:
    """Return the classes of a blank view of labels that no model knows: these labels, as far as one is needed.

    >>> blank_classes(["Drug", "Symptom"]), blank_classes([])
    (('Drug', 'Symptom'), ('ENTITY',))
    """
    return tuple(unknown[:_MOST]) or _NAMELESS


def is_merged(target: Target) -> bool:
    """Whether some classes share a label."""
    return set(target.classes) != set(target.labels)
