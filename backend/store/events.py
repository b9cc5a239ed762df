"""The inbox: every delivery is stored before it is acknowledged, and processed once, in order per annotation.

A worker claims an event for a while, works, and finishes it in the same transaction that writes what the event
brought: either all of it is there or nothing, however the worker dies. `claims` grows with every claim, so a worker
that comes back late finds that it no longer holds the event and its transaction is rolled back.

Order: an event waits for earlier unfinished events about the same annotation. Deliveries that concern several
annotations wait for, and hold up, everything in their project. Projects take turns.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from backend.domain.records import EventRecord
from backend.domain.text import plain
from backend.errors import DATABASE_TROUBLE, LeaseLost, NotFound
from backend.store.engine import Store, database_now
from backend.store.redact import dump_payload
from backend.store.tables import Event
from backend.store.upsert import insert

MAX_ATTEMPTS = 5
MAX_CLAIMS = 50
LEASE = timedelta(seconds=60)
MAX_PAUSE = timedelta(minutes=5)


class EventOutcome(Enum):
    """What processing made of an event: its effect is written, or it has none (an unknown kind of event)."""

    DONE = "done"
    SKIPPED = "skipped"


Process = Callable[[Session, EventRecord], EventOutcome]


def store_event(store: Store, payload: object, *, received_at: datetime | None = None) -> int:
    """Keep a delivery and return its id once it is durable: only then may it be acknowledged.

    A connection lost during the commit is retried; the delivery's own token keeps it from being stored twice.

    Raises:
        InvalidEvent: when the payload is not a JSON object.
        StoreError: when it could not be stored; nothing was kept, and the delivery must not be acknowledged.
    """
    return store_events(store, [payload], received_at=received_at)[0]


def store_events(store: Store, payloads: Sequence[object], *, received_at: datetime | None = None) -> list[int]:
    """Keep several deliveries in one transaction, in their order; as `store_event`, but all of them or none.

    Deliveries that come in together then cost one write to the disk together.
    """
    rows = [_new_row(payload) for payload in payloads]
    return store.run(lambda session: _insert(session, rows, received_at))


def append_events(session: Session, payloads: Sequence[object], *, received_at: datetime | None = None) -> None:
    """Keep further deliveries in a transaction that is under way, in their order, by one statement.

    Thousands may come of one large delivery, and SQLite lets nobody else write meanwhile. Nobody waits for an answer
    here: nothing is sent twice, and no id is asked for.
    """
    if payloads:
        now = received_at or database_now(session)
        more = {"received_at": now, "due_at": now}
        session.connection().execute(sa.insert(Event), [_new_row(payload) | more for payload in payloads])


def _insert(session: Session, rows: list[dict[str, Any]], received_at: datetime | None) -> list[int]:
    now = received_at or database_now(session)
    statement = insert(session, Event).on_conflict_do_nothing(index_elements=["delivery"]).returning(Event.id)
    numbers: list[int] = []
    for row in rows:
        given = row | {"received_at": now, "due_at": now}
        fresh = session.connection().execute(statement, given).scalar_one_or_none()
        if fresh is None:  # an earlier try was kept although its answer was lost
            fresh = session.execute(sa.select(Event.id).where(Event.delivery == row["delivery"])).scalar_one()
        numbers.append(int(fresh))
    return numbers


def _new_row(payload: object) -> dict[str, Any]:
    content = dump_payload(payload)
    body: Mapping[str, Any] = payload if isinstance(payload, dict) else {}
    action, project_key, ordering_key = _address(body)
    return {
        "delivery": str(uuid.uuid4()),
        "action": action,
        "project_key": project_key,
        "ordering_key": ordering_key,
        "payload": content,
        "state": "pending",
        "attempts": 0,
        "claims": 0,
    }


@dataclass
class Turn:
    """Whose event was taken last: the next is another project's, so that one with many holds up no other."""

    project_key: str | None = None


def claim_event(
    session: Session,
    *,
    worker: str,
    lease: timedelta = LEASE,
    now: datetime | None = None,
    turn: Turn | None = None,
) -> EventRecord | None:
    """Take the first event that is due and that nothing earlier holds up, of the next project; None when there is none.

    An event whose workers died `MAX_CLAIMS` times without a word is set aside as dead.

    Args:
        turn: whose event was taken last, kept by the caller and brought up to date here.
    """
    now = now or database_now(session)
    last = None if turn is None else turn.project_key
    for key in _waiting_projects(session, after=last):
        row = _claim_of(session, key, now=now)
        if row is None:
            continue
        row.claims += 1
        row.claimed_by = plain(worker, 200)
        # A worker that dies of it does not meet it first thing again.
        row.due_at = now + lease + pause_after(row.claims)
        session.flush()
        if turn is not None:
            turn.project_key = key
        return _record(row)
    return None


def pause_after(claims: int) -> timedelta:
    """Return how long an event, or a job, rests after so many takers who never said what became of it.

    >>> [pause_after(each).seconds for each in (1, 2, 3, 8, 9, 50)]
    [0, 4, 8, 256, 300, 300]
    """
    return timedelta(0) if claims < 2 else min(MAX_PAUSE, timedelta(seconds=2.0 ** min(claims, 10)))


def _waiting_projects(session: Session, *, after: str | None) -> Iterator[str]:
    """Yield every project that has pending events, once, beginning behind `after`; each is one step in an index."""
    pending = Event.state == "pending"
    waiting = sa.select(Event.project_key).where(pending).order_by(Event.project_key, Event.id).limit(1)
    # The database compares: two of them may not put texts into the same order as Python does.
    rounds = [waiting] if after is None else [waiting.where(Event.project_key > after)]
    rounds += [] if after is None else [waiting.where(Event.project_key <= after)]
    for walk in rounds:
        key = session.execute(walk).scalar_one_or_none()
        while key is not None:
            yield key
            key = session.execute(walk.where(Event.project_key > key)).scalar_one_or_none()


def _claim_of(session: Session, key: str, *, now: datetime) -> Event | None:
    this, earlier = Event, aliased(Event)
    mine = Event.state == "pending", Event.project_key == key
    # An event about several annotations holds up all behind it, so nothing behind the first of them is looked at.
    several = session.execute(sa.select(sa.func.min(Event.id)).where(*mine, Event.ordering_key.is_(None))).scalar_one()
    before = sa.select(earlier.id).where(
        earlier.state == "pending", earlier.project_key == this.project_key, earlier.id < this.id
    )
    free = sa.and_(
        ~before.where(earlier.ordering_key == this.ordering_key).exists(),
        sa.or_(this.ordering_key.is_not(None), ~before.exists()),
    )
    query = sa.select(this).where(*mine, this.due_at <= now, free)
    if several is not None:
        query = query.where(this.id <= several)
    while True:
        row = session.execute(
            query.order_by(this.id).limit(1).with_for_update(skip_locked=True, of=this)
        ).scalar_one_or_none()
        if row is None or row.claims < MAX_CLAIMS:
            return row
        row.state, row.processed_at = "dead", now
        row.error = f"the worker died {row.claims} times while it processed this event"
        session.flush()


def finish_event(store: Store, event: EventRecord, process: Process) -> None:
    """Run `process` on a claimed event and mark it finished, in one transaction.

    Raises:
        LeaseLost: when another worker has the event by now; nothing was written.
        Exception: whatever `process` raised; nothing was written, and the failure is not yet recorded.
    """

    def work(session: Session) -> None:
        row = session.execute(
            sa.select(Event)
            .where(Event.id == event.id, Event.claims == event.claims, Event.state == "pending")
            .with_for_update()
        ).scalar_one_or_none()
        if row is None:
            raise LeaseLost(f"expected to hold event {event.id}, got word that another worker took it over")
        outcome = process(session, event)
        row.state = outcome.value
        row.processed_at = database_now(session)
        row.error = None

    store.run(work)


def fail_event(session: Session, event: EventRecord, error: BaseException, *, max_attempts: int = MAX_ATTEMPTS) -> str:
    """Record that processing failed: again after a growing pause, or dead after `max_attempts`. Returns the state.

    The payload stays either way. The error's text is kept, the payload's is not repeated in it.
    """
    row = session.execute(
        sa.select(Event)
        .where(Event.id == event.id, Event.claims == event.claims, Event.state == "pending")
        .with_for_update()
    ).scalar_one_or_none()
    if row is None:
        return "lost"
    now = database_now(session)
    row.attempts += 1
    row.error = plain(f"{type(error).__name__}: {error}", 1000)
    row.claimed_by = None
    row.due_at = now + timedelta(seconds=2.0 ** min(row.attempts - 1, 8))
    if row.attempts >= max_attempts:
        row.state, row.processed_at = "dead", now
    session.flush()
    return row.state


def process_events(
    store: Store,
    process: Process,
    *,
    worker: str,
    limit: int | None = None,
    lease: timedelta = LEASE,
    stop: Callable[[], bool] = lambda: False,
    hopeless: tuple[type[Exception], ...] = (),
    turn: Turn | None = None,
) -> int:
    """Process what is due, until nothing is, `limit` is reached or `stop()` says so. Returns how many were tried.

    A failing event is recorded and does not stop the others. Trouble with the database itself is not the event's
    fault: it is raised, and the event is tried again when its claim ends.

    Args:
        hopeless: errors that another try would end in again; such an event is dead at once.
        turn: whose turn it was in the last call, where events come from several projects.
    """
    tried = 0
    turn = Turn() if turn is None else turn
    while (limit is None or tried < limit) and not stop():
        event = store.run(lambda session: claim_event(session, worker=worker, lease=lease, turn=turn))
        if event is None:
            break
        tried += 1
        try:
            finish_event(store, event, process)
        except (*DATABASE_TROUBLE, LeaseLost):
            raise
        except Exception as error:  # noqa: BLE001 - any failure belongs into the event's record
            failure, attempts = error, 1 if isinstance(error, hopeless) else MAX_ATTEMPTS
            store.run(partial(fail_event, event=event, error=failure, max_attempts=attempts))
    return tried


def release_claims(session: Session, *, worker: str) -> int:
    """Give back what a worker of this name had claimed: call it when the only worker of that name starts again.

    What it may have died of more than once rests a while, and others come first.
    """
    now = database_now(session)
    held = sa.select(Event).where(Event.state == "pending", Event.claimed_by == plain(worker, 200))
    rows = session.execute(held.order_by(Event.id).with_for_update()).scalars().all()
    for row in rows:
        row.claimed_by, row.due_at = None, now + pause_after(row.claims)
    session.flush()
    return len(rows)


def replay_event(session: Session, event_id: int) -> None:
    """Make a dead (or finished) event pending again, from its stored payload; processing it twice changes nothing.

    Raises:
        NotFound: when there is no such event.
    """
    row = session.get(Event, event_id, with_for_update=True)
    if row is None:
        raise NotFound(f"expected the id of a stored event, got {event_id}, which does not exist")
    # Nobody holds a dead event, and one that its claims have killed must be free to be claimed again.
    row.claims = 0 if row.state == "dead" else row.claims
    row.state, row.attempts, row.claimed_by = "pending", 0, None
    row.due_at, row.processed_at = database_now(session), None
    session.flush()


def replay_dead(session: Session, *, project_key: str | None = None) -> int:
    """Make all dead events (of one project) pending again, as `replay_event`; returns how many."""
    dead = sa.update(Event).where(Event.state == "dead")
    if project_key is not None:
        dead = dead.where(Event.project_key == project_key)
    fresh = {"state": "pending", "attempts": 0, "claims": 0, "claimed_by": None, "processed_at": None}
    result = session.execute(dead.values(**fresh, due_at=database_now(session)))
    return int(getattr(result, "rowcount", 0))


def load_event(session: Session, event_id: int) -> EventRecord | None:
    """Return one event."""
    row = session.get(Event, event_id)
    return None if row is None else _record(row)


def list_events(session: Session, state: str, *, after: int = 0, limit: int = 100) -> list[EventRecord]:
    """Return events in a state, oldest first, after the event id `after`."""
    rows = session.execute(
        sa.select(Event).where(Event.state == state, Event.id > after).order_by(Event.id).limit(limit)
    ).scalars()
    return [_record(row) for row in rows]


def inbox_depth(session: Session) -> dict[str, int]:
    """Return how many events wait and how many are dead, from the index alone."""
    counts = session.execute(
        sa.select(Event.state, sa.func.count()).where(Event.state.in_(["pending", "dead"])).group_by(Event.state)
    )
    return {"pending": 0, "dead": 0} | {state: int(count) for state, count in counts}


def oldest_pending(session: Session) -> datetime | None:
    """Return when the event that waits longest came in, None when none waits: how far behind the worker is."""
    first = sa.select(Event.received_at).where(Event.state == "pending").order_by(Event.id).limit(1)
    return session.execute(first).scalar_one_or_none()


def _address(payload: Mapping[str, Any]) -> tuple[str, str, str | None]:
    action = payload.get("action")
    project = payload.get("project")
    if isinstance(project, dict):
        project = project.get("id")
    key = plain(project, 100).split(".")[0] if isinstance(project, str | int) else ""
    return plain(action if isinstance(action, str) else "", 100), key, _ordering_key(payload)


def _ordering_key(payload: Mapping[str, Any]) -> str | None:
    for names, letter in ((("annotation", "annotations"), "a"), (("task", "tasks"), "t")):
        for name in names:
            value = payload.get(name)
            items = value if isinstance(value, list) else [value] if isinstance(value, dict) else []
            if len(items) == 1 and isinstance(items[0], dict) and isinstance(items[0].get("id"), int):
                return f"{letter}{items[0]['id']}"[:200]
            if len(items) > 1:
                return None
    return "project"


def _record(row: Event) -> EventRecord:
    return EventRecord(
        id=row.id,
        received_at=row.received_at,
        action=row.action,
        project_key=row.project_key,
        ordering_key=row.ordering_key,
        payload=json.loads(row.payload),
        state=row.state,
        attempts=row.attempts,
        claims=row.claims,
        error=row.error,
    )
