"""Calibration rows (unit of a task x model), entity rows below them, and the counters kept beside them."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from backend.store.columns import Base, BigId, UtcDateTime

_LIVE = sa.text("removed_at_revision IS NULL")
_ASIDE = sa.text("set_aside_at IS NOT NULL")
# What a refit reads of every row. One index holds all of it, so that the table itself is never touched.
REFIT_COLUMNS = ("nll", "rank", "cumulative", "weight", "task_id", "unit")


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
    """Rows that are interchangeable: one stratum and kind of evidence; with the count of live rows.

    `n` are units. `tasks` are those whose first unit is here, so that the sum over cells counts every task once.
    `exclusion` is empty for rows that count; excluded rows have cells of their own, so their number is known too.
    """

    __tablename__ = "calibration_cells"
    __table_args__ = (
        sa.UniqueConstraint(
            "project_id", "model_id", "stratum", "evidence", "exclusion", name="uq_calibration_cells_cell"
        ),
        sa.CheckConstraint("n >= 0 AND n_infinite >= 0 AND n_infinite <= n", name="counts"),
        sa.CheckConstraint("tasks >= 0 AND tasks <= n", name="tasks"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"))
    stratum: Mapped[str] = mapped_column(sa.String(100))
    evidence: Mapped[str] = mapped_column(sa.String(20))
    exclusion: Mapped[str] = mapped_column(sa.String(30), default="")
    n: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    n_infinite: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    tasks: Mapped[int] = mapped_column(sa.BigInteger, default=0)


class CalibrationScore(Base):
    """What one model said about one unit of a confirmed labeling. Rows are added and retired, never overwritten.

    All units of a task are added and retired together. `start` and `stop` are the unit's characters; `stop` is null in
    rows of a release that knew no units, until their labels are scored again. `drawn` is the one unit of each task,
    drawn by lot, that monitors look at. The scores are the fields of `SequenceScores`, doubles that may be `+inf`
    (METHODS 3.3). `true_spans` and `best_spans` are how many spans the label and the best labeling of the whole task
    have, in the row of its first unit; null in rows of a release that controlled no risk, until they are scored again.
    """

    __tablename__ = "calibration_scores"
    __table_args__ = (
        sa.Index(
            "uq_calibration_scores_live",
            "task_id",
            "model_id",
            "unit",
            unique=True,
            sqlite_where=_LIVE,
            postgresql_where=_LIVE,
        ),
        sa.Index("ix_calibration_scores_nll", "cell_id", *REFIT_COLUMNS, sqlite_where=_LIVE, postgresql_where=_LIVE),
        sa.Index("ix_calibration_scores_rank", "cell_id", "rank", sqlite_where=_LIVE, postgresql_where=_LIVE),
        sa.Index("ix_calibration_scores_added", "cell_id", "added_at_revision"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    task_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("tasks.id", ondelete="CASCADE"))
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"))
    cell_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("calibration_cells.id", ondelete="CASCADE"))
    unit: Mapped[int] = mapped_column(default=0)
    start: Mapped[int] = mapped_column(default=0)
    stop: Mapped[int | None]
    drawn: Mapped[bool] = mapped_column(default=True)
    label_revision: Mapped[int]
    nll: Mapped[float] = mapped_column(sa.Double)
    rank: Mapped[float] = mapped_column(sa.Double)
    cumulative: Mapped[float] = mapped_column(sa.Double)
    weight: Mapped[float] = mapped_column(sa.Double, default=1.0)
    entities: Mapped[int]
    true_spans: Mapped[int | None]
    best_spans: Mapped[int | None]
    added_at_revision: Mapped[int] = mapped_column(sa.BigInteger)
    removed_at_revision: Mapped[int | None] = mapped_column(sa.BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class EntityScore(Base):
    """One span of a calibration row: a true entity, or (label `O`) a candidate that is none (METHODS 6.1-6.3).

    The columns are the fields of `EntityRow`.
    """

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
    class_rank: Mapped[float] = mapped_column(sa.Double)
    rank: Mapped[float] = mapped_column(sa.Double)


class SpanError(Base):
    """One error of a task's best labeling, below the row of its first unit (METHODS 11.1, 11.3).

    `missing`: a true span that it lacks; else a false one that it has. `level` is the greatest level of the flags at
    which somebody is asked to look there.
    """

    __tablename__ = "span_errors"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012 - read once by the declarative base

    score_id: Mapped[int] = mapped_column(
        BigId, sa.ForeignKey("calibration_scores.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    missing: Mapped[bool]
    level: Mapped[float] = mapped_column(sa.Double)


class ScoringAttempt(Base):
    """How often scoring a label under a model was begun without an end; gone once its calibration row is written.

    Counted before the work, so that a process that dies of a label has counted it. `set_aside_at` says that nobody
    tries again, `error` why; both are about `label_revision` alone.
    """

    __tablename__ = "scoring_attempts"
    __table_args__ = (
        sa.Index("ix_scoring_attempts_aside", "project_id", "task_id", sqlite_where=_ASIDE, postgresql_where=_ASIDE),
        sa.Index("ix_scoring_attempts_project", "project_id", "model_id"),
    )

    task_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"), primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    label_revision: Mapped[int]
    attempts: Mapped[int]
    error: Mapped[str | None] = mapped_column(sa.Text)
    set_aside_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
