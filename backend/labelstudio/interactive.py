"""Interactive mode: which regions an annotator has fixed, and which are in view already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from backend.documents.document import Document
from backend.domain.records import TextSpan
from backend.domain.target import Target
from backend.labelstudio.annotations import labels_of
from backend.labelstudio.payloads import TaskIn

_UNTOUCHED = "prediction"


@dataclass(frozen=True)
class Given:
    """`fixed` spans are taken as they are; `present` ones are not suggested again. Classes are the model's.

    A fixed region whose label stands for no class of the model has the label itself as its class: no labeling says
    it, so its tokens are kept free (see `backend.prediction.constraints`).
    """

    fixed: tuple[TextSpan, ...]
    present: frozenset[TextSpan]


def read_given(
    regions: Iterable[Mapping[str, Any]], task: TaskIn, document: Document, *, target: Target, model_version: str
) -> Given:
    """Sort the regions that came with the request.

    What an annotator drew or changed is fixed. What stands as it was predicted is not: the model may change its mind
    about it. The editor sends only the regions of the label in use, so where it shows a prediction of ours, that
    prediction's other spans count as present too.
    """
    fixed: list[TextSpan] = []
    present: set[TextSpan] = set()
    from_prediction = False
    for region in regions:
        span = _span(region, document, target)
        origin = region.get("origin")
        from_prediction |= isinstance(origin, str) and origin.startswith(_UNTOUCHED)
        if span is None:
            continue
        present.add(span)
        if origin != _UNTOUCHED:
            fixed.append(span)
    if from_prediction:
        for prediction in task.predictions:
            result = prediction.get("result")
            if prediction.get("model_version") == model_version and isinstance(result, list):
                shown = (_span(region, document, target) for region in result if isinstance(region, dict))
                present.update(span for span in shown if span is not None)
    return Given(tuple(fixed), frozenset(present))


def _span(region: Mapping[str, Any], document: Document, target: Target) -> TextSpan | None:
    value = region.get("value")
    if region.get("from_name") != target.control or not isinstance(value, dict):
        return None
    found, labels = document.find(value), labels_of(region)
    if found is None or found[0] == found[1] or not isinstance(labels, list) or not labels:
        return None
    return TextSpan(*found, target.class_of(labels[0]) or labels[0]) if isinstance(labels[0], str) else None
