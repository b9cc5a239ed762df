"""Removing what need not be kept: in small transactions along an index, so that nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.store.engine import Store, database_now
from backend.store.tables import Event, ServedSet, Task

BATCH = 1000

WITHOUT_TEXT = (
    "Without its text a task cannot be scored under a new model, cannot be exported and cannot be shown again; "
    "its label, its scores under models so far and the thresholds made from them stay."
)


def purge_served(store: Store, *, before: datetime, batch: int = BATCH) -> int:
    """Delete sets served before a moment; live coverage is then known from that moment on only. Returns how many."""

    def step(session: Session) -> int:
        oldest = sa.select(ServedSet.id).where(ServedSet.served_at < before).order_by(ServedSet.served_at).limit(batch)
        return _rows(session.execute(sa.delete(ServedSet).where(ServedSet.id.in_(oldest))))

    return _repeat(store, step)


def purge_texts(store: Store, *, before: datetime, batch: int = BATCH) -> int:
    """Remove the text of tasks that came in before a moment (see `WITHOUT_TEXT`). Returns how many.

    The hash stays, so the task is known again when it comes back. Payloads of finished events carry texts too and
    go with `purge_events`.
    """

    def step(session: Session) -> int:
        oldest = (
            sa.select(Task.id)
            .where(Task.text.is_not(None), Task.created_at < before)
            .order_by(Task.created_at)
            .limit(batch)
        )
        removal = sa.update(Task).where(Task.id.in_(oldest))
        return _rows(session.execute(removal.values(text=None, text_removed_at=database_now(session))))

    return _repeat(store, step)


def purge_events(store: Store, *, before: datetime, batch: int = BATCH) -> int:
    """Delete finished events received before a moment; waiting and dead ones are kept whatever their age."""

    def step(session: Session) -> int:
        removed = 0
        for state in ("done", "skipped"):
            # Ids grow with time, so the oldest of a state are the first of its index.
            oldest = sa.select(Event.id).where(Event.state == state).order_by(Event.id).limit(batch)
            due = sa.delete(Event).where(Event.id.in_(oldest), Event.received_at < before)
            removed += _rows(session.execute(due))
        return removed

    return _repeat(store, step)


def _repeat(store: Store, step: Callable[[Session], int]) -> int:
    total = 0
    while removed := store.run(step):
        total += removed
    return total


def _rows(result: sa.Result[tuple[()]] | sa.CursorResult[tuple[()]]) -> int:
    return int(getattr(result, "rowcount", 0))
