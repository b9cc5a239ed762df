"""What was shown (or, for blind tasks, would have been), and the monitors' state."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from backend.store.columns import Base, BigId, ExactText, UtcDateTime


class ServedSet(Base):
    """A set as served under a threshold version; `ranked` holds the list it was cut from (see `ranked.py`)."""

    __tablename__ = "served_sets"
    __table_args__ = (
        sa.Index("ix_served_sets_age", "served_at"),
        sa.Index("ix_served_sets_task", "task_id", "model_id", "served_at"),
        sa.Index("ix_served_sets_version", "version_id"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    task_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("tasks.id", ondelete="CASCADE"))
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"))
    version_id: Mapped[int | None] = mapped_column(BigId, sa.ForeignKey("threshold_versions.id", ondelete="CASCADE"))
    shadow: Mapped[bool] = mapped_column(default=False)
    stratum: Mapped[str] = mapped_column(sa.String(100))
    pool: Mapped[str] = mapped_column(sa.String(100))
    guarantee: Mapped[str] = mapped_column(sa.String(20))
    n: Mapped[int] = mapped_column(sa.BigInteger)
    tau: Mapped[float] = mapped_column(sa.Double)
    is_open: Mapped[bool]
    set_size: Mapped[int | None]
    shown: Mapped[int]
    ranked: Mapped[bytes] = mapped_column(sa.LargeBinary)
    served_at: Mapped[datetime] = mapped_column(UtcDateTime)
    alpha: Mapped[str | None] = mapped_column(sa.String(20))
    # What its task is ordered by (`domain.priority`), for a shadow one that was drawn; null before 0008.
    priority: Mapped[float | None] = mapped_column(sa.Double)
    # How many places were flagged, and how doubtful the best labeling is (METHODS 12.1); null before 0013.
    flags: Mapped[int | None]
    doubt: Mapped[float | None] = mapped_column(sa.Double)


class MonitorState(Base):
    """The state of one monitor. `revision` makes a second writer of the same step fail instead of counting twice."""

    __tablename__ = "monitor"

    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(sa.String(50), primary_key=True)
    stratum: Mapped[str] = mapped_column(sa.String(100), primary_key=True)
    revision: Mapped[int] = mapped_column(sa.BigInteger, default=1)
    consumed: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    value: Mapped[float] = mapped_column(sa.Double)
    state: Mapped[bytes] = mapped_column(sa.LargeBinary)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Alarm(Base):
    """An alarm that was raised; acknowledging keeps it."""

    __tablename__ = "alarms"
    __table_args__ = (sa.Index("ix_alarms_project", "project_id", "id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"))
    kind: Mapped[str] = mapped_column(sa.String(50))
    stratum: Mapped[str] = mapped_column(sa.String(100))
    value: Mapped[float] = mapped_column(sa.Double)
    message: Mapped[str] = mapped_column(ExactText)
    raised_at: Mapped[datetime] = mapped_column(UtcDateTime)
    acknowledged_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
