"""What each part of the loop remembers about a project, in which order tasks were given out, what trained a model."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from backend.store.columns import Base, BigId, UtcDateTime

_FROM_QUEUE = sa.text("source = 'queue'")


class ProjectState(Base):
    """A small JSON object under a name: the salt of the draws, what `connect` changed, how far `sync` is."""

    __tablename__ = "project_state"

    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(50), primary_key=True)
    value: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class SamplingPeriod(Base):
    """The first and the last moment within a slot of time at which tasks were seen to be given out in an order.

    Least and greatest do not depend on the order of deliveries, and a slot is one row however much is labelled.
    `source` says who saw it first; `queue`, that annotators follow our review queue, outlasts any other.
    """

    __tablename__ = "sampling_periods"
    __table_args__ = (
        sa.Index("ix_sampling_periods_order", "project_id", "order", "first_at"),
        sa.Index("ix_sampling_periods_last", "project_id", "last_at"),
        sa.Index("ix_sampling_periods_queue", "project_id", sqlite_where=_FROM_QUEUE, postgresql_where=_FROM_QUEUE),
    )

    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    slot: Mapped[datetime] = mapped_column(UtcDateTime, primary_key=True)
    order: Mapped[str] = mapped_column(sa.String(20), primary_key=True)
    first_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_at: Mapped[datetime] = mapped_column(UtcDateTime)
    source: Mapped[str] = mapped_column(sa.String(20))


class TrainingTask(Base):
    """A task whose label was used to make a model, by the model's base hash (METHODS 8.4)."""

    __tablename__ = "training_tasks"

    model_hash: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    task_id: Mapped[int] = mapped_column(
        BigId, sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    purpose: Mapped[str] = mapped_column(sa.String(20))
    recorded_at: Mapped[datetime] = mapped_column(UtcDateTime)
