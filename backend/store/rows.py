"""Calibration rows as they were written, a page at a time: for judging again what may calibrate."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.store.tables import CalibrationCell, CalibrationHead, CalibrationScore, EntityScore
from backend.store.types import EntityRow, SequenceScores


@dataclass(frozen=True)
class StoredRow:
    """A live row; the fields are those of `calibration.record_scores`."""

    id: int
    task_id: int
    label_revision: int
    stratum: str
    evidence: str
    part: str
    exclusion: str
    scores: SequenceScores
    weight: float


def scored_models(session: Session, project_id: int) -> list[int]:
    """Return the models that ever had a row in the project."""
    rows = session.execute(sa.select(CalibrationHead.model_id).where(CalibrationHead.project_id == project_id))
    return sorted(rows.scalars())


def live_rows(session: Session, project_id: int, *, model_id: int, after: int = 0, limit: int = 500) -> list[StoredRow]:
    """Return live rows of (project, model), excluded ones too, by their ids, after the row `after`."""
    score, cell = CalibrationScore, CalibrationCell
    rows = session.execute(
        sa.select(score, cell)
        .join(cell, cell.id == score.cell_id)
        .where(cell.project_id == project_id, cell.model_id == model_id)
        .where(score.removed_at_revision.is_(None), score.id > after)
        .order_by(score.id)
        .limit(limit)
        .execution_options(populate_existing=True)
    ).all()
    return [
        StoredRow(
            id=row.id,
            task_id=row.task_id,
            label_revision=row.label_revision,
            stratum=within.stratum,
            evidence=within.evidence,
            part=within.part,
            exclusion=within.exclusion,
            scores=SequenceScores(row.nll, row.rank, row.cumulative, row.entities, row.predicted_entities),
            weight=row.weight,
        )
        for row, within in rows
    ]


def row_entities(session: Session, row_id: int) -> list[EntityRow]:
    """Return the entities of a row."""
    rows = session.execute(sa.select(EntityScore).where(EntityScore.score_id == row_id)).scalars()
    return [
        EntityRow(row.start, row.end, row.label, row.probability, row.cumulative, row.place, row.rank) for row in rows
    ]
