"""How plausible a model finds confirmed labels: what the list of second looks is made of."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from backend.store.columns import Base, BigId, UtcDateTime


class SecondLook(Base):
    """One confirmed label under one model.

    `score` is -log of the least probability that a word has its label, `+inf` where the model cannot express the label.
    `place` is a number drawn for the task; the labels with the lowest are the reference. `state` is `listed` (probably
    wrong), `check` (a reference label that is worth checking) or empty. A label that was looked at again is settled at
    the revision it had then: it stays off the list until it changes.
    """

    __tablename__ = "second_looks"
    __table_args__ = (
        sa.UniqueConstraint("task_id", "model_id", name="uq_second_looks_task"),
        # Pages read the few rows on the list, best first.
        sa.Index("ix_second_looks_state", "project_id", "model_id", "state", "score"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"))
    task_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("tasks.id", ondelete="CASCADE"))
    label_revision: Mapped[int]
    score: Mapped[float] = mapped_column(sa.Double)
    doubt: Mapped[float] = mapped_column(sa.Double)
    place: Mapped[float] = mapped_column(sa.Double)
    evidence: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    state: Mapped[str] = mapped_column(sa.String(10), default="")
    p_value: Mapped[float | None] = mapped_column(sa.Double)
    listed_revision: Mapped[int | None]
    settled_revision: Mapped[int | None]
    settled_how: Mapped[str | None] = mapped_column(sa.String(20))
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
