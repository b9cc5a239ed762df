"""When a project was seen to give out its tasks in which order: the one record of it, and what is read off it.

Sightings (`sampling_periods`) are all that is kept, beside the lead's word that the collection is shuffled
(`projects.shuffled`). What follows for the labels is decided in `backend.calibration.order`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.streams import Order, OrderHistory, Sighting, as_declared, order_history
from backend.domain.text import plain
from backend.store.tables import Acceptance, Project, SamplingPeriod
from backend.store.upsert import insert

QUEUE = "queue"  # the source of a sighting: annotators follow our review queue
SLOT = timedelta(minutes=10)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FROM_QUEUE: sa.ColumnElement[str] = sa.literal_column(f"'{QUEUE}'")  # as text: SQLite uses a partial index only then


def add_sighting(session: Session, project_id: int, *, order: Order, at: datetime, source: str) -> bool:
    """Note that tasks were given out in this order at this moment; returns whether that may change what counts.

    If it may (news that comes late, or a change of order), the project is locked to the end of the transaction:
    whoever asks for its rows to be considered again does so before any is written by the old history.

    Args:
        source: who saw it: `webhook`, `sync`, `connect`, `declared`, or `queue`, which outlasts all others.
    """
    at = at.astimezone(UTC)
    slot = at - (at - _EPOCH) % SLOT
    newest = sa.select(sa.func.max(SamplingPeriod.slot)).where(SamplingPeriod.project_id == project_id)
    rows = session.execute(
        sa.select(
            SamplingPeriod.slot,
            SamplingPeriod.order,
            SamplingPeriod.first_at,
            SamplingPeriod.last_at,
            SamplingPeriod.source,
        ).where(
            SamplingPeriod.project_id == project_id,
            sa.or_(SamplingPeriod.slot == slot, SamplingPeriod.slot == newest.scalar_subquery()),
        )
    ).all()
    same = [row for row in rows if row.slot == slot and row.order == order.value]
    if any(row.first_at <= at <= row.last_at and (source != QUEUE or row.source == QUEUE) for row in same):
        return False
    last = max((row.last_at for row in rows), default=None)
    if last is not None and at > last:  # as nearly always: news of now
        changes = {row.order for row in rows if row.last_at == last} != {order.value}
    else:
        changes = _around(session, project_id, at) != {order}
    if changes:
        # Whoever judges rows holds this lock too: no row is written by the old history after the job has looked.
        lock_project(session, project_id)
    statement = insert(session, SamplingPeriod).values(
        project_id=project_id, slot=slot, order=order.value, first_at=at, last_at=at, source=plain(source, 20)
    )
    wider = {
        "first_at": sa.case(
            (statement.excluded.first_at < SamplingPeriod.first_at, statement.excluded.first_at),
            else_=SamplingPeriod.first_at,
        ),
        "last_at": sa.case(
            (statement.excluded.last_at > SamplingPeriod.last_at, statement.excluded.last_at),
            else_=SamplingPeriod.last_at,
        ),
        "source": sa.case((statement.excluded.source == QUEUE, QUEUE), else_=SamplingPeriod.source),
    }
    session.execute(statement.on_conflict_do_update(index_elements=["project_id", "slot", "order"], set_=wider))
    return changes


def load_history(session: Session, project_id: int) -> OrderHistory:
    """Return what is known of the order in which a project's tasks were given out.

    Slots amid others of their one order say nothing that those do not, so they are not read: what comes is as much
    as there were changes, not as there was time.
    """
    project = session.execute(
        sa.select(Project.created_at, Project.shuffled).where(Project.id == project_id)
    ).one_or_none()
    rows = session.execute(
        sa.select(SamplingPeriod.first_at, SamplingPeriod.last_at, SamplingPeriod.order).where(
            SamplingPeriod.project_id == project_id, SamplingPeriod.slot.in_(_telling(project_id))
        )
    ).all()
    sightings = [Sighting(at, Order(row.order)) for row in rows for at in (row.first_at, row.last_at)]
    if project is None:
        return order_history(sightings)
    accepted = session.execute(
        sa.select(sa.func.min(Acceptance.acted_at)).where(Acceptance.project_id == project_id)
    ).scalar_one()
    return order_history(sightings, since=project.created_at, shuffled=project.shuffled, accepted=accepted)


def current_order(session: Session, project_id: int) -> Order | None:
    """Return the order in which tasks are given out now, None when it was never heard of.

    Annotators who follow our review queue work in review order, whatever the project says.
    """
    if follows_queue(session, project_id):
        return Order.REVIEW
    last = session.execute(
        sa.select(SamplingPeriod.order)
        .where(SamplingPeriod.project_id == project_id)
        .order_by(SamplingPeriod.last_at.desc())
        .limit(1)
    ).scalar_one_or_none()
    return None if last is None else as_declared(Order(last), shuffled=is_shuffled(session, project_id))


def was_in_review(session: Session, project_id: int) -> bool:
    """Whether the project was ever seen in review order: then only blind tasks count anyway."""
    query = sa.select(SamplingPeriod.slot).where(
        SamplingPeriod.project_id == project_id, SamplingPeriod.order == Order.REVIEW.value
    )
    return session.execute(query.limit(1)).first() is not None


def follows_queue(session: Session, project_id: int) -> bool:
    """Whether annotators were ever seen to follow our review queue: from then on that is the order."""
    query = sa.select(SamplingPeriod.slot).where(
        SamplingPeriod.project_id == project_id, SamplingPeriod.source == _FROM_QUEUE
    )
    return session.execute(query.limit(1)).first() is not None


def is_shuffled(session: Session, project_id: int) -> bool:
    """Whether the lead says that the collection is in random order."""
    return bool(session.execute(sa.select(Project.shuffled).where(Project.id == project_id)).scalar_one_or_none())


def set_shuffled(session: Session, project_id: int, *, shuffled: bool) -> bool:
    """Keep the lead's word on whether the collection is in random order; returns whether it is new.

    Locks the project as `add_sighting` does.
    """
    lock_project(session, project_id)
    if is_shuffled(session, project_id) == shuffled:
        return False
    session.execute(sa.update(Project).where(Project.id == project_id).values(shuffled=shuffled))
    return True


def lock_project(session: Session, project_id: int, *, shared: bool = False) -> None:
    """Hold the project's row to the end of the transaction; `shared` holders exclude only the others."""
    query = sa.select(Project.id).where(Project.id == project_id)
    session.execute(query.with_for_update(read=shared, key_share=not shared))


def _telling(project_id: int) -> sa.Select[datetime]:
    """Return the slots that are not between two of the same one order."""
    slots = (
        sa.select(
            SamplingPeriod.slot.label("slot"),
            sa.func.min(SamplingPeriod.order).label("low"),
            sa.func.max(SamplingPeriod.order).label("high"),
        )
        .where(SamplingPeriod.project_id == project_id)
        .group_by(SamplingPeriod.slot)
        .subquery()
    )
    beside = [
        function(column).over(order_by=slots.c.slot).label(f"{name}_{column.name}")
        for name, function in (("before", sa.func.lag), ("after", sa.func.lead))
        for column in (slots.c.low, slots.c.high)
    ]
    seen = sa.select(slots, *beside).subquery()
    same = [seen.c[name] == seen.c.low for name in ("high", "before_low", "before_high", "after_low", "after_high")]
    # The first and the last slot have nothing beside them: nothing is not the same.
    return sa.select(seen.c.slot).where(sa.case((sa.and_(*same), 1), else_=0) == 0)


def _around(session: Session, project_id: int, at: datetime) -> set[Order]:
    """Return the orders of the nearest sightings before (or at) and after (or at) a moment; none without a past.

    What comes before all that is known may be the first word about some label.
    """
    mine = SamplingPeriod.project_id == project_id
    points: list[tuple[datetime, str]] = []
    for column in (SamplingPeriod.first_at, SamplingPeriod.last_at):
        query = sa.select(column, SamplingPeriod.order).where(mine)
        earlier = session.execute(query.where(column <= at).order_by(column.desc()).limit(3)).all()
        later = session.execute(query.where(column >= at).order_by(column).limit(3)).all()
        points += [(row[0], row[1]) for row in (*earlier, *later)]
    past = max((time for time, _ in points if time <= at), default=None)
    future = min((time for time, _ in points if time >= at), default=None)
    return set() if past is None else {Order(order) for time, order in points if time in {past, future}}
