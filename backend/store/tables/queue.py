"""What waits for a look, in order."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from backend.store.columns import Base, BigId, UtcDateTime


class QueueEntry(Base):
    """A living task without a label, as it was last served under a model; the lowest `priority` is looked at first.

    `priority` is null until it is worked out (rows that an upgrade made). Of a blind task nothing else is kept.
    `opened_at` is when somebody last opened it, `claimed_by` and `claimed_until` are an annotator's lease.
    """

    __tablename__ = "queue"
    __table_args__ = (
        sa.Index("ix_queue_order", "project_id", "model_id", "priority", "task_id"),
        sa.Index(
            "ix_queue_claims",
            "project_id",
            "claimed_by",
            sqlite_where=sa.text("claimed_by IS NOT NULL"),
            postgresql_where=sa.text("claimed_by IS NOT NULL"),
        ),
        sa.Index(
            "ix_queue_unfilled",
            "task_id",
            sqlite_where=sa.text("priority IS NULL"),
            postgresql_where=sa.text("priority IS NULL"),
        ),
    )

    task_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"), primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    priority: Mapped[float | None] = mapped_column(sa.Double)
    blind: Mapped[bool]
    probability: Mapped[float | None] = mapped_column(sa.Double)
    set_size: Mapped[int | None]
    is_open: Mapped[bool | None]
    stratum: Mapped[str | None] = mapped_column(sa.String(100))
    served_at: Mapped[datetime] = mapped_column(UtcDateTime)
    opened_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    claimed_by: Mapped[str | None] = mapped_column(sa.String(100))
    claimed_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
