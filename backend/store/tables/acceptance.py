"""Decisions about acceptance, what was accepted on each, and what audit tasks would have met (METHODS 12)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from backend.store.columns import Base, BigId, UtcDateTime

_SENT = sa.text("state <> 'withdrawn'")


class Acceptance(Base):
    """One decision: looked at once, kept for ever. `number` is the j of METHODS 12.2, `delta` what it has spent.

    `level` is null where nothing may be accepted. `acted_at` is when tasks were first accepted on it.
    """

    __tablename__ = "acceptances"
    __table_args__ = (sa.UniqueConstraint("project_id", "number"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    number: Mapped[int]
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"))
    version_id: Mapped[int | None] = mapped_column(BigId)  # versions may be removed, decisions name theirs for ever
    promise: Mapped[str] = mapped_column(sa.String(20))
    max_error: Mapped[str] = mapped_column(sa.String(20))
    delta: Mapped[float] = mapped_column(sa.Double)
    labels: Mapped[int]
    tasks: Mapped[int]
    level: Mapped[float | None] = mapped_column(sa.Double)
    share: Mapped[float] = mapped_column(sa.Double)
    below: Mapped[int]
    lost: Mapped[float] = mapped_column(sa.Double)
    bound: Mapped[float] = mapped_column(sa.Double)
    why: Mapped[str] = mapped_column(sa.String(200), default="")
    decided_at: Mapped[datetime] = mapped_column(UtcDateTime)
    decided_by: Mapped[str] = mapped_column(sa.String(200))
    account: Mapped[int | None] = mapped_column(sa.BigInteger)
    acted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    withdrawn_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    withdrawn_why: Mapped[str | None] = mapped_column(sa.String(300))


class AcceptedTask(Base):
    """A task that was accepted: planned before anything is sent, so that intake knows the annotation whenever it comes.

    `unique_id` is made of project, task and decision, and Label Studio takes it once. `annotation_id` is null until
    the server or a webhook has named it.
    """

    __tablename__ = "accepted_tasks"
    __table_args__ = (
        sa.UniqueConstraint("acceptance_id", "task_id"),
        sa.UniqueConstraint("unique_id"),
        sa.CheckConstraint("state IN ('planned', 'sent', 'withdrawn')", name="state"),
        sa.Index("ix_accepted_tasks_state", "acceptance_id", "state", "task_id"),
        sa.Index("ix_accepted_tasks_annotation", "project_id", "annotation_id"),
        # A task is accepted once at a time.
        sa.Index("uq_accepted_tasks_live", "task_id", unique=True, sqlite_where=_SENT, postgresql_where=_SENT),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    acceptance_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("acceptances.id", ondelete="CASCADE"))
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    task_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("tasks.id", ondelete="CASCADE"))
    unique_id: Mapped[str] = mapped_column(sa.String(36))
    state: Mapped[str] = mapped_column(sa.String(10))
    annotation_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ShadowAcceptance(Base):
    """A drawn-blind task that a decision would have accepted, with the labeling that it would have got.

    Spans carry the names of the label config, as labels do.
    """

    __tablename__ = "shadow_acceptances"

    acceptance_id: Mapped[int] = mapped_column(
        BigId, sa.ForeignKey("acceptances.id", ondelete="CASCADE"), primary_key=True
    )
    task_id: Mapped[int] = mapped_column(
        BigId, sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    spans: Mapped[list[Any]] = mapped_column(sa.JSON)
    units: Mapped[int]
