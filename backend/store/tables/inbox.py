"""The inbox of deliveries, and the jobs that one process at a time may hold."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from backend.store.columns import Base, BigId, UtcDateTime

_PENDING = sa.text("state = 'pending'")
_QUEUED = sa.text("state = 'queued'")
_RUNNING = sa.text("state = 'running'")


class Event(Base):
    """One delivery. `delivery` is drawn once per delivery, so a retried commit cannot store it twice.

    `ordering_key` names the one annotation or task the event is about; null means it concerns several, and
    then the event waits for all earlier ones of its project and holds up all later ones.
    """

    __tablename__ = "events"
    __table_args__ = (
        sa.CheckConstraint("state IN ('pending', 'done', 'skipped', 'dead')", name="state"),
        sa.Index("ix_events_pending", "id", sqlite_where=_PENDING, postgresql_where=_PENDING),
        # The state stands in these two although it is always the same: or SQLite takes the index by state, and sorts.
        sa.Index(
            "ix_events_order",
            "state",
            "project_key",
            "ordering_key",
            "id",
            sqlite_where=_PENDING,
            postgresql_where=_PENDING,
        ),
        sa.Index("ix_events_turns", "state", "project_key", "id", sqlite_where=_PENDING, postgresql_where=_PENDING),
        sa.Index("ix_events_state", "state", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    delivery: Mapped[str] = mapped_column(sa.String(36), unique=True)
    received_at: Mapped[datetime] = mapped_column(UtcDateTime)
    action: Mapped[str] = mapped_column(sa.String(100))
    project_key: Mapped[str] = mapped_column(sa.String(100))
    ordering_key: Mapped[str | None] = mapped_column(sa.String(200))
    payload: Mapped[str] = mapped_column(sa.Text)
    state: Mapped[str] = mapped_column(sa.String(10), default="pending")
    attempts: Mapped[int] = mapped_column(default=0)
    claims: Mapped[int] = mapped_column(default=0)
    error: Mapped[str | None] = mapped_column(sa.Text)
    due_at: Mapped[datetime] = mapped_column(UtcDateTime)
    claimed_by: Mapped[str | None] = mapped_column(sa.String(200))
    processed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Job(Base):
    """A piece of work that one process at a time may hold; `fence` grows with every change of holder."""

    __tablename__ = "jobs"
    __table_args__ = (
        sa.CheckConstraint("state IN ('queued', 'running', 'done', 'failed', 'cancelled')", name="state"),
        # At most one waiting and one running job of a key: a request during a run asks for one more run.
        sa.Index("uq_jobs_queued", "key", unique=True, sqlite_where=_QUEUED, postgresql_where=_QUEUED),
        sa.Index("uq_jobs_running", "key", unique=True, sqlite_where=_RUNNING, postgresql_where=_RUNNING),
        sa.Index("ix_jobs_state", "state", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    kind: Mapped[str] = mapped_column(sa.String(50))
    key: Mapped[str] = mapped_column(sa.String(200))
    project_id: Mapped[int | None] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    state: Mapped[str] = mapped_column(sa.String(10), default="queued")
    payload: Mapped[dict[str, Any]] = mapped_column(sa.JSON, default=dict)
    run_after: Mapped[datetime] = mapped_column(UtcDateTime)
    holder: Mapped[str | None] = mapped_column(sa.String(200))
    fence: Mapped[int] = mapped_column(default=0)
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    heartbeat_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    attempts: Mapped[int] = mapped_column(default=0)
    progress_done: Mapped[int] = mapped_column(default=0)
    progress_total: Mapped[int | None]
    progress_note: Mapped[str] = mapped_column(sa.String(200), default="")
    result: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    error: Mapped[str | None] = mapped_column(sa.Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
