"""Projects, models and tasks: found or created, never duplicated, whoever comes first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.records import Draw, ModelRecord, ProjectRecord, TaskRecord
from backend.domain.text import text_hash
from backend.errors import NotFound
from backend.store.engine import database_now, is_postgresql
from backend.store.tables import Model, Project, Task, TaskDeletion
from backend.store.upsert import get_or_create

LOCAL = "local"


def ensure_project(
    session: Session, uid: str, *, title: str | None = None, label_config: str | None = None
) -> ProjectRecord:
    """Return the project of this uid, created if need be; what is given replaces what was known."""
    now = database_now(session)
    said = {"title": title, "label_config": label_config}
    changes = {name: value for name, value in said.items() if value is not None}
    fresh = {"key": uid.split(".", maxsplit=1)[0], "created_at": now, "updated_at": now, "title": ""}
    project = get_or_create(session, Project, {"uid": uid}, fresh | changes)
    if any(getattr(project, name) != value for name, value in changes.items()):
        for name, value in changes.items():
            setattr(project, name, value)
        project.updated_at = now
        session.flush()
    return _project(project)


def find_project(session: Session, key: str) -> ProjectRecord | None:
    """Return the newest project with this id (all that webhooks carry), or of this whole uid."""
    rows = session.execute(
        sa.select(Project).where((Project.key == key) | (Project.uid == key)).order_by(Project.id.desc()).limit(1)
    )
    project = rows.scalar_one_or_none()
    return None if project is None else _project(project)


def load_project(session: Session, project_id: int) -> ProjectRecord:
    """Return the project with this id in the database.

    Raises:
        NotFound: when there is none.
    """
    project = session.get(Project, project_id)
    if project is None:
        raise NotFound(f"expected the id of a project, got {project_id}, which does not exist")
    return _project(project)


def list_projects(session: Session) -> list[ProjectRecord]:
    """Return all projects, oldest first."""
    return [_project(row) for row in session.execute(sa.select(Project).order_by(Project.id)).scalars()]


def set_project_alpha(session: Session, project_id: int, *, alpha: str) -> ProjectRecord:
    """Change a project's own alpha.

    Raises:
        NotFound: when there is no such project.
    """
    project = session.get(Project, project_id, with_for_update=True)
    if project is None:
        raise NotFound(f"expected the id of a project, got {project_id}, which does not exist")
    project.alpha = alpha
    project.updated_at = database_now(session)
    session.flush()
    return _project(project)


def ensure_model(
    session: Session, name: str, digest: str, *, classes: Sequence[str], details: Mapping[str, Any] | None = None
) -> ModelRecord:
    """Return the model of this name and content hash, created if need be; given details replace what was known.

    Args:
        details: where it came from (`labelstudio.identity.Origin`), so that it can be loaded again.
    """
    fresh = {"classes": list(classes), "details": dict(details or {}), "created_at": database_now(session)}
    model = get_or_create(session, Model, {"name": name, "hash": digest}, fresh)
    if details and any(model.details.get(key) != value for key, value in details.items()):
        model.details = {**model.details, **details}
        session.flush()
    return _model(model)


def load_model(session: Session, model_id: int) -> ModelRecord | None:
    """Return a model by its id, None when there is none."""
    row = session.get(Model, model_id)
    return None if row is None else _model(row)


def lookup_model(session: Session, name: str, digest: str) -> ModelRecord | None:
    """Return the model of this name and content hash, None if it was never stored."""
    model = session.execute(sa.select(Model).filter_by(name=name, hash=digest)).scalar_one_or_none()
    return None if model is None else _model(model)


def ensure_task(
    session: Session,
    project_id: int,
    *,
    external_id: str,
    text: str,
    language: str | None = None,
    length: int | None = None,
    draw: Draw | None = None,
    created_at: datetime | None = None,
) -> TaskRecord:
    """Return the task of (project, task id, text), created if need be.

    The draw is kept as first written: it may not depend on anything that happened later (METHODS 8.1).

    Args:
        created_at: when Label Studio created the task. A deleted task id whose task was created after the deletion
            is alive again; without the time, a task once deleted stays deleted.
    """
    now = database_now(session)
    key = {"project_id": project_id, "external_id": external_id, "text_hash": text_hash(text)}
    fresh = {"text": text, "language": language, "length": length, "created_at": now, "external_created_at": created_at}
    task = get_or_create(session, Task, key, fresh, lock=True)
    if task.random_order is None and draw is not None:
        task.stream, task.random_order = draw.stream, draw.random_order
        task.selection_probability, task.blind = draw.selection_probability, draw.blind
    task.language = task.language or language
    task.length = length if task.length is None else task.length
    if created_at is not None and (task.external_created_at is None or created_at > task.external_created_at):
        task.external_created_at = created_at
    deleted = session.get(TaskDeletion, (project_id, external_id))
    born = task.external_created_at
    task.deleted_at = deleted.at if deleted and (born is None or born <= deleted.at) else None
    session.flush()
    return _task(task)


def find_task(session: Session, project_id: int, *, external_id: str) -> TaskRecord | None:
    """Return the living task that has this id now (for payloads that carry no text): the newest one."""
    rows = session.execute(
        sa.select(Task)
        .where(Task.project_id == project_id, Task.external_id == external_id, Task.deleted_at.is_(None))
        .order_by(Task.external_created_at.desc().nulls_last(), Task.id.desc())
        .limit(1)
    )
    task = rows.scalar_one_or_none()
    return None if task is None else _task(task)


def list_task_versions(session: Session, project_id: int, *, external_id: str) -> list[TaskRecord]:
    """Return the living tasks that have this id, the newest last: several when its text was edited."""
    rows = session.execute(
        sa.select(Task)
        .where(Task.project_id == project_id, Task.external_id == external_id, Task.deleted_at.is_(None))
        .order_by(Task.external_created_at.nulls_first(), Task.id)
    ).scalars()
    return [_task(row) for row in rows]


def load_tasks(session: Session, task_ids: Iterable[int]) -> dict[int, TaskRecord]:
    """Return tasks by their ids in this database; unknown ids are left out."""
    rows = session.execute(sa.select(Task).where(Task.id.in_(list(task_ids)))).scalars()
    return {row.id: _task(row) for row in rows}


def lock_tasks(session: Session, task_ids: Iterable[int]) -> None:
    """Hold tasks to the end of the transaction: their labels change under this lock only.

    All that a transaction needs, before any calibration row and in one order; taken one by one in between, two
    transactions can each hold what the other waits for.
    """
    if is_postgresql(session):  # a writing transaction of SQLite has the database to itself
        numbers = sorted(set(task_ids))
        session.execute(sa.select(Task.id).where(Task.id.in_(numbers)).order_by(Task.id).with_for_update())


def _project(row: Project) -> ProjectRecord:
    return ProjectRecord(
        id=row.id,
        uid=row.uid,
        key=row.key,
        title=row.title,
        label_config=row.label_config,
        alpha=row.alpha,
    )


def _model(row: Model) -> ModelRecord:
    return ModelRecord(id=row.id, name=row.name, hash=row.hash, classes=tuple(row.classes), details=dict(row.details))


def _task(row: Task) -> TaskRecord:
    draw = None
    if row.stream is not None and row.random_order is not None and row.selection_probability is not None:
        draw = Draw(row.stream, row.random_order, row.selection_probability, bool(row.blind))
    return TaskRecord(
        id=row.id,
        project_id=row.project_id,
        external_id=row.external_id,
        text_hash=bytes(row.text_hash),
        text=row.text,
        language=row.language,
        length=row.length,
        draw=draw,
        deleted=row.deleted_at is not None,
    )
