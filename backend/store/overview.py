"""What pages show, from counters and summaries: the rows read do not grow with labels, tasks or events.

Nothing here writes, and nothing here reads the content of a threshold version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.streams import Order, OrderHistory, Sighting, order_history
from backend.store.judgements import STRATUM
from backend.store.tables import (
    ActiveVersion,
    Alarm,
    CalibrationCell,
    CoverageCount,
    Model,
    SamplingPeriod,
    Threshold,
    ThresholdVersion,
)

POOLS_SHOWN = 8


@dataclass(frozen=True)
class VersionSummary:
    """A threshold version without its content; the fields are columns of the table."""

    id: int
    model_id: int
    alpha: str
    method: str
    evidence: str
    guarantee: str
    input_revision: int
    n: int
    details: Mapping[str, Any]
    created_at: datetime


def version_summaries(session: Session, project_id: int, *, model_id: int, limit: int = 50) -> list[VersionSummary]:
    """Return the newest versions of (project, model), newest first."""
    rows = session.execute(
        _summary()
        .where(ThresholdVersion.project_id == project_id, ThresholdVersion.model_id == model_id)
        .order_by(ThresholdVersion.id.desc())
        .limit(limit)
    )
    return [VersionSummary(*row) for row in rows]


def version_summary(session: Session, project_id: int, *, model_id: int, version_id: int) -> VersionSummary | None:
    """Return one version of (project, model), None when it is not one of theirs."""
    row = session.execute(
        _summary().where(
            ThresholdVersion.id == version_id,
            ThresholdVersion.project_id == project_id,
            ThresholdVersion.model_id == model_id,
        )
    ).one_or_none()
    return None if row is None else VersionSummary(*row)


def active_summary(session: Session, project_id: int, *, model_id: int) -> VersionSummary | None:
    """Return the version that serves (project, model), None before the first."""
    row = session.execute(
        _summary()
        .join(ActiveVersion, ActiveVersion.version_id == ThresholdVersion.id)
        .where(ActiveVersion.project_id == project_id, ActiveVersion.model_id == model_id)
    ).one_or_none()
    return None if row is None else VersionSummary(*row)


def threshold_history(
    session: Session, versions: Sequence[int], *, pools: int = POOLS_SHOWN
) -> dict[str, dict[int, float]]:
    """Return thresholds by pool and version, of the pools with most labels in the newest of the versions."""
    if not versions:
        return {}
    mine = Threshold.kind == "pool"
    names = list(
        session.execute(
            sa.select(Threshold.pool)
            .where(mine, Threshold.version_id == max(versions))
            .order_by(Threshold.n.desc(), Threshold.pool)
            .limit(pools)
        ).scalars()
    )
    rows = session.execute(
        sa.select(Threshold.pool, Threshold.version_id, Threshold.tau).where(
            mine, Threshold.version_id.in_(list(versions)), Threshold.pool.in_(names)
        )
    ).all()
    return {name: {row.version_id: row.tau for row in rows if row.pool == name} for name in names}


def coverage_days(
    session: Session, project_id: int, *, model_id: int, since: date, alpha: str
) -> list[tuple[date, str, int, int]]:
    """Return (day, kind, labels with a known answer, covered) of sets served at one alpha, by day."""
    rows = session.execute(
        sa.select(
            CoverageCount.day, CoverageCount.kind, sa.func.sum(CoverageCount.total), sa.func.sum(CoverageCount.covered)
        )
        .where(
            CoverageCount.project_id == project_id,
            CoverageCount.model_id == model_id,
            CoverageCount.scope == STRATUM,
            CoverageCount.day >= since,
            CoverageCount.alpha == alpha,
        )
        .group_by(CoverageCount.day, CoverageCount.kind)
    )
    return sorted((day, kind, int(total), int(covered)) for day, kind, total, covered in rows if total)


def coverage_before(
    session: Session, project_id: int, *, model_id: int, before: date, alpha: str
) -> dict[str, tuple[int, int]]:
    """Return (labels with a known answer, covered) of all days before one, by kind, as `coverage_days` counts them."""
    rows = session.execute(
        sa.select(CoverageCount.kind, sa.func.sum(CoverageCount.total), sa.func.sum(CoverageCount.covered))
        .where(
            CoverageCount.project_id == project_id,
            CoverageCount.model_id == model_id,
            CoverageCount.scope == STRATUM,
            CoverageCount.day < before,
            CoverageCount.alpha == alpha,
        )
        .group_by(CoverageCount.kind)
    )
    return {kind: (int(total), int(covered)) for kind, total, covered in rows}


def brief_history(session: Session, project_id: int) -> OrderHistory:
    """Return what of a project's order decides which labels count now: the first review order and what came before."""
    mine = SamplingPeriod.project_id == project_id
    first = session.execute(
        sa.select(sa.func.min(SamplingPeriod.first_at)).where(mine, SamplingPeriod.order == Order.REVIEW.value)
    ).scalar_one_or_none()
    if first is None:
        return order_history([])
    before = session.execute(
        sa.select(SamplingPeriod.last_at, SamplingPeriod.order)
        .where(mine, SamplingPeriod.last_at < first)
        .order_by(SamplingPeriod.last_at.desc())
        .limit(1)
    ).all()
    sightings = [Sighting(row.last_at, Order(row.order)) for row in before]
    return order_history([*sightings, Sighting(first, Order.REVIEW)])


@dataclass(frozen=True)
class ProjectSums:
    """The counters of one project and model that the overview of all projects shows."""

    version: VersionSummary | None = None
    judged: int = 0
    covered: int = 0
    labels: int = 0


def overview_sums(session: Session, *, since: date, kind: str) -> dict[tuple[int, str], ProjectSums]:
    """Return the sums of all projects by (project, hash of the model), in four queries.

    Args:
        kind: of evidence that live coverage is read off, since this day and at the active version's alpha.
    """
    hashes = {row.id: row.hash for row in session.execute(sa.select(Model.id, Model.hash))}
    serving = session.execute(
        _summary()
        .add_columns(ActiveVersion.project_id)
        .join(ActiveVersion, ActiveVersion.version_id == ThresholdVersion.id)
    ).all()
    active = {(row[-1], row.model_id): VersionSummary(*row[:-1]) for row in serving}
    labels = {
        (row.project_id, row.model_id): int(row.n)
        for row in session.execute(
            sa.select(CalibrationCell.project_id, CalibrationCell.model_id, sa.func.sum(CalibrationCell.n).label("n"))
            .where(CalibrationCell.exclusion == "")
            .group_by(CalibrationCell.project_id, CalibrationCell.model_id)
        )
    }
    counted = session.execute(
        sa.select(
            CoverageCount.project_id,
            CoverageCount.model_id,
            CoverageCount.alpha,
            sa.func.sum(CoverageCount.total).label("judged"),
            sa.func.sum(CoverageCount.covered).label("covered"),
        )
        .where(CoverageCount.scope == STRATUM, CoverageCount.kind == kind, CoverageCount.day >= since)
        .group_by(CoverageCount.project_id, CoverageCount.model_id, CoverageCount.alpha)
    ).all()
    sums = {}
    for key in {*active, *labels}:
        version = active.get(key)
        same = [row for row in counted if (row[0], row[1]) == key and (version is None or row.alpha == version.alpha)]
        sums[key[0], hashes[key[1]]] = ProjectSums(
            version, sum(int(row.judged) for row in same), sum(int(row.covered) for row in same), labels.get(key, 0)
        )
    return sums


def standing_alarms(session: Session) -> dict[int, int]:
    """Return how many alarms nobody has acknowledged, by project."""
    rows = session.execute(
        sa.select(Alarm.project_id, sa.func.count()).where(Alarm.acknowledged_at.is_(None)).group_by(Alarm.project_id)
    )
    return {project: int(count) for project, count in rows}


def _summary() -> sa.Select[Any]:
    return sa.select(*(getattr(ThresholdVersion, field.name) for field in fields(VersionSummary)))
