"""What publishing asks of the store: the lists behind the last sets, which tasks were opened, which are blind."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from backend.store.tables import Label, ServedSet, Task


@dataclass(frozen=True)
class LastList:
    """What the last set of a task was cut from."""

    task: str
    text_hash: bytes
    language: str | None
    stratum: str
    version_id: int | None
    ranked: bytes


def last_lists(session: Session, project_id: int, *, model_id: int, tasks: Collection[str]) -> list[LastList]:
    """Return the list behind the newest set of each of these tasks under a model."""
    newer = aliased(ServedSet)
    last = (
        sa.select(sa.func.max(newer.id))
        .where(newer.task_id == Task.id, newer.model_id == model_id)
        .correlate(Task)
        .scalar_subquery()
    )
    rows = session.execute(
        sa.select(
            Task.external_id,
            Task.text_hash,
            Task.language,
            ServedSet.stratum,
            ServedSet.version_id,
            ServedSet.ranked,
        )
        .join(ServedSet, ServedSet.id == last)
        .where(Task.project_id == project_id, Task.external_id.in_(tasks), Task.deleted_at.is_(None))
    )
    return [
        LastList(task, bytes(digest), language, stratum, version, bytes(ranked))
        for task, digest, language, stratum, version, ranked in rows
    ]


def opened_since(session: Session, project_id: int, *, tasks: Collection[str], since: datetime) -> set[str]:
    """Return those tasks that were asked for one at a time since then: somebody opened them.

    Label Studio asks for one task when it is opened and for many when predictions are fetched or refreshed; sets that
    were served together have one time.
    """
    other = aliased(ServedSet)
    together = sa.select(other.id).where(other.served_at == ServedSet.served_at, other.id != ServedSet.id).exists()
    rows = session.execute(
        sa.select(Task.external_id)
        .join(ServedSet, ServedSet.task_id == Task.id)
        .where(Task.project_id == project_id, Task.external_id.in_(tasks), ServedSet.served_at >= since, ~together)
        .distinct()
    )
    return set(rows.scalars())


def blind_tasks(session: Session, project_id: int, *, limit: int) -> list[str]:
    """Return the numbers of living tasks that are shown blank and that nobody has labelled, in their random order."""
    labelled = sa.select(Label.id).where(Label.task_id == Task.id, Label.exclusion.is_(None)).exists()
    rows = session.execute(
        sa.select(Task.external_id)
        .where(Task.project_id == project_id, Task.blind.is_(True), Task.deleted_at.is_(None), ~labelled)
        .order_by(Task.random_order)
        .limit(limit)
    )
    return list(rows.scalars())


def count_blind(session: Session, project_id: int) -> int:
    """Return how many living tasks are shown blank."""
    blind = sa.select(sa.func.count()).where(
        Task.project_id == project_id, Task.blind.is_(True), Task.deleted_at.is_(None)
    )
    return int(session.execute(blind.select_from(Task)).scalar_one())
