"""Attempts at scoring labels: counted before the work, so that a label that always fails, or kills, is set aside.

A label that a process died of counts like one that failed, only that death says less: other things kill processes too,
so more of it is borne. What was set aside says why, and stays until the label changes or somebody asks for it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.records import LabelRecord, SetAside
from backend.domain.text import plain
from backend.store.engine import database_now
from backend.store.projects import lock_tasks
from backend.store.tables import ScoringAttempt, Task
from backend.store.upsert import insert

FAILURES = 3  # attempts after which a label that fails is set aside
DEATHS = 5  # attempts after which one is that nobody ever heard of again
REST = timedelta(minutes=1)  # before what failed is tried again, and before an attempt counts as a death


def begin_attempts(
    session: Session, project_id: int, *, model_id: int, labels: Sequence[LabelRecord]
) -> dict[int, int]:
    """Count an attempt for each of these labels, before it is made; returns how many there have been, by task.

    A label whose attempts ended in the death of the process too often is set aside instead, and left out; so is a task
    that is gone. A label of another revision than counted so far begins anew. Attempts of several processes may be
    under way at once: while the newest is younger than `REST`, a label with too many is only left for later.
    """
    now = database_now(session)
    numbers = [label.task_id for label in labels]
    lock_tasks(session, numbers)  # before the rows below, as whoever writes scores does
    alive = set(session.execute(sa.select(Task.id).where(Task.id.in_(numbers))).scalars())
    mine = sa.select(ScoringAttempt).where(ScoringAttempt.task_id.in_(numbers), ScoringAttempt.model_id == model_id)
    known = {row.task_id: row for row in session.execute(mine).scalars()}
    counted: dict[int, int] = {}
    fresh: list[LabelRecord] = []
    for label in labels:
        row = known.get(label.task_id)
        if label.task_id not in alive:
            continue
        if row is None or row.label_revision != label.revision:
            fresh.append(label)
            counted[label.task_id] = 1
        elif row.set_aside_at is not None:
            continue
        elif row.attempts >= DEATHS:
            if row.updated_at > now - REST:
                continue  # whoever began it may be at work still, and well
            row.error = row.error or f"the process ended {row.attempts} times while it scored this label"
            row.set_aside_at = now
        else:
            row.attempts, row.updated_at = row.attempts + 1, now
            counted[label.task_id] = row.attempts
    session.flush()
    _put(session, project_id, model_id, fresh, {"attempts": 1, "updated_at": now})
    return counted


def end_attempts(session: Session, task_ids: Iterable[int], *, model_id: int) -> None:
    """Forget the attempts at labels that came to their end; call it in the transaction that writes their rows."""
    mine = ScoringAttempt.task_id.in_(list(task_ids)), ScoringAttempt.model_id == model_id
    session.execute(sa.delete(ScoringAttempt).where(*mine))


def give_back_attempts(session: Session, task_ids: Iterable[int], *, model_id: int) -> None:
    """Take back the last attempt at labels that were not reached, or that trouble of the database kept from ending."""
    mine = ScoringAttempt.task_id.in_(list(task_ids)), ScoringAttempt.model_id == model_id
    standing = *mine, ScoringAttempt.set_aside_at.is_(None)
    session.execute(sa.delete(ScoringAttempt).where(*standing, ScoringAttempt.attempts <= 1))
    session.execute(sa.update(ScoringAttempt).where(*standing).values(attempts=ScoringAttempt.attempts - 1))


def fail_attempts(session: Session, errors: Mapping[int, BaseException | str], *, model_id: int) -> int:
    """Record why labels could not be scored, by task; returns how many of them are set aside from now on.

    The error's text is kept without any of the task's.
    """
    now = database_now(session)
    aside = 0
    for task_id, error in sorted(errors.items()):
        row = session.get(ScoringAttempt, (task_id, model_id), with_for_update=True)
        if row is None:
            continue  # another process has scored it meanwhile
        row.error = plain(error if isinstance(error, str) else f"{type(error).__name__}: {error}", 1000)
        row.updated_at = now
        if row.attempts >= FAILURES:
            row.set_aside_at = now
            aside += 1
    session.flush()
    return aside


def set_aside(session: Session, project_id: int, *, model_id: int, labels: Sequence[LabelRecord], reason: str) -> None:
    """Set labels aside at once, for a reason that no further attempt would change."""
    now = database_now(session)
    numbers = [label.task_id for label in labels]
    lock_tasks(session, numbers)
    alive = set(session.execute(sa.select(Task.id).where(Task.id.in_(numbers))).scalars())
    values = {"attempts": 0, "error": plain(reason, 1000), "set_aside_at": now, "updated_at": now}
    _put(session, project_id, model_id, [label for label in labels if label.task_id in alive], values)


def count_set_aside(session: Session) -> dict[int, int]:
    """Return how many labels are set aside, by project."""
    rows = session.execute(
        sa.select(ScoringAttempt.project_id, sa.func.count())
        .where(ScoringAttempt.set_aside_at.is_not(None))
        .group_by(ScoringAttempt.project_id)
    )
    return {project: int(count) for project, count in rows}


def list_set_aside(session: Session, *, project_id: int | None = None, limit: int = 100) -> list[SetAside]:
    """Return labels that are set aside, by project and task."""
    query = (
        sa.select(ScoringAttempt, Task.external_id)
        .join(Task, Task.id == ScoringAttempt.task_id)
        .where(ScoringAttempt.set_aside_at.is_not(None))
        .order_by(ScoringAttempt.project_id, ScoringAttempt.task_id)
        .limit(limit)
    )
    if project_id is not None:
        query = query.where(ScoringAttempt.project_id == project_id)
    return [
        SetAside(
            project_id=row.project_id,
            task_id=row.task_id,
            task=task,
            model_id=row.model_id,
            attempts=row.attempts,
            reason=row.error or "unknown",
            at=row.set_aside_at or row.updated_at,
        )
        for row, task in session.execute(query)
    ]


def retry_labels(session: Session, *, project_id: int | None = None) -> int:
    """Let all labels that are set aside (of one project) be scored again; returns how many."""
    rows = sa.delete(ScoringAttempt).where(ScoringAttempt.set_aside_at.is_not(None))
    if project_id is not None:
        rows = rows.where(ScoringAttempt.project_id == project_id)
    return int(getattr(session.execute(rows), "rowcount", 0))


def _put(
    session: Session, project_id: int, model_id: int, labels: Sequence[LabelRecord], values: Mapping[str, object]
) -> None:
    """Write rows that begin anew, over what may be there of another revision."""
    if not labels:
        return
    same: dict[str, object] = {"project_id": project_id, "model_id": model_id, "error": None, "set_aside_at": None}
    rows = [same | {"task_id": label.task_id, "label_revision": label.revision} | dict(values) for label in labels]
    statement = insert(session, ScoringAttempt).values(rows)
    changed = {name: statement.excluded[name] for name in rows[0] if name not in {"task_id", "model_id"}}
    session.execute(statement.on_conflict_do_update(index_elements=["task_id", "model_id"], set_=changed))
    session.expire_all()
