"""The newest labels of a project whose words may be suggested elsewhere: what was drawn to be blind is never read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.label_choice import MAJORITY
from backend.domain.records import TextSpan
from backend.domain.streams import AUDIT
from backend.store.tables import Label, Task

_PAGE = 500  # bound parameters of a statement are limited


class LabelMark(NamedTuple):
    """A label as it is now: `revision` grows when it changes. `size` is that of its text, in tokens or more."""

    id: int
    revision: int
    size: int


class LabelledText(NamedTuple):
    """A label with its text and the id of its task in Label Studio."""

    id: int
    task: str
    text: str
    spans: tuple[TextSpan, ...]


def newest_labels(session: Session, project_id: int, *, limit: int) -> list[LabelMark]:
    """Return the newest confirmed labels of a project, without those of audit tasks and tasks that were drawn blind.

    What nobody confirmed (skips, bulk copies, accepted tasks) and what lost its text is left out as well.
    """
    size = sa.func.coalesce(Task.length, sa.func.length(Task.text))
    rows = session.execute(
        sa.select(Label.id, Label.revision, size)
        .join(Task, Task.id == Label.task_id)
        .where(Label.project_id == project_id, Label.policy == MAJORITY, *_usable())
        .order_by(Label.id.desc())
        .limit(limit)
    )
    return [LabelMark(*row) for row in rows]


def load_labelled(session: Session, labels: Sequence[int]) -> list[LabelledText]:
    """Return these labels with their texts; those that may no longer be used are missing."""
    texts: list[LabelledText] = []
    for begin in range(0, len(labels), _PAGE):
        rows = session.execute(
            sa.select(Label.id, Task.external_id, Task.text, Label.spans)
            .join(Task, Task.id == Label.task_id)
            .where(Label.id.in_(labels[begin : begin + _PAGE]), *_usable())
        )
        texts += [LabelledText(row[0], row[1], row[2], tuple(TextSpan(*span) for span in row[3])) for row in rows]
    return texts


def _usable() -> tuple[sa.ColumnElement[bool], ...]:
    return (
        Label.spans.is_not(None),
        Label.exclusion.is_(None),
        Task.deleted_at.is_(None),
        Task.text.is_not(None),
        sa.or_(Task.stream.is_(None), Task.stream != AUDIT),
        Task.blind.is_not(True),
    )
