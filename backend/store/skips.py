"""Tasks that people skipped, although their label would have counted (METHODS 8.3).

A skipped task that is left out quietly changes what the promise is about: not a random task, but a random task that
people label. So it is asked again, without a prelabel; and while it is unresolved it is counted, in the thresholds or
beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.store.policy import MAJORITY, SKIPPED
from backend.store.sampling import load_history
from backend.store.tables import Annotation, Label, ServedSet, Task
from backend.store.types import Draw
from backend.streams import exclusion_of

_PAGE = 1_000
_SKIPPED: sa.ColumnElement[str] = sa.literal_column(f"'{SKIPPED}'")  # as text: SQLite uses a partial index only then


@dataclass(frozen=True)
class SkippedTask:
    """A task that was drawn to calibrate and that everyone who opened it has skipped so far.

    `stratum` is that of the set last made for it, None when none is known.
    """

    task_id: int
    external_id: str
    language: str | None
    length: int | None
    draw: Draw
    skipped_at: datetime
    stratum: str | None


def skipped_tasks(session: Session, project_id: int, *, model_id: int | None = None) -> Iterator[SkippedTask]:
    """Yield the unresolved skips of a project that would count if they were labelled, in the order they were opened.

    Which would count is decided by the draw and the order of the work (`streams.exclusion_of`), as for any label.
    """
    history = load_history(session, project_id)
    stratum = (
        sa.select(ServedSet.stratum)
        .where(ServedSet.task_id == Task.id, ServedSet.model_id == (model_id if model_id is not None else -1))
        .order_by(ServedSet.served_at.desc(), ServedSet.id.desc())
        .limit(1)
        .correlate(Task)
        .scalar_subquery()
    )
    after = 0
    while True:
        rows = session.execute(
            sa.select(Label.id, Label.changed_at, Annotation.created_at, Annotation.updated_at, Task, stratum)
            .join(Task, Task.id == Label.task_id)
            .outerjoin(Annotation, Annotation.id == Label.annotation_row)
            .where(Label.project_id == project_id, Label.policy == MAJORITY, Label.exclusion == _SKIPPED)
            .where(Label.id > after, Task.deleted_at.is_(None), Task.random_order.is_not(None))
            .order_by(Label.id)
            .limit(_PAGE)
        ).all()
        for _, changed, created, updated, task, cell in rows:
            draw = Draw(task.stream, task.random_order, task.selection_probability, bool(task.blind))
            at = created or updated or changed
            if exclusion_of(draw, history, at) is None:
                yield SkippedTask(task.id, task.external_id, task.language, task.length, draw, at, cell)
        if len(rows) < _PAGE:
            return
        after = rows[-1][0]
