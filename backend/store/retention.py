"""Removing what need not be kept: in small transactions along an index, so that nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.records import ProjectRecord
from backend.store.engine import Store, database_now
from backend.store.tables import Event, Project, ServedSet, Task

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


def purge_events(store: Store, *, before: datetime, dead: bool = False, batch: int = BATCH) -> int:
    """Delete finished events received before a moment; waiting ones are kept whatever their age.

    Args:
        dead: delete dead ones too. Reconciliation knows what they said from Label Studio, as long as it is there.
    """

    def step(session: Session) -> int:
        removed = 0
        for state in ("done", "skipped", "dead") if dead else ("done", "skipped"):
            # Ids grow with time, so the oldest of a state are the first of its index.
            oldest = sa.select(Event.id).where(Event.state == state).order_by(Event.id).limit(batch)
            due = sa.delete(Event).where(Event.id.in_(oldest), Event.received_at < before)
            removed += _rows(session.execute(due))
        return removed

    return _repeat(store, step)


def forget_project(session: Session, project: ProjectRecord) -> int:
    """Delete a project with everything of it, the deliveries that name it too. Returns how many of those there were.

    Deliveries carry the server's number alone. Where another project has it (the server was set up anew), those that
    wait may be that one's, and stay.
    """
    mine = Event.project_key == project.key
    twin = sa.select(Project.id).where(Project.key == project.key, Project.id != project.id).limit(1)
    if session.execute(twin).first() is not None:
        mine = sa.and_(mine, Event.state != "pending")
    removed = _rows(session.execute(sa.delete(Event).where(mine)))
    session.execute(sa.delete(Project).where(Project.id == project.id))
    return removed


def _repeat(store: Store, step: Callable[[Session], int]) -> int:
    total = 0
    while removed := store.run(step):
        total += removed
    return total


def _rows(result: sa.Result[tuple[()]] | sa.CursorResult[tuple[()]]) -> int:
    return int(getattr(result, "rowcount", 0))
