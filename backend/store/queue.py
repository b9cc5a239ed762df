"""The review queue: a row for every living task without a label, in the order in which a look at them is worth most.

Rows come with what is served, leave with a label or a deletion, and come back when a label is withdrawn, always in the
transaction that changed it. A page of the queue is a range of one index, whatever the number of tasks.

A writer of rows holds the task's lock already: whoever serves a set has inserted it, which takes a share of that lock,
and whoever labels or deletes a task holds all of it. So no row of a labelled task can be left behind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from backend.domain.label_choice import ACCEPTED, MAJORITY
from backend.domain.priority import (
    goes_first,
    priority_of,
    review_value,
    value_of,
)
from backend.domain.ranked import probability_of
from backend.domain.records import Served
from backend.domain.text import plain
from backend.errors import StoreConflict
from backend.store.engine import database_now
from backend.store.packed_lists import unpack_ranked
from backend.store.tables import Label, QueueEntry, ServedSet, Task
from backend.store.upsert import insert

NAME = 100  # characters of an annotator's name


@dataclass(frozen=True)
class QueuedTask:
    """A task that waits. Of a blind one only where it stands is known; of the others what was served for them last.

    `value` is what a look at it is worth (`domain.priority.review_value`).
    """

    task: str
    blind: bool
    value: float | None
    probability: float | None
    set_size: int | None
    is_open: bool | None
    stratum: str | None
    served_at: datetime
    claimed_by: str | None = None
    claimed_until: datetime | None = None


def enqueue(session: Session, sets: Sequence[Served], *, opened: Collection[int] = ()) -> None:
    """Put the tasks of sets that were just stored where they belong; labelled and deleted ones are left out.

    Args:
        opened: tasks that somebody has open now.
    """
    last = {(each.task_id, each.model_id): each for each in sets}
    waiting = _waiting(session, {each.task_id for each in sets})
    rows = [
        _row(each, project_id=waiting[each.task_id], opened=each.task_id in opened)
        for _, each in sorted(last.items())
        if each.task_id in waiting
    ]
    if not rows:
        return
    _drop_siblings(session, sorted(waiting))
    _upsert(session, rows)


def settle(session: Session, task_id: int, *, waits: bool) -> None:
    """Bring the queue in line after a task's label changed or the task was deleted.

    Args:
        waits: the task lives and has no label that counts.
    """
    mine = QueueEntry.task_id == task_id
    if not waits:
        session.execute(sa.delete(QueueEntry).where(mine))
        return
    if session.execute(sa.select(QueueEntry.task_id).where(mine).limit(1)).first() is not None:
        return
    newest = (
        sa.select(sa.func.max(ServedSet.id)).where(ServedSet.task_id == task_id).group_by(ServedSet.model_id).subquery()
    )
    rows = session.execute(
        sa.select(ServedSet, Task.project_id)
        .join(Task, Task.id == ServedSet.task_id)
        .where(ServedSet.id.in_(sa.select(newest)))
    ).all()
    _upsert(session, [_row(row, project_id=project) for row, project in rows])


def rest(session: Session, task_id: int) -> None:
    """Take a task that was skipped out of its lease, and let it rest like one that somebody has open.

    Otherwise whoever skipped it would get it again at once, for as long as they claim.
    """
    free = {"claimed_by": None, "claimed_until": None, "opened_at": database_now(session)}
    session.execute(sa.update(QueueEntry).where(QueueEntry.task_id == task_id).values(free))


def next_tasks(
    session: Session, project_id: int, *, model_id: int, limit: int, idle_since: datetime, evidence_first: bool = False
) -> list[QueuedTask]:
    """Return the tasks to look at next: not claimed by anyone, and not opened since `idle_since`.

    Args:
        evidence_first: drawn-blind tasks before all others, because decisions rest on their labels.
    """
    now = database_now(session)
    free = session.execute(
        _free(project_id, model_id, now=now, idle_since=idle_since, evidence_first=evidence_first).limit(limit)
    )
    return [_queued(row, name) for row, name in free]


def claim_tasks(
    session: Session,
    project_id: int,
    *,
    model_id: int,
    who: str,
    limit: int,
    until: datetime,
    idle_since: datetime,
    evidence_first: bool = False,
) -> list[QueuedTask]:
    """Lease tasks to an annotator until a moment: those that are theirs already, then the next ones that are free.

    Nobody else gets them meanwhile, from any process; a lease that has run out is nobody's.
    """
    now = database_now(session)
    who = plain(who, NAME)
    held = (
        _tasks(project_id, model_id)
        .where(QueueEntry.claimed_by == who, QueueEntry.claimed_until > now)
        .limit(limit)
        .with_for_update(of=QueueEntry)
    )
    claimed = list(session.execute(held).all())
    if len(claimed) < limit:
        free = _free(project_id, model_id, now=now, idle_since=idle_since, evidence_first=evidence_first)
        free = free.limit(limit - len(claimed))
        claimed += session.execute(free.with_for_update(of=QueueEntry, skip_locked=True)).all()
    names = {row.task_id: name for row, name in claimed}
    if names:
        session.execute(
            sa.update(QueueEntry)
            .where(QueueEntry.task_id.in_(sorted(names)), QueueEntry.model_id == model_id)
            .values(claimed_by=who, claimed_until=until),
            execution_options={"synchronize_session": False},
        )
    ordered = session.execute(
        _tasks(project_id, model_id)
        .where(QueueEntry.task_id.in_(sorted(names)))
        .execution_options(populate_existing=True)
    )
    return [_queued(row, name) for row, name in ordered]


def release_claims(session: Session, project_id: int, *, who: str) -> int:
    """Give back what an annotator has leased; returns how many tasks that were."""
    done = session.execute(
        sa.update(QueueEntry)
        .where(QueueEntry.project_id == project_id, QueueEntry.claimed_by == plain(who, NAME))
        .values(claimed_by=None, claimed_until=None),
        execution_options={"synchronize_session": False},
    )
    return int(getattr(done, "rowcount", 0))


@dataclass(frozen=True)
class Unfilled:
    """A row without a priority, and the set it is about; None when that is gone."""

    task_id: int
    model_id: int
    project_id: int
    external_id: str
    blind: bool
    served: ServedSet | None


def unfilled(session: Session, *, limit: int) -> list[Unfilled]:
    """Return rows whose priority was never worked out."""
    newer = aliased(ServedSet)
    last = (
        sa.select(newer.id)
        .where(newer.task_id == QueueEntry.task_id, newer.model_id == QueueEntry.model_id)
        .order_by(newer.served_at.desc(), newer.id.desc())
        .limit(1)
        .correlate(QueueEntry)
        .scalar_subquery()
    )
    rows = session.execute(
        sa.select(QueueEntry, Task.external_id, ServedSet)
        .join(Task, Task.id == QueueEntry.task_id)
        .outerjoin(ServedSet, ServedSet.id == last)
        .where(QueueEntry.priority.is_(None))
        .order_by(QueueEntry.task_id)
        .limit(limit)
    )
    return [Unfilled(row.task_id, row.model_id, row.project_id, name, row.blind, served) for row, name, served in rows]


def fill(session: Session, task_id: int, model_id: int, *, priority: float, probability: float | None) -> None:
    """Write the priority of a row that has none; one that was served meanwhile keeps what it got."""
    session.execute(
        sa.update(QueueEntry)
        .where(QueueEntry.task_id == task_id, QueueEntry.model_id == model_id, QueueEntry.priority.is_(None))
        .values(priority=priority, probability=probability),
        execution_options={"synchronize_session": False},
    )


def figures_of(
    ranked: bytes, *, is_open: bool, set_size: int | None, priority: float | None = None
) -> tuple[float, float | None]:
    """Return the priority of a set and the probability of its best labeling, from the list it was cut from.

    `priority` is what the set was served with; worked out from the list alone it leaves out flags and novelty. A list
    that cannot be read says nothing, so its task goes first.
    """
    try:
        listed = unpack_ranked(ranked)
    except StoreConflict:
        return (priority_of(0.0, first=True) if priority is None else priority), None
    if priority is None:
        priority = priority_of(review_value(listed), first=goes_first(is_open=is_open, set_size=set_size))
    known = all(unit.ranked.log_probabilities for unit in listed.units)
    return priority, probability_of(listed.log_probability) if known else None


def _waiting(session: Session, task_ids: Iterable[int]) -> dict[int, int]:
    """Return the project of each of these tasks that lives and has no label that counts."""
    labelled = (
        sa.select(Label.id)
        .where(Label.task_id == Task.id, Label.policy == MAJORITY)
        .where(sa.or_(Label.exclusion.is_(None), Label.exclusion == ACCEPTED))
        .exists()
    )
    rows = session.execute(
        sa.select(Task.id, Task.project_id).where(Task.id.in_(sorted(task_ids)), Task.deleted_at.is_(None), ~labelled)
    )
    return {row.id: row.project_id for row in rows}


def _drop_siblings(session: Session, task_ids: Sequence[int]) -> None:
    """Take out earlier texts of the same tasks: their text was edited, and people meet the new one."""
    now = aliased(Task)
    earlier = (
        sa.select(Task.id)
        .join(now, (now.project_id == Task.project_id) & (now.external_id == Task.external_id) & (now.id != Task.id))
        .where(now.id.in_(task_ids), Task.id.not_in(task_ids))
    )
    session.execute(
        sa.delete(QueueEntry).where(QueueEntry.task_id.in_(earlier)),
        execution_options={"synchronize_session": False},
    )


def _row(served: Served | ServedSet, *, project_id: int, opened: bool = False) -> dict[str, Any]:
    blind, priority, probability = served.shadow, served.priority, None
    if not blind:
        priority, probability = figures_of(
            bytes(served.ranked), is_open=served.is_open, set_size=served.set_size, priority=served.priority
        )
    return {
        "task_id": served.task_id,
        "model_id": served.model_id,
        "project_id": project_id,
        "priority": priority,
        "blind": blind,
        "probability": probability,
        "set_size": None if blind else served.set_size,
        "is_open": None if blind else served.is_open,
        "stratum": None if blind else served.stratum,
        "served_at": served.served_at,
        "opened_at": served.served_at if opened else None,
    }


def _upsert(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    statement = insert(session, QueueEntry)
    fresh = statement.excluded
    kept = {name: fresh[name] for name in rows[0] if name not in {"task_id", "model_id"}}
    kept["opened_at"] = sa.func.coalesce(fresh.opened_at, QueueEntry.opened_at)
    kept["priority"] = sa.case(
        (fresh.blind, sa.func.coalesce(fresh.priority, QueueEntry.priority)), else_=fresh.priority
    )
    statement = statement.on_conflict_do_update(
        index_elements=["task_id", "model_id"], set_=kept, where=QueueEntry.served_at <= fresh.served_at
    )
    session.connection().execute(statement, list(rows))


def _tasks(project_id: int, model_id: int) -> sa.Select[QueueEntry, str]:
    return (
        sa.select(QueueEntry, Task.external_id)
        .join(Task, Task.id == QueueEntry.task_id)
        .where(QueueEntry.project_id == project_id, QueueEntry.model_id == model_id, QueueEntry.priority >= 0.0)
        .order_by(QueueEntry.priority, QueueEntry.task_id)
    )


def _free(
    project_id: int, model_id: int, *, now: datetime, idle_since: datetime, evidence_first: bool = False
) -> sa.Select[QueueEntry, str]:
    free = _tasks(project_id, model_id).where(
        sa.or_(QueueEntry.claimed_until.is_(None), QueueEntry.claimed_until <= now),
        sa.or_(QueueEntry.opened_at.is_(None), QueueEntry.opened_at < idle_since),
    )
    if not evidence_first:
        return free
    return free.order_by(None).order_by(QueueEntry.blind.desc(), QueueEntry.priority, QueueEntry.task_id)


def _queued(row: QueueEntry, name: str) -> QueuedTask:
    return QueuedTask(
        task=name,
        blind=row.blind,
        value=None if row.blind or row.priority is None else value_of(row.priority),
        probability=row.probability,
        set_size=row.set_size,
        is_open=row.is_open,
        stratum=row.stratum,
        served_at=row.served_at,
        claimed_by=row.claimed_by,
        claimed_until=row.claimed_until,
    )
