"""When a project was seen to give out its tasks in which order, and what follows for its labels."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.store.columns import plain
from backend.store.jobs import enqueue_job
from backend.store.state import STREAMS, get_state, update_state
from backend.store.tables import Project, SamplingPeriod
from backend.store.upsert import insert
from backend.streams import Order, OrderHistory, Sighting, order_history, order_of

RECONSIDER = "reconsider"
SLOT = timedelta(minutes=10)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def record_sampling(session: Session, project_id: int, *, sampling: str | None, at: datetime, source: str) -> bool:
    """Note that a project's `sampling` was this at this moment, as `record_order`; names not known are left out.

    Args:
        source: who saw it: `webhook`, `sync`, `connect` or `declared`.
    """
    order = order_of(sampling)
    return order is not None and record_order(session, project_id, order=order, at=at, source=source)


def record_order(session: Session, project_id: int, *, order: Order, at: datetime, source: str) -> bool:
    """Note that tasks were given out in this order at this moment; returns whether that may change what counts.

    If it may (news that comes late, or a change of order), a job is queued in the same transaction that judges all
    rows of the project again, so the end does not depend on the order of deliveries.
    """
    at = at.astimezone(UTC)
    slot = at - (at - _EPOCH) % SLOT
    newest = sa.select(sa.func.max(SamplingPeriod.slot)).where(SamplingPeriod.project_id == project_id)
    rows = session.execute(
        sa.select(SamplingPeriod.slot, SamplingPeriod.order, SamplingPeriod.first_at, SamplingPeriod.last_at).where(
            SamplingPeriod.project_id == project_id,
            sa.or_(SamplingPeriod.slot == slot, SamplingPeriod.slot == newest.scalar_subquery()),
        )
    ).all()
    if any(row.slot == slot and row.order == order.value and row.first_at <= at <= row.last_at for row in rows):
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
    }
    session.execute(statement.on_conflict_do_update(index_elements=["project_id", "slot", "order"], set_=wider))
    if changes:
        queue_reconsider(session, project_id)
    return changes


def load_history(session: Session, project_id: int) -> OrderHistory:
    """Return what is known of the order in which a project's tasks were given out.

    Slots amid others of their one order say nothing that those do not, so they are not read: what comes is as much
    as there were changes, not as there was time.
    """
    project = session.execute(sa.select(Project.created_at).where(Project.id == project_id)).scalar_one_or_none()
    rows = session.execute(
        sa.select(SamplingPeriod.first_at, SamplingPeriod.last_at, SamplingPeriod.order).where(
            SamplingPeriod.project_id == project_id, SamplingPeriod.slot.in_(_telling(project_id))
        )
    ).all()
    sightings = [Sighting(at, Order(row.order)) for row in rows for at in (row.first_at, row.last_at)]
    declared = get_state(session, project_id, STREAMS) or {}
    return order_history(sightings, since=project, shuffled=bool(declared.get("shuffled")))


def current_order(session: Session, project_id: int) -> Order | None:
    """Return the order in which tasks are given out now, None when it was never heard of.

    Annotators who follow our review queue (`streams` state, `queue`) work in review order, whatever the project says.
    """
    declared = get_state(session, project_id, STREAMS) or {}
    if declared.get("queue"):
        return Order.REVIEW
    last = session.execute(
        sa.select(SamplingPeriod.order)
        .where(SamplingPeriod.project_id == project_id)
        .order_by(SamplingPeriod.last_at.desc())
        .limit(1)
    ).scalar_one_or_none()
    return None if last is None else _declared(Order(last), shuffled=bool(declared.get("shuffled")))


def was_in_review(session: Session, project_id: int) -> bool:
    """Whether the project was ever seen in review order: then only blind tasks count anyway."""
    query = sa.select(SamplingPeriod.slot).where(
        SamplingPeriod.project_id == project_id, SamplingPeriod.order == Order.REVIEW.value
    )
    return session.execute(query.limit(1)).first() is not None


def follow_queue(session: Session, project_id: int) -> None:
    """Note that annotators follow our review queue: from now on that is the order, whatever the project says."""
    update_state(session, project_id, STREAMS, lambda value: value | {"queue": True})


def declare_shuffled(session: Session, project_id: int, *, shuffled: bool) -> None:
    """Note the lead's word on whether the collection is in random order; rows are judged again if it is new."""
    lock_project(session, project_id)
    known = get_state(session, project_id, STREAMS) or {}
    if bool(known.get("shuffled")) != shuffled:
        update_state(session, project_id, STREAMS, lambda value: value | {"shuffled": shuffled})
        queue_reconsider(session, project_id)


def queue_reconsider(session: Session, project_id: int) -> int:
    """Ask that every row of a project be judged again: whether it may calibrate."""
    uid = session.execute(sa.select(Project.uid).where(Project.id == project_id)).scalar_one()
    return enqueue_job(session, RECONSIDER, key=f"{RECONSIDER}:{uid}", project_id=project_id)


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


def _declared(order: Order, *, shuffled: bool) -> Order:
    return Order.SHUFFLED if shuffled and order is Order.SEQUENTIAL else order
