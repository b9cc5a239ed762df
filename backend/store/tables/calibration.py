"""Calibration rows (task x model), entity rows below them, and the counters kept beside them."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from backend.store.columns import Base, BigId, UtcDateTime

_LIVE = sa.text("removed_at_revision IS NULL")


class CalibrationHead(Base):
    """The number of the last change to the rows of (project, model).

    It is taken under a row lock in the transaction that changes rows, so that "all rows up to revision r" means
    the same set for ever: no later commit can slip a row below r.
    """

    __tablename__ = "calibration_heads"

    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"), primary_key=True)
    revision: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    changed_at: Mapped[datetime] = mapped_column(UtcDateTime)


class CalibrationCell(Base):
    """Rows that are interchangeable: one stratum, kind of evidence and part; with the count of live rows.

    `exclusion` is empty for rows that count; excluded rows have cells of their own, so their number is known too.
    """

    __tablename__ = "calibration_cells"
    __table_args__ = (
        sa.UniqueConstraint(
            "project_id", "model_id", "stratum", "evidence", "part", "exclusion", name="uq_calibration_cells_cell"
        ),
        sa.CheckConstraint("n >= 0 AND n_infinite >= 0 AND n_infinite <= n", name="counts"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"))
    stratum: Mapped[str] = mapped_column(sa.String(100))
    evidence: Mapped[str] = mapped_column(sa.String(20))
    part: Mapped[str] = mapped_column(sa.String(20))
    exclusion: Mapped[str] = mapped_column(sa.String(30), default="")
    n: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    n_infinite: Mapped[int] = mapped_column(sa.BigInteger, default=0)


class CalibrationScore(Base):
    """What one model said about one confirmed labeling. Rows are added and retired, never overwritten.

    Scores are doubles and may be `+inf` (METHODS 3.3): `nll` is -log P, `rank` the place of the labeling,
    `cumulative` the probability of it and all before it.
    """

    __tablename__ = "calibration_scores"
    __table_args__ = (
        sa.Index(
            "uq_calibration_scores_live",
            "task_id",
            "model_id",
            unique=True,
            sqlite_where=_LIVE,
            postgresql_where=_LIVE,
        ),
        # The first index also covers the bulk read of a refit, which then never touches the table.
        sa.Index(
            "ix_calibration_scores_nll",
            "cell_id",
            "nll",
            "rank",
            "cumulative",
            "weight",
            "task_id",
            sqlite_where=_LIVE,
            postgresql_where=_LIVE,
        ),
        sa.Index("ix_calibration_scores_rank", "cell_id", "rank", sqlite_where=_LIVE, postgresql_where=_LIVE),
        sa.Index(
            "ix_calibration_scores_cumulative",
            "cell_id",
            "cumulative",
            sqlite_where=_LIVE,
            postgresql_where=_LIVE,
        ),
        sa.Index("ix_calibration_scores_added", "cell_id", "added_at_revision"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    task_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("tasks.id", ondelete="CASCADE"))
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"))
    cell_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("calibration_cells.id", ondelete="CASCADE"))
    label_revision: Mapped[int]
    nll: Mapped[float] = mapped_column(sa.Double)
    rank: Mapped[float] = mapped_column(sa.Double)
    cumulative: Mapped[float] = mapped_column(sa.Double)
    weight: Mapped[float] = mapped_column(sa.Double, default=1.0)
    entities: Mapped[int]
    predicted_entities: Mapped[int]
    added_at_revision: Mapped[int] = mapped_column(sa.BigInteger)
    removed_at_revision: Mapped[int | None] = mapped_column(sa.BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class EntityScore(Base):
    """One span of a calibration row: a true entity, or (label `O`) a candidate that is none (METHODS 6.1-6.3)."""

    __tablename__ = "entity_scores"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012 - read once by the declarative base

    score_id: Mapped[int] = mapped_column(
        BigId, sa.ForeignKey("calibration_scores.id", ondelete="CASCADE"), primary_key=True
    )
    start: Mapped[int] = mapped_column(primary_key=True)
    end: Mapped[int] = mapped_column("stop", primary_key=True)
    label: Mapped[str] = mapped_column(sa.String(100), primary_key=True)
    probability: Mapped[float] = mapped_column(sa.Double)
    cumulative: Mapped[float] = mapped_column(sa.Double)
    place: Mapped[float] = mapped_column(sa.Double)
    rank: Mapped[float] = mapped_column(sa.Double)
