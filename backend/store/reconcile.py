"""What the store knows of a project's tasks and annotations, as reconciliation asks it; nothing here writes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.store.tables import Annotation, Event, Task


@dataclass(frozen=True)
class KnownAnnotation:
    """The newest state of an annotation that the store has heard of; `alive` unless it was deleted after that."""

    annotation_id: int
    task: str | None
    updated_at: datetime
    alive: bool


@dataclass(frozen=True)
class KnownTask:
    """A living task: its number on the server, the hash of its text and when the server made it."""

    id: int
    external_id: str
    text_hash: bytes
    created_at: datetime | None


def known_annotations(session: Session, project_id: int, numbers: Collection[int]) -> dict[int, KnownAnnotation]:
    """Return what is known of these annotations; those never heard of are left out."""
    return {
        each.annotation_id: each for each in _annotations(session, project_id, Annotation.annotation_id.in_(numbers))
    }


def living_annotations(session: Session, project_id: int, tasks: Collection[str]) -> list[KnownAnnotation]:
    """Return the annotations of these tasks that count as alive."""
    annotations = _annotations(session, project_id, Task.external_id.in_(tasks) & Task.deleted_at.is_(None))
    return [each for each in annotations if each.alive]


def known_tasks(session: Session, project_id: int, numbers: Collection[str]) -> dict[str, list[KnownTask]]:
    """Return the living tasks with these numbers: several for one whose text was edited."""
    by_number: dict[str, list[KnownTask]] = {}
    for row in _tasks(session, project_id, Task.external_id.in_(numbers)):
        by_number.setdefault(row.external_id, []).append(row)
    return by_number


def tasks_from(session: Session, project_id: int, *, after: int, limit: int) -> list[KnownTask]:
    """Return living tasks by their id in this database, those after `after`."""
    return _tasks(session, project_id, Task.id > after, limit=limit)


@dataclass(frozen=True)
class Waiting:
    """What the inbox holds that may concern these annotations: keys that wait, and versions that were set aside.

    `anything` is true when a delivery about several annotations waits, which may concern any of them.
    """

    keys: frozenset[str]
    anything: bool
    set_aside: frozenset[tuple[str, str]]

    def covers(self, key: str) -> bool:
        """Whether a delivery about this annotation or task waits, so that nothing can be said about it yet."""
        return self.anything or key in self.keys


def waiting_events(session: Session, project_key: str, keys: Iterable[str]) -> Waiting:
    """Return what waits in the inbox, and what was set aside after failing, about these ordering keys."""
    wanted = list(keys)
    mine = sa.and_(Event.state == "pending", Event.project_key == project_key)
    waiting = session.execute(sa.select(Event.ordering_key).where(mine, Event.ordering_key.in_(wanted))).scalars()
    pending = frozenset(key for key in waiting if key is not None)
    barrier = session.execute(sa.select(Event.id).where(mine, Event.ordering_key.is_(None)).limit(1)).first()
    dead = session.execute(
        sa.select(Event.ordering_key, Event.payload).where(
            Event.state == "dead", Event.project_key == project_key, Event.ordering_key.in_(wanted)
        )
    )
    aside = frozenset((key, _moment(payload)) for key, payload in dead if key is not None)
    return Waiting(pending, barrier is not None, aside)


def _moment(payload: str) -> str:
    annotation = json.loads(payload).get("annotation")
    return str(annotation.get("updated_at")) if isinstance(annotation, dict) else ""


def _annotations(session: Session, project_id: int, condition: sa.ColumnElement[bool]) -> list[KnownAnnotation]:
    rows = session.execute(
        sa.select(Annotation.annotation_id, Annotation.updated_at, Annotation.deleted_at, Task.external_id)
        .outerjoin(Task, Task.id == Annotation.task_id)
        .where(Annotation.project_id == project_id, Annotation.updated_at.is_not(None), condition)
    )
    return [
        KnownAnnotation(number, task, updated, deleted is None or updated > deleted)
        for number, updated, deleted, task in rows
        if updated is not None
    ]


def _tasks(
    session: Session, project_id: int, condition: sa.ColumnElement[bool], *, limit: int | None = None
) -> list[KnownTask]:
    rows = session.execute(
        sa.select(Task.id, Task.external_id, Task.text_hash, Task.external_created_at)
        .where(Task.project_id == project_id, Task.deleted_at.is_(None), condition)
        .order_by(Task.id)
        .limit(limit)
    )
    return [KnownTask(number, name, bytes(digest), created) for number, name, digest, created in rows]
