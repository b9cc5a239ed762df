"""Tasks that people skipped, although their label would have counted (METHODS 8.3).

A skipped task that is left out quietly changes what the promise is about: not a random task, but a random task that
people label. So it is asked again, without a prelabel; and while it is unresolved it is counted, in the thresholds or
beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.label_choice import MAJORITY, SKIPPED
from backend.domain.records import Draw
from backend.domain.streams import exclusion_of
from backend.errors import StoreConflict
from backend.store.packed_lists import unpack_ranked
from backend.store.sampling import load_history
from backend.store.tables import Annotation, Label, ServedSet, Task
from conformal.units import SEVERAL

_PAGE = 1_000
_SKIPPED: sa.ColumnElement[str] = sa.literal_column(f"'{SKIPPED}'")  # as text: SQLite uses a partial index only then


@dataclass(frozen=True)
class SkippedTask:
    """A task that was drawn to calibrate and that everyone who opened it has skipped so far.

    `strata` are those of the units of the set last made for it; empty when none is known.
    """

    task_id: int
    external_id: str
    language: str | None
    length: int | None
    draw: Draw
    strata: tuple[str, ...]


def skipped_tasks(session: Session, project_id: int, *, model_id: int | None = None) -> Iterator[SkippedTask]:
    """Yield the unresolved skips of a project that would count if they were labelled, in the order they were opened.

    Which would count is decided by the draw and the order of the work (`domain.streams.exclusion_of`), as for
    any label.
    """
    history = load_history(session, project_id)
    last = (
        sa.select(ServedSet.id)
        .where(ServedSet.task_id == Task.id, ServedSet.model_id == (model_id if model_id is not None else -1))
        .order_by(ServedSet.served_at.desc(), ServedSet.id.desc())
        .limit(1)
        .correlate(Task)
        .scalar_subquery()
    )
    after = 0
    while True:
        rows = session.execute(
            sa.select(Label.id, Label.changed_at, Annotation.created_at, Annotation.updated_at, Task, last)
            .join(Task, Task.id == Label.task_id)
            .outerjoin(Annotation, Annotation.id == Label.annotation_row)
            .where(Label.project_id == project_id, Label.policy == MAJORITY, Label.exclusion == _SKIPPED)
            .where(Label.id > after, Task.deleted_at.is_(None), Task.random_order.is_not(None))
            .order_by(Label.id)
            .limit(_PAGE)
        ).all()
        for _, changed, created, updated, task, served in rows:
            draw = Draw(task.stream, task.random_order, task.selection_probability, bool(task.blind))
            at = created or updated or changed
            if exclusion_of(draw, history, at) is None:
                strata = () if served is None else _strata(session, served)
                yield SkippedTask(task.id, task.external_id, task.language, task.length, draw, strata)
        if len(rows) < _PAGE:
            return
        after = rows[-1][0]


def _strata(session: Session, served_id: int) -> tuple[str, ...]:
    """Return the strata of a served set's units: one stands for all where they share it."""
    row = session.execute(sa.select(ServedSet.stratum, ServedSet.ranked).where(ServedSet.id == served_id)).one()
    if row.stratum != SEVERAL:
        return (row.stratum,)
    try:
        return tuple(unit.stratum for unit in unpack_ranked(bytes(row.ranked)).units)
    except StoreConflict:  # of a later release: as if no set had been made
        return ()
