"""What was shown, by version; and what would have been shown to blind tasks (METHODS 8.6)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from backend.domain.records import Served
from backend.store.queue import enqueue
from backend.store.tables import ServedSet, Task


def record_served(session: Session, sets: Iterable[Served], *, opened: Collection[int] = ()) -> int:
    """Keep sets as served, in one statement for a whole batch, and the queue in line with them; returns how many.

    Args:
        opened: tasks that somebody has open now.
    """
    kept = list(sets)
    rows = [{name: value for name, value in asdict(each).items() if name != "id"} for each in kept]
    if rows:
        session.execute(sa.insert(ServedSet), rows)
        enqueue(session, kept, opened=opened)
    return len(rows)


def served_before(
    session: Session, task_id: int, *, at: datetime, model_id: int | None = None, shadow: bool | None = None
) -> Served | None:
    """Return what was last served for a task up to `at`: what the annotator had in view when work began.

    Label Studio forgets the parent prediction when it is deleted; this does not.
    """
    query = sa.select(ServedSet).where(ServedSet.task_id == task_id, ServedSet.served_at <= at)
    if model_id is not None:
        query = query.where(ServedSet.model_id == model_id)
    if shadow is not None:
        query = query.where(ServedSet.shadow.is_(shadow))
    row = session.execute(query.order_by(ServedSet.served_at.desc(), ServedSet.id.desc()).limit(1)).scalar_one_or_none()
    return None if row is None else _served(row)


def newest_set(model_id: int) -> sa.ScalarSelect[int]:
    """Return, inside a query about tasks, the id of what a model was last served for each."""
    other = aliased(ServedSet)
    query = sa.select(sa.func.max(other.id)).where(other.task_id == Task.id, other.model_id == model_id)
    return query.correlate(Task).scalar_subquery()


def recent_lists(
    session: Session, project_id: int, *, model_id: int, limit: int, scanned: int = 5_000
) -> list[tuple[str, bytes]]:
    """Return (stratum, packed list) of the sets served last, shadows included: a sample to try thresholds on.

    Of the newest `scanned` sets of the model those of the project are taken, one per task.
    """
    newest = (
        sa.select(ServedSet.id)
        .where(ServedSet.model_id == model_id)
        .order_by(ServedSet.id.desc())
        .limit(scanned)
        .subquery()
    )
    last = (
        sa.select(sa.func.max(ServedSet.id))
        .join(newest, newest.c.id == ServedSet.id)
        .join(Task, Task.id == ServedSet.task_id)
        .where(Task.project_id == project_id)
        .group_by(ServedSet.task_id)
        .order_by(sa.func.max(ServedSet.id).desc())
        .limit(limit)
    )
    rows = session.execute(
        sa.select(ServedSet.stratum, ServedSet.ranked)
        .where(ServedSet.id.in_(last.scalar_subquery()))
        .order_by(ServedSet.id)
    )
    return [(stratum, bytes(ranked)) for stratum, ranked in rows]


def _served(row: ServedSet) -> Served:
    return Served(
        id=row.id,
        task_id=row.task_id,
        model_id=row.model_id,
        version_id=row.version_id,
        shadow=row.shadow,
        stratum=row.stratum,
        pool=row.pool,
        guarantee=row.guarantee,
        n=row.n,
        tau=row.tau,
        is_open=row.is_open,
        set_size=row.set_size,
        shown=row.shown,
        ranked=bytes(row.ranked),
        served_at=row.served_at,
        alpha=row.alpha,
        priority=row.priority,
        flags=row.flags,
        doubt=row.doubt,
    )


def prelabelled(session: Session, task_ids: Sequence[int]) -> dict[int, datetime]:
    """Return when each of these tasks was first shown with its prediction, those that never were left out.

    Also for tasks that were drawn to be blind: two processes can draw a task under different orders while the database
    is away, and then one of them has shown what it must not. A set of which nothing was shown does not count.
    """
    return _first_served(session, task_ids, ServedSet.shadow.is_(False), ServedSet.shown > 0)


def shown_blank(session: Session, task_ids: Sequence[int]) -> dict[int, datetime]:
    """Return when each of these tasks was first shown blank because no model knew its labels, the others left out.

    One half of METHODS 13.1; the other, whether a task was drawn blind, stands with the task.
    """
    return _first_served(session, task_ids, ServedSet.shown == 0)


def _first_served(session: Session, task_ids: Sequence[int], *which: sa.ColumnElement[bool]) -> dict[int, datetime]:
    if not task_ids:
        return {}
    rows = session.execute(
        sa.select(ServedSet.task_id, sa.func.min(ServedSet.served_at))
        .where(ServedSet.task_id.in_(task_ids), *which)
        .group_by(ServedSet.task_id)
    )
    return {row[0]: row[1] for row in rows}
