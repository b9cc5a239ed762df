"""What labels said about the sets that were shown, counted; and the rows that the martingale has consumed."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from backend.store.columns import Base, BigId, UtcDateTime


class Judgement(Base):
    """How the set that was in view (blind tasks: that would have been) did on a task's label, once per model.

    `findings` holds what was counted for it, so that a label that changes can take its judgement back.
    """

    __tablename__ = "judgements"

    task_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"), primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    label_revision: Mapped[int]
    version_id: Mapped[int] = mapped_column(sa.BigInteger)  # 0: the starter
    day: Mapped[date] = mapped_column(sa.Date)
    kind: Mapped[str] = mapped_column(sa.String(20))
    stratum: Mapped[str] = mapped_column(sa.String(100))
    pool: Mapped[str] = mapped_column(sa.String(100))
    n: Mapped[int] = mapped_column(sa.BigInteger)
    alpha: Mapped[str] = mapped_column(sa.String(20))
    guarantee: Mapped[str] = mapped_column(sa.String(20))
    findings: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    judged_at: Mapped[datetime] = mapped_column(UtcDateTime)


class CoverageCount(Base):
    """Judgements of one day, version and kind of evidence, added up: by stratum, by class, by what became of flags.

    Of a stratum `tasks` are the labels, `total` those whose answer is known and `covered` the sets that held them, by
    the one unit of each task that was drawn; of a class `tasks` have it, `total` are its entities and `covered` those
    whose span's set held the class; of a flag `total` are the flagged spans that ended as `name` says. Of `units`
    `total` are all units of the tasks; of `whole` `covered` are the tasks whose every unit's set held its label. Of
    `risk`, by pool, `size` is the sum of losses under the flags in millionths, `covered` the tasks without any, and
    `alpha` what was promised.
    """

    __tablename__ = "coverage_counts"

    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"), primary_key=True)
    day: Mapped[date] = mapped_column(sa.Date, primary_key=True)
    version_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True)
    kind: Mapped[str] = mapped_column(sa.String(20), primary_key=True)
    scope: Mapped[str] = mapped_column(sa.String(10), primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(100), primary_key=True)
    pool: Mapped[str] = mapped_column(sa.String(100), default="")
    n: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    alpha: Mapped[str] = mapped_column(sa.String(20), default="")
    guarantee: Mapped[str] = mapped_column(sa.String(20), default="")
    tasks: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    total: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    covered: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    shown: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    accepted: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    open: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    empty: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    singleton: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    size: Mapped[int] = mapped_column(sa.BigInteger, default=0)


class MonitorRow(Base):
    """A score that the martingale has consumed: it stays as it was, whatever becomes of the label (METHODS 8.7)."""

    __tablename__ = "monitor_rows"

    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"), primary_key=True)
    task_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True)
    position: Mapped[int] = mapped_column(sa.BigInteger)
    stratum: Mapped[str] = mapped_column(sa.String(100))
    score: Mapped[float] = mapped_column(sa.Double)
