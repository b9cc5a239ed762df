"""A checkpoint's own labels as a project's IOB2 labels, with a file that says what they mean where they do not.

The file is JSON, every part of it optional:

    {"labels": {"LABEL_0": "O", "LABEL_1": "B-PER"},      what the checkpoint's labels are called
     "scheme": "IOB2",                                    or IO, IOB1, BIOES, where the labels do not show it
     "classes": {"PERSON": "PER", "GPE": "LOC", "DATE": null},   the project's class for a class; null is no entity
     "languages": ["en"]}                                 languages to tell apart

Classes that map to one have their probabilities added at every token, before decoding (METHODS 1).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backend.tagger.errors import InvalidModel
from conformal.errors import InvalidLabels
from conformal.labels import Groups, LabelSpace, Scheme, map_model_labels

MAPPING_FILE = "surespan.json"
_KEYS = {"labels", "scheme", "classes", "languages", "checkpoint"}


@dataclass(frozen=True)
class LabelMapping:
    """What a mapping file says."""

    labels: Mapping[str, str] = field(default_factory=dict)
    scheme: Scheme | None = None
    classes: Mapping[str, str | None] = field(default_factory=dict)
    languages: tuple[str, ...] | None = None
    checkpoint: str | None = None

    def to_json(self) -> str:
        """Return what decides potentials, in a fixed order; empty when there is nothing of it."""
        said = {"labels": dict(self.labels), "scheme": self.scheme and self.scheme.value, "classes": dict(self.classes)}
        return json.dumps({k: v for k, v in said.items() if v}, sort_keys=True) if any(said.values()) else ""


@dataclass(frozen=True)
class Labels:
    """How the columns of a checkpoint become labels of `space`.

    `groups[y]` are the columns whose probabilities add up to label y (none: the checkpoint cannot say y), and
    `allowed[x, y]` the moves that keep the correspondence one to one (`conformal.labels.LabelMap`).
    """

    space: LabelSpace
    scheme: Scheme
    groups: Groups
    allowed: npt.NDArray[np.bool_]  # (L, L)


def read_mapping(path: Path) -> LabelMapping:
    """Read a mapping file.

    Raises InvalidModel, naming the file, when it holds something else.
    """
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidModel(f"expected a mapping file (JSON) at {path}, got: {error}") from None
    if not isinstance(said, dict) or not set(said) <= _KEYS:
        got = sorted(set(said) - _KEYS) if isinstance(said, dict) else type(said).__name__
        raise InvalidModel(f"expected an object with the keys {sorted(_KEYS)} in {path.name}, got {got}")
    labels = _texts(said.get("labels", {}), path, "labels", nulls=False)
    classes = _texts(said.get("classes", {}), path, "classes", nulls=True)
    languages = said.get("languages")
    if languages is not None and not (isinstance(languages, list) and all(isinstance(one, str) for one in languages)):
        raise InvalidModel(f"expected languages to be a list of codes such as en in {path.name}, got {languages!r}")
    scheme = said.get("scheme")
    known = [one.value for one in Scheme]
    if scheme is not None and scheme not in known:
        raise InvalidModel(f"expected one of the schemes {known} in {path.name}, got {scheme!r}")
    checkpoint = said.get("checkpoint")
    if checkpoint is not None and not isinstance(checkpoint, str):
        raise InvalidModel(f"expected the checkpoint to be a hub id or a folder in {path.name}, got {checkpoint!r}")
    return LabelMapping(
        {k: str(v) for k, v in labels.items()},
        None if scheme is None else Scheme(scheme),
        classes,
        None if languages is None else tuple(languages),
        checkpoint,
    )


def _texts(said: Any, path: Path, name: str, *, nulls: bool) -> dict[str, str | None]:  # noqa: ANN401 - parsed JSON
    fine = isinstance(said, dict) and all(isinstance(v, str) or (nulls and v is None) for v in said.values())
    if not fine:
        raise InvalidModel(f"expected {name} to map names to names in {path.name}, got {said!r}")
    return dict(said)


def map_labels(names: Sequence[str], mapping: LabelMapping | None = None) -> Labels:
    """Map the labels of a checkpoint, in the order of its columns.

    Classes stand in the order in which the checkpoint has them. Raises InvalidModel when they are no tagging scheme.

    >>> labels = map_labels(["O", "B-GPE", "I-GPE", "B-LOC", "I-LOC", "B-DATE", "I-DATE"],
    ...                     LabelMapping(classes={"GPE": "LOC", "DATE": None}))
    >>> labels.space.labels, labels.groups
    (('O', 'B-LOC', 'I-LOC'), ((0, 5, 6), (1, 3), (2, 4)))
    """
    said = mapping or LabelMapping()
    tags = [said.labels.get(name, name) for name in names]
    unknown = sorted(set(said.labels) - set(names))
    if unknown:
        raise InvalidModel(f"expected labels of the checkpoint ({list(names)}) in the mapping file, got {unknown}")
    try:
        own = map_model_labels(tags, scheme=said.scheme)
    except InvalidLabels as error:
        raise InvalidModel(
            f"{error}; say in the mapping file ({MAPPING_FILE}, SURESPAN_MODEL_MAP) what the labels {list(names)} mean"
        ) from None
    unknown = sorted(set(said.classes) - set(own.space.classes))
    if unknown:
        raise InvalidModel(f"expected classes of the checkpoint {own.space.classes} in the mapping file, got {unknown}")
    targets = {name: said.classes.get(name, name) for name in own.space.classes}
    kept = list(dict.fromkeys(to for to in targets.values() if to is not None))
    try:
        space = LabelSpace(kept)
    except InvalidLabels as error:
        raise InvalidModel(f"expected the mapping file to leave a class, got: {error}") from None
    groups: list[list[int]] = [[] for _ in space.labels]
    for label, columns in zip(own.space.labels, own.groups, strict=True):
        to = None if label == "O" else targets[label[2:]]
        groups[0 if to is None else space.begin(to) + (label[0] == "I")] += columns
    allowed = space.allowed.copy()
    if own.scheme is Scheme.IO:
        for begin in range(1, len(space), 2):
            allowed[begin : begin + 2, begin] = False
    allowed.setflags(write=False)
    # A column of an IO scheme means B and I alike, but sends its probability to O only once.
    return Labels(space, own.scheme, tuple(tuple(dict.fromkeys(group)) for group in groups), allowed)
