"""Annotations as Label Studio describes them, in webhooks and in its API alike, turned into what the store keeps.

A span keeps the label that the person chose, as the label config calls it: which class of a model that is depends on
the model, and is asked when the label is scored. Only results of the project's own control are spans;
a mark of doubt, a choice or a relation never is. What cannot be read is refused, never guessed or left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from backend.documents.document import ANY_TEXT, Document, read_offset
from backend.domain.records import AnnotationRecord, TextSpan
from backend.domain.target import LABELS, Target
from backend.labelstudio.config import LabelConfig
from backend.labelstudio.payloads import InvalidPayload, describe_kind, kind_of, read_time

MAX_LABEL = 100  # characters that a calibration row keeps
_MAX_ID = 2**63 - 1


def read_annotation(annotation: object, *, control: str, document: Document = ANY_TEXT) -> AnnotationRecord:
    """Read one annotation object; spans are the results of `control`, in characters of the document's plain text.

    An annotation without any is a labeling too: the text has no entity. A region that carries several labels says
    several things about the same characters, and a region with none says nothing.

    Raises:
        InvalidPayload: when a part that matters is missing or is not what it should be.

    >>> made = read_annotation({"id": 3, "updated_at": "2026-01-01T00:00:00Z", "result": [
    ...     {"from_name": "label", "type": "labels", "value": {"start": 0, "end": 3, "labels": ["PER"]}},
    ...     {"from_name": "flag", "type": "labels", "value": {"start": 4, "end": 9, "labels": ["Needs review"]}}]},
    ...     control="label")
    >>> made.spans
    (TextSpan(start=0, end=3, label='PER'),)
    """
    if not isinstance(annotation, dict):
        raise InvalidPayload("an annotation that is an object", describe_kind(annotation))
    result = annotation.get("result")
    if not isinstance(result, list):
        raise InvalidPayload("the regions of an annotation as a list under 'result'", kind_of(annotation, "result"))
    regions = [_region(region) for region in result]
    updated = read_time(annotation.get("updated_at"))
    if updated is None:
        raise InvalidPayload("a time under 'updated_at' of an annotation", kind_of(annotation, "updated_at"))
    lead_time = annotation.get("lead_time")
    unique = annotation.get("unique_id")
    return AnnotationRecord(
        annotation_id=read_id(annotation, "id"),
        updated_at=updated,
        spans=tuple(sorted({span for region in regions for span in _spans(region, control, document)})),
        was_cancelled=annotation.get("was_cancelled") is True,
        ground_truth=annotation.get("ground_truth") is True,
        bulk=is_bulk(annotation),
        created_at=read_time(annotation.get("created_at")),
        unique_id=unique if isinstance(unique, str) else None,
        parent_prediction=_link(annotation.get("parent_prediction")),
        parent_annotation=_link(annotation.get("parent_annotation")),
        origins=dict(Counter(_origin(region) for region in regions if region.get("from_name") == control)),
        lead_time=_number(lead_time),
        completed_by=_link(annotation.get("completed_by")),
    )


def is_bulk(annotation: Mapping[str, Any]) -> bool:
    """Whether an annotation was made by a bulk action from a prediction, so that no person looked (METHODS 8.3).

    The editor and the API note who changed an annotation (`updated_by`), the editor how long it took; "create
    annotations from predictions" notes neither. It names the prediction, but loses it when that is deleted, so its
    absence proves nothing. Annotations that came with an import note neither too, but they are ground truth or carry
    the id they had before. Once a person edits a copy it is theirs.

    >>> is_bulk({"lead_time": None, "updated_by": None, "parent_prediction": 7}), is_bulk({"lead_time": 1.5})
    (True, False)
    """
    if annotation.get("bulk_created") is True:
        return True
    if annotation.get("lead_time") is not None or annotation.get("updated_by") is not None:
        return False
    if annotation.get("parent_prediction") is not None:
        return True
    known = "updated_by" in annotation and annotation.get("ground_truth") is not True
    return known and annotation.get("import_id") is None


def control_of(config: LabelConfig, target: Target | None, *, named: str | None = None) -> str | None:
    """Return the control whose results are the labels of a project, None when its config has none for a text.

    It is the one that predictions go to; if the model has no place in the config, the one that is `named`
    (SURESPAN_LABELS_CONTROL), else the first.
    """
    if target is not None:
        return target.control
    names = [control.name for control in config.controls]
    if named in names:
        return named
    return names[0] if names else None


def matches_text(annotation: Mapping[str, Any], text: str) -> bool:
    """Whether the words that regions repeat stand in the text where they say; white space does not matter.

    They do not when the task's text was edited after the annotation was made.
    """
    for region in annotation.get("result") or ():
        value = region.get("value") if isinstance(region, dict) else None
        if not isinstance(value, dict):
            continue
        said, start, end = value.get("text"), read_offset(value.get("start")), read_offset(value.get("end"))
        if not isinstance(said, str) or start is None or end is None:
            continue
        if "".join(said.split()) != "".join(text[start:end].split()):
            return False
    return True


def read_id(frame: object, key: str) -> int:
    """Return the id of an annotation or task, given as `{key: id}`.

    Raises:
        InvalidPayload: when there is none.
    """
    value = frame.get(key) if isinstance(frame, dict) else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_ID:
        got = kind_of(frame, key) if isinstance(frame, dict) else describe_kind(frame)
        raise InvalidPayload(f"a whole number under {key!r}", got)
    return value


def _region(region: object) -> Mapping[str, Any]:
    if not isinstance(region, dict):
        raise InvalidPayload("regions that are objects", describe_kind(region))
    return region


def labels_of(region: Mapping[str, Any]) -> object:
    """Return what stands where a region's labels are: under the name of its kind, `labels` if nothing does."""
    value, kind = region["value"], region.get("type")
    return value.get(kind if isinstance(kind, str) and kind in value else LABELS, [])


def _spans(region: Mapping[str, Any], control: str, document: Document) -> Iterable[TextSpan]:
    if region.get("from_name") != control:
        return
    value = region.get("value")
    if not isinstance(value, dict):
        raise InvalidPayload("an object under 'value' of a region", kind_of(region, "value"))
    labels = labels_of(region)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise InvalidPayload("a list of texts under 'labels' of a region", kind_of(value, "labels"))
    found = document.find(value)
    if found is None and document is ANY_TEXT:
        raise InvalidPayload("'start' and 'end' of a region, in characters and in this order", "something else")
    if found is None:
        raise InvalidPayload("a region at a place that the task has, with the words that stand there", "another")
    for label in labels:
        yield TextSpan(*found, _storable(label))


def _storable(label: str) -> str:
    clean = label.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return clean[:MAX_LABEL]


def _origin(region: Mapping[str, Any]) -> str:
    origin = region.get("origin")
    return origin if origin in {"prediction", "prediction-changed", "manual"} else "unknown"


def _link(value: object) -> int | None:
    if isinstance(value, dict):  # some answers of the API hold the object itself
        value = value.get("id")
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_ID else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value) if abs(value) < 1e300 else None
    return number if number is not None and number == number else None  # noqa: PLR0124 - NaN is not itself
