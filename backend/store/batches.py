"""Many tasks at once: two statements for a batch that is new or known, instead of several for each task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.records import Draw
from backend.domain.text import text_hash
from backend.store.engine import database_now
from backend.store.projects import ensure_task
from backend.store.tables import Task, TaskDeletion
from backend.store.upsert import insert

_KEY = ("project_id", "external_id", "text_hash")


@dataclass(frozen=True)
class NewTask:
    """A task as it is to be kept; the fields are those of `projects.ensure_task`."""

    external_id: str
    text: str
    language: str | None = None
    length: int | None = None
    draw: Draw | None = None
    created_at: datetime | None = None


@dataclass(frozen=True)
class KeptTask:
    """A task's id in this database, and whether it was drawn to be blind."""

    id: int
    blind: bool


def ensure_tasks(session: Session, project_id: int, tasks: Sequence[NewTask]) -> list[KeptTask]:
    """Do what `ensure_task` does for each of the tasks, and return them in order.

    Tasks that are new, or known with nothing to add, are handled together; the few others one by one.
    """
    if not tasks:
        return []
    now = database_now(session)
    names = sorted({task.external_id for task in tasks})
    deleted = set(
        session.execute(
            sa.select(TaskDeletion.external_id).where(
                TaskDeletion.project_id == project_id, TaskDeletion.external_id.in_(names)
            )
        ).scalars()
    )
    known = _known(session, project_id, names)
    rows = {
        (task.external_id, digest): _row(project_id, task, digest, now)
        for task in tasks
        if task.external_id not in deleted and (task.external_id, digest := text_hash(task.text)) not in known
    }
    if rows:
        statement = insert(session, Task).on_conflict_do_nothing(index_elements=list(_KEY))
        # Always in one order, here and below, so that two processes with the same tasks wait for one another in turn.
        session.connection().execute(statement, [rows[key] for key in sorted(rows)])
        known |= _known(session, project_id, sorted({name for name, _ in rows}))
    stored = [known.get((task.external_id, text_hash(task.text))) for task in tasks]
    numbers = [math.inf if row is None else row.id for row in stored]
    kept: dict[int, KeptTask] = {}
    for i in sorted(range(len(tasks)), key=lambda i: (numbers[i], i)):
        kept[i] = _kept(session, project_id, tasks[i], stored[i])
    return [kept[i] for i in range(len(tasks))]


def _known(session: Session, project_id: int, names: Sequence[str]) -> dict[tuple[str, bytes], Any]:
    columns = (
        Task.id,
        Task.external_id,
        Task.text_hash,
        Task.language,
        Task.length,
        Task.random_order,
        Task.blind,
        Task.external_created_at,
        Task.deleted_at,
    )
    rows = session.execute(sa.select(*columns).where(Task.project_id == project_id, Task.external_id.in_(names)))
    return {(row.external_id, bytes(row.text_hash)): row for row in rows}


def _row(project_id: int, task: NewTask, digest: bytes, now: datetime) -> dict[str, Any]:
    draw = task.draw
    return {
        "project_id": project_id,
        "external_id": task.external_id,
        "text_hash": digest,
        "text": task.text,
        "language": task.language,
        "length": task.length,
        "stream": None if draw is None else draw.stream,
        "random_order": None if draw is None else draw.random_order,
        "selection_probability": None if draw is None else draw.selection_probability,
        "blind": None if draw is None else draw.blind,
        "external_created_at": task.created_at,
        "created_at": now,
    }


def _kept(session: Session, project_id: int, task: NewTask, row: Any) -> KeptTask:  # noqa: ANN401 - a row of columns
    if row is None or row.deleted_at is not None or _adds_something(task, row):
        kept = ensure_task(
            session,
            project_id,
            external_id=task.external_id,
            text=task.text,
            language=task.language,
            length=task.length,
            draw=task.draw,
            created_at=task.created_at,
        )
        return KeptTask(kept.id, kept.draw is not None and kept.draw.blind)
    return KeptTask(row.id, bool(row.blind))


def _adds_something(task: NewTask, row: Any) -> bool:  # noqa: ANN401 - a row of columns
    born = row.external_created_at
    return (
        (row.random_order is None and task.draw is not None)
        or (not row.language and bool(task.language))
        or (row.length is None and task.length is not None)
        or (task.created_at is not None and (born is None or task.created_at > born))
    )
