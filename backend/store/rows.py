"""Calibration rows between the tables and the records: every score by its name, and live rows a page at a time."""

from __future__ import annotations

from dataclasses import dataclass, fields

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.records import EntityRow, ErrorRow, SequenceScores, UnitRow
from backend.store.tables import CalibrationCell, CalibrationHead, CalibrationScore, EntityScore, SpanError

# Columns are named as the fields are, so that a new one is written and read without a word here.
_SEQUENCE = tuple(field.name for field in fields(SequenceScores))
_ENTITY = tuple(field.name for field in fields(EntityRow))


def read_scores(row: CalibrationScore) -> SequenceScores:
    """Return the scores of a row."""
    return SequenceScores(**{name: getattr(row, name) for name in _SEQUENCE})


def read_entity(row: EntityScore) -> EntityRow:
    """Return the entity of a row."""
    return EntityRow(**{name: getattr(row, name) for name in _ENTITY})


def column_values(record: SequenceScores | EntityRow) -> dict[str, float | int | str]:
    """Return what the columns of a record hold.

    -0.0 becomes 0.0: SQLite does not keep the sign, and equal scores must look equal.
    """
    return {name: value + 0.0 if isinstance(value, float) else value for name, value in vars(record).items()}


@dataclass(frozen=True)
class StoredRow:
    """A live row; the fields are those of `calibration.record_units` and of `UnitRow`."""

    id: int
    task_id: int
    unit: int
    start: int
    end: int | None
    drawn: bool
    label_revision: int
    stratum: str
    evidence: str
    exclusion: str
    scores: SequenceScores
    weight: float
    true_spans: int | None = None
    best_spans: int | None = None

    @property
    def is_counted(self) -> bool:
        """Whether its cell counts it among its tasks: not if a process of a release without units wrote it."""
        return self.end is not None or self.drawn


def scored_models(session: Session, project_id: int) -> list[int]:
    """Return the models that ever had a row in the project."""
    rows = session.execute(sa.select(CalibrationHead.model_id).where(CalibrationHead.project_id == project_id))
    return sorted(rows.scalars())


def live_rows(session: Session, project_id: int, *, model_id: int, after: int = 0, limit: int = 500) -> list[StoredRow]:
    """Return live rows of (project, model), excluded ones too, by their ids, after the row `after`."""
    score, cell = CalibrationScore, CalibrationCell
    rows = session.execute(
        _joined()
        .where(cell.project_id == project_id, cell.model_id == model_id, score.id > after)
        .order_by(score.id)
        .limit(limit)
    ).all()
    return [_stored(row, within) for row, within in rows]


def task_units(session: Session, task_id: int, *, model_id: int) -> list[StoredRow]:
    """Return the live rows of a task under a model, by unit."""
    score = CalibrationScore
    rows = session.execute(_joined().where(score.task_id == task_id, score.model_id == model_id).order_by(score.unit))
    return [_stored(row, within) for row, within in rows.all()]


def _joined() -> sa.Select[CalibrationScore, CalibrationCell]:
    score, cell = CalibrationScore, CalibrationCell
    query = sa.select(score, cell).join(cell, cell.id == score.cell_id).where(score.removed_at_revision.is_(None))
    return query.execution_options(populate_existing=True)


def _stored(row: CalibrationScore, within: CalibrationCell) -> StoredRow:
    return StoredRow(
        id=row.id,
        task_id=row.task_id,
        unit=row.unit,
        start=row.start,
        end=row.stop,
        drawn=row.drawn,
        label_revision=row.label_revision,
        stratum=within.stratum,
        evidence=within.evidence,
        exclusion=within.exclusion,
        scores=read_scores(row),
        weight=row.weight,
        true_spans=row.true_spans,
        best_spans=row.best_spans,
    )


def stored_units(session: Session, task_id: int, *, model_id: int) -> list[UnitRow]:
    """Return the live rows of a task under a model as they were written, with their entities, by unit."""
    entities = task_entities(session, task_id, model_id=model_id)
    return [
        UnitRow(
            row.stratum,
            row.scores,
            tuple(entities.get(row.id, ())),
            start=row.start,
            end=row.end,
            drawn=row.drawn,
        )
        for row in task_units(session, task_id, model_id=model_id)
    ]


def task_entities(session: Session, task_id: int, *, model_id: int) -> dict[int, list[EntityRow]]:
    """Return the entities of a task's live rows under a model, by row, in one query however many units it has."""
    score = CalibrationScore
    rows = session.execute(
        sa.select(EntityScore.score_id, *(getattr(EntityScore, name) for name in _ENTITY))
        .join(score, score.id == EntityScore.score_id)
        .where(score.task_id == task_id, score.model_id == model_id, score.removed_at_revision.is_(None))
        .order_by(score.unit, EntityScore.start, EntityScore.end, EntityScore.label)
    )
    entities: dict[int, list[EntityRow]] = {}
    for row_id, *values in rows:
        entities.setdefault(row_id, []).append(EntityRow(*values))
    return entities


def row_errors(session: Session, row: StoredRow) -> ErrorRow | None:
    """Return the errors of the task whose first unit is this row; None where they were never looked for."""
    if row.true_spans is None or row.best_spans is None:
        return None
    errors = session.execute(
        sa.select(SpanError.missing, SpanError.level).where(SpanError.score_id == row.id).order_by(SpanError.number)
    ).all()
    return ErrorRow(
        row.true_spans,
        row.best_spans,
        missing=tuple(level for missing, level in errors if missing),
        false=tuple(level for missing, level in errors if not missing),
    )
