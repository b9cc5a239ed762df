"""Which tasks a model was made from: their labels are never evidence about it (METHODS 8.4)."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.label_choice import MAJORITY
from backend.domain.streams import AUDIT
from backend.store.engine import database_now
from backend.store.tables import Label, Task, TrainingTask
from backend.store.upsert import insert

TRAINED = "trained"
_PAGE = 500  # bound parameters of a statement are limited


def record_training_tasks(session: Session, model_hash: str, task_ids: Iterable[int], *, purpose: str) -> int:
    """Remember that the labels of these tasks went into a model; returns how many were not known before.

    Call it before the model is used: rows that were scored earlier are reconsidered only when something asks for it.

    Args:
        model_hash: of the model over all its classes, not of a project's view of it.
        purpose: `training`, `stopping` or `choice`.
    """
    now = database_now(session)
    wanted = sorted(set(task_ids))
    known = training_tasks(session, model_hash, wanted)
    rows = [
        {"model_hash": model_hash, "task_id": task, "purpose": purpose, "recorded_at": now}
        for task in wanted
        if task not in known
    ]
    if rows:
        statement = insert(session, TrainingTask).on_conflict_do_nothing(index_elements=["model_hash", "task_id"])
        session.connection().execute(statement, rows)
    return len(rows)


def count_trainable(session: Session, project_id: int) -> int:
    """Return how many labels of a project a model may learn from, whatever they say: neither audit nor drawn blind."""
    query = (
        sa.select(sa.func.count())
        .select_from(Label)
        .join(Task, Task.id == Label.task_id)
        .where(Label.project_id == project_id, Label.policy == MAJORITY)
        .where(Label.spans.is_not(None), Label.exclusion.is_(None))
        .where(Task.deleted_at.is_(None), Task.text.is_not(None))
        .where(sa.or_(Task.stream.is_(None), sa.and_(Task.stream != AUDIT, Task.blind.is_not(True))))
    )
    return int(session.execute(query).scalar_one())


def training_tasks(
    session: Session, model_hash: str, task_ids: Iterable[int], *, ancestors: Iterable[str] = ()
) -> frozenset[int]:
    """Return those of the tasks whose labels went into the model, or into one of the ancestors it was begun with."""
    wanted = sorted(set(task_ids))
    models = sorted({model_hash, *ancestors})
    trained: set[int] = set()
    for begin in range(0, len(wanted), _PAGE):
        trained.update(
            session.execute(
                sa.select(TrainingTask.task_id).where(
                    TrainingTask.model_hash.in_(models), TrainingTask.task_id.in_(wanted[begin : begin + _PAGE])
                )
            ).scalars()
        )
    return frozenset(trained)
