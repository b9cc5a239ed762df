"""Questions that pages and metrics ask of several tables at once; nothing here writes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from backend.store.policy import MAJORITY
from backend.store.ranked import best_score, review_value, unpack_ranked
from backend.store.tables import Label, ServedSet, Task, ThresholdVersion

SCANNED = 5_000


@dataclass(frozen=True)
class QueuedTask:
    """An unlabelled task and what was served for it last; `value` is what a look at it is worth (`review_value`)."""

    task: str
    value: float
    probability: float
    set_size: int | None
    is_open: bool
    stratum: str
    served_at: datetime


def review_queue(session: Session, project_id: int, *, model_id: int, limit: int = 50) -> list[QueuedTask]:
    """Return unlabelled tasks whose last set is known, the one most worth a look first.

    Empty sets come before all others (METHODS 3.5), then the order of `review_value`.

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
            value=review_value(unpack_ranked(bytes(row.ranked))),
            probability=best_score(bytes(row.ranked)),
            set_size=row.set_size,
            is_open=row.is_open,
            stratum=row.stratum,
            served_at=row.served_at,
        )
        for row, external in rows
    ]
    return sorted(queue, key=lambda each: (each.set_size != 0, -each.value, each.task))[:limit]


def count_versions(session: Session) -> int:
    """Return how many threshold versions there are."""
    return int(session.execute(sa.select(sa.func.count()).select_from(ThresholdVersion)).scalar_one())
