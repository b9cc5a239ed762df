"""What a confirmed label is worth: the evidence it is, and whether it may calibrate a model (METHODS 8.1 to 8.4).

A function of the draw of its task, of what was shown before it was made, of the order in which tasks were given out,
and of what trained the model; nothing of it looks at the label itself.
"""

from __future__ import annotations

from datetime import UTC, datetime

from backend.calibration.evidence import Evidence
from backend.domain.records import AnnotationRecord, LabelRecord, TaskRecord
from backend.domain.streams import FILE_STREAM, UNSHOWN, OrderHistory, exclusion_of
from backend.store.training import TRAINED

_NEVER = datetime.max.replace(tzinfo=UTC)


def _annotated_at(label: LabelRecord) -> datetime:
    chosen = label.annotation
    return _NEVER if chosen is None else chosen.created_at or chosen.updated_at


def label_exclusion(label: LabelRecord, task: TaskRecord, history: OrderHistory, *, trained: bool) -> str | None:
    """Return why the label of a task may not calibrate a model, None when it may (METHODS 8.1, 8.3, 8.4)."""
    if label.exclusion is not None:
        return label.exclusion
    if trained:
        return TRAINED
    return exclusion_of(task.draw, history, None if label.annotation is None else _annotated_at(label))


def label_evidence(label: LabelRecord, task: TaskRecord, *, led: datetime | None, blank: datetime | None) -> Evidence:
    """Return what a label is worth: by the draw of its task, and by what was shown before it was made.

    A prelabel in view makes it assisted, whatever was drawn. A task that was shown blank because no model knew its
    labels is as clean as one drawn blind (METHODS 13.1), if nothing in the annotation came from a prediction.

    Args:
        led: when the task was first shown with a prelabel.
        blank: when it was first shown blank.
    """
    at, drawn = _annotated_at(label), evidence_of(task)
    if drawn is Evidence.FILE:
        return drawn
    if led is not None and led < at:
        return Evidence.ASSISTED
    met = task.draw is not None and task.draw.stream != UNSHOWN and blank is not None and blank < at
    if drawn is Evidence.ASSISTED and met and label.annotation is not None and not _took_over(label.annotation):
        return Evidence.BLIND
    return drawn


def _took_over(annotation: AnnotationRecord) -> bool:
    """Whether regions of an annotation came from a prediction, ours or another's."""
    return any(origin.startswith("prediction") and count for origin, count in annotation.origins.items())


def evidence_of(task: TaskRecord) -> Evidence:
    """Return what a label of this task is worth: decided before anyone saw it (METHODS 8.1, 8.2)."""
    if task.draw is None:
        return Evidence.ASSISTED
    if task.draw.stream == FILE_STREAM:
        return Evidence.FILE
    return Evidence.BLIND if task.draw.blind else Evidence.ASSISTED
