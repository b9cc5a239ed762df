"""Questions that pages and metrics ask of several tables at once; nothing here writes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from backend.store.policy import MAJORITY
from backend.store.ranked import unpack_ranked
from backend.store.tables import CalibrationCell, CalibrationScore, Label, ServedSet, Task, ThresholdVersion

SCANNED = 5_000


@dataclass(frozen=True)
class StratumCoverage:
    """Of the labelled tasks of a stratum that had a set: how many sets held the label, and how many were open."""

    stratum: str
    covered: int
    total: int
    open: int


@dataclass(frozen=True)
class QueuedTask:
    """An unlabelled task and what was served for it last."""

    task: str
    probability: float
    set_size: int | None
    is_open: bool
    stratum: str
    served_at: datetime


def live_coverage(session: Session, project_id: int, *, model_id: int, method: str) -> list[StratumCoverage]:
    """Return, by stratum, how often the set that was served (or, blind, would have been) held the label.

    The set is the last one before the label was scored. A set holds the label if the label's score is at most the
    set's threshold; `method` is that of sets made by the starter. Excluded rows do not count.
    """
    score, served = CalibrationScore, ServedSet
    last = (
        sa.select(sa.func.max(served.id))
        .where(served.task_id == score.task_id, served.model_id == score.model_id, served.served_at <= score.created_at)
        .correlate(score)
        .scalar_subquery()
    )
    name = sa.func.coalesce(ThresholdVersion.method, method)
    value = sa.case((name.startswith("nc2"), score.cumulative), (name.startswith("nc3"), score.rank), else_=score.nll)
    rows = session.execute(
        sa.select(
            served.stratum,
            sa.func.sum(sa.case((value <= served.tau, 1), else_=0)),
            sa.func.count(),
            sa.func.sum(sa.case((served.is_open, 1), else_=0)),
        )
        .select_from(score)
        .join(CalibrationCell, CalibrationCell.id == score.cell_id)
        .join(served, served.id == last)
        .outerjoin(ThresholdVersion, ThresholdVersion.id == served.version_id)
        .where(
            CalibrationCell.project_id == project_id,
            CalibrationCell.exclusion == "",
            score.model_id == model_id,
            score.removed_at_revision.is_(None),
        )
        .group_by(served.stratum)
    )
    found = [
        StratumCoverage(stratum, int(covered), int(total), int(opened)) for stratum, covered, total, opened in rows
    ]
    return sorted(found, key=lambda each: each.stratum)


def review_queue(session: Session, project_id: int, *, model_id: int, limit: int = 50) -> list[QueuedTask]:
    """Return unlabelled tasks whose last set is known, the least probable best labeling first.

    Blind tasks are left out: their place in a queue must say nothing. The newest `SCANNED` sets are looked at.
    """
    newer = aliased(ServedSet)
    last = (
        sa.select(sa.func.max(newer.id))
        .where(newer.task_id == ServedSet.task_id, newer.model_id == model_id)
        .scalar_subquery()
    )
    labelled = (
        sa.select(Label.id)
        .where(Label.task_id == Task.id, Label.policy == MAJORITY, Label.exclusion.is_(None))
        .exists()
    )
    rows = session.execute(
        sa.select(ServedSet, Task.external_id)
        .join(Task, Task.id == ServedSet.task_id)
        .where(Task.project_id == project_id, Task.deleted_at.is_(None), ~labelled)
        .where(ServedSet.model_id == model_id, ServedSet.shadow.is_(False), ServedSet.id == last)
        .order_by(ServedSet.id.desc())
        .limit(SCANNED)
    )
    queue = [
        QueuedTask(
            task=external,
            probability=_best(bytes(row.ranked)),
            set_size=row.set_size,
            is_open=row.is_open,
            stratum=row.stratum,
            served_at=row.served_at,
        )
        for row, external in rows
    ]
    return sorted(queue, key=lambda each: (each.probability, each.task))[:limit]


def count_versions(session: Session) -> int:
    """Return how many threshold versions there are."""
    return int(session.execute(sa.select(sa.func.count()).select_from(ThresholdVersion)).scalar_one())


def _best(ranked: bytes) -> float:
    logs = unpack_ranked(ranked).log_probabilities
    return math.exp(logs[0]) if logs else 0.0
