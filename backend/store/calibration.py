"""Calibration rows: added and retired with their counters in one transaction, never overwritten.

There is a row for each unit of a task; all of a task come and go together. A row carries the revision at which it
began to count and, once retired, the one at which it ceased to. The revision is taken under the lock of (project,
model), so the rows of revision r are the same whenever they are asked for, and a threshold version can be rebuilt from
the revision it names. The price is that rows of one (project, model) are written one transaction after another; a
forward pass costs far more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from backend.domain.label_choice import MAJORITY
from backend.domain.records import Cell, EntityRow, ErrorRow, SequenceScores, UnitRow
from backend.errors import InvalidScores, StoreConflict
from backend.store.engine import database_now
from backend.store.judgements import kind_of, rekind_judgement, retract_judgement
from backend.store.monitor import forget_drift
from backend.store.rows import StoredRow, column_values, row_errors, task_entities, task_units
from backend.store.tables import (
    CalibrationCell,
    CalibrationHead,
    CalibrationScore,
    EntityScore,
    Label,
    ScoringAttempt,
    SpanError,
    Task,
)
from backend.store.upsert import get_or_create, insert

_MANY = 1_000  # ids in one statement


def record_scores(
    session: Session,
    project_id: int,
    *,
    model_id: int,
    task_id: int,
    label_revision: int,
    stratum: str,
    evidence: str,
    scores: SequenceScores,
    entities: Sequence[EntityRow] = (),
    exclusion: str | None = None,
    weight: float = 1.0,
    errors: ErrorRow | None = None,
    policy: str = MAJORITY,
) -> bool:
    """Make this the one live row of (task, model): of a text that is one unit. See `record_units`."""
    return record_units(
        session,
        project_id,
        model_id=model_id,
        task_id=task_id,
        label_revision=label_revision,
        evidence=evidence,
        units=[UnitRow(stratum, scores, tuple(entities))],
        exclusion=exclusion,
        weight=weight,
        errors=errors,
        policy=policy,
    )


def record_units(
    session: Session,
    project_id: int,
    *,
    model_id: int,
    task_id: int,
    label_revision: int,
    evidence: str,
    units: Sequence[UnitRow],
    exclusion: str | None = None,
    weight: float = 1.0,
    errors: ErrorRow | None = None,
    policy: str = MAJORITY,
) -> bool:
    """Make these units the live rows of (task, model); returns False when they already were (METHODS 8.4).

    Args:
        label_revision: of the label that was scored.
        exclusion: why the rows are no evidence for this model; such rows are kept and counted apart.
        weight: 1 over the probability with which the task was selected (METHODS 3.7).
        errors: of the whole task's best labeling, kept with its first unit (METHODS 11.3).

    Raises:
        StoreConflict: when the label has changed since it was read; nothing is written.
        InvalidScores: when a score is NaN; nothing is written.
    """
    for unit in units:
        _refuse_nan(unit.scores, unit.entities, weight)
    # Labels change under the task's lock, so from here on this one cannot.
    session.execute(sa.select(Task.id).where(Task.id == task_id).with_for_update())
    current = session.execute(
        sa.select(Label.revision).where(Label.task_id == task_id, Label.policy == policy)
    ).scalar_one_or_none()
    if current != label_revision:
        raise StoreConflict(
            f"task {task_id}: expected the label to be at revision {label_revision} still, got {current}: "
            "score the label as it is now"
        )
    revision = _lock_head(session, project_id, model_id)
    live = task_units(session, task_id, model_id=model_id)
    within = {"evidence": evidence, "exclusion": exclusion or ""}
    if live:
        same = _are_same(session, model_id, live, units, within | {"label_revision": label_revision, "weight": weight})
        known = row_errors(session, live[0])
        if same and known in (None, errors):
            _place(session, live, units)
            if known is None and errors is not None:
                _write_errors(session, live[0].id, errors)
                _advance_head(session, project_id, model_id, revision + 1)
            return False
        _retire(session, live, revision + 1)
        if live[0].end is None and len(units) > 1:
            # What the martingale has consumed are scores of whole texts; those of sentences would look like a drift.
            forget_drift(session, project_id, model_id=model_id)
        if live[0].label_revision == label_revision:  # the same label, worth something else
            rekind_judgement(session, task_id, model_id=model_id, kind=kind_of(evidence, exclusion))
    cells = _count_units(session, project_id, model_id, units, within)
    shared: dict[str, object] = {"task_id": task_id, "model_id": model_id, "label_revision": label_revision}
    shared |= {"weight": weight + 0.0, "added_at_revision": revision + 1, "created_at": database_now(session)}
    # A text of a megabyte has thousands of units: a few statements, not a few for each of them.
    fresh = [
        shared
        | {"cell_id": cells[unit.stratum], "unit": number, "start": unit.start, "stop": unit.end, "drawn": unit.drawn}
        | column_values(unit.scores)
        for number, unit in enumerate(units)
    ]
    made = session.execute(sa.insert(CalibrationScore).returning(CalibrationScore.unit, CalibrationScore.id), fresh)
    ids = {int(number): int(row_id) for number, row_id in made.all()}
    rows = [
        {"score_id": ids[number]} | column_values(entity)
        for number, unit in enumerate(units)
        for entity in _sorted(unit.entities)
    ]
    if rows:
        session.execute(sa.insert(EntityScore), rows)
    if errors is not None:
        _write_errors(session, ids[0], errors)
    _advance_head(session, project_id, model_id, revision + 1)
    return True


def _are_same(
    session: Session, model_id: int, live: Sequence[StoredRow], units: Sequence[UnitRow], shared: Mapping[str, object]
) -> bool:
    """Whether live rows say what these units say; rows from before there were units have no place in the text yet."""
    if len(live) != len(units) or any(getattr(row, name) != value for row in live for name, value in shared.items()):
        return False
    entities = task_entities(session, live[0].task_id, model_id=model_id)
    return all(
        row.is_counted
        and (row.stratum, row.scores) == (unit.stratum, unit.scores)
        and (row.end is None or (row.start, row.end, row.drawn) == (unit.start, unit.end, unit.drawn))
        and _sorted(entities.get(row.id, ())) == _sorted(unit.entities)
        for row, unit in zip(live, units, strict=True)
    )


def _place(session: Session, live: Sequence[StoredRow], units: Sequence[UnitRow]) -> None:
    """Say where in the text rows are that were written before there were units."""
    for row, unit in zip(live, units, strict=True):
        if row.end is None:
            session.execute(
                sa.update(CalibrationScore)
                .where(CalibrationScore.id == row.id)
                .values(start=unit.start, stop=unit.end, drawn=unit.drawn)
            )


def _write_errors(session: Session, row_id: int, errors: ErrorRow) -> None:
    session.execute(
        sa.update(CalibrationScore)
        .where(CalibrationScore.id == row_id)
        .values(true_spans=errors.true_spans, best_spans=errors.best_spans)
    )
    levels = [(True, level) for level in errors.missing] + [(False, level) for level in errors.false]
    if levels:
        session.execute(
            sa.insert(SpanError),
            [
                {"score_id": row_id, "number": number, "missing": missing, "level": level + 0.0}
                for number, (missing, level) in enumerate(levels)
            ],
        )


def withdraw_scores(session: Session, project_id: int, *, task_id: int, model_id: int | None = None) -> int:
    """Retire the live rows of a task, of one model or of all: its label no longer says what was scored.

    What was judged by it is taken back too.
    """
    query = (
        sa.select(CalibrationScore.model_id)
        .where(CalibrationScore.task_id == task_id, CalibrationScore.removed_at_revision.is_(None))
        .distinct()
    )
    if model_id is not None:
        query = query.where(CalibrationScore.model_id == model_id)
    retired = 0
    for model in sorted(session.execute(query).scalars()):
        revision = _lock_head(session, project_id, model) + 1
        rows = task_units(session, task_id, model_id=model)
        if rows:
            _retire(session, rows, revision)
            retract_judgement(session, task_id, model_id=model)
            _advance_head(session, project_id, model, revision)
            retired += 1
    return retired


def head_revision(session: Session, project_id: int, *, model_id: int) -> int:
    """Return the number of the last change to the rows of (project, model): the inputs' high-water mark."""
    revision = session.execute(
        sa.select(CalibrationHead.revision).filter_by(project_id=project_id, model_id=model_id)
    ).scalar_one_or_none()
    return 0 if revision is None else revision


def first_row_at(session: Session, project_id: int, *, model_id: int) -> datetime | None:
    """Return when the first row of (project, model) was written, retired ones included; None without any."""
    return session.execute(
        sa.select(sa.func.min(CalibrationScore.created_at))
        .join(CalibrationCell, CalibrationCell.id == CalibrationScore.cell_id)
        .where(CalibrationCell.project_id == project_id, CalibrationCell.model_id == model_id)
    ).scalar_one()


def load_cells(
    session: Session,
    project_id: int,
    *,
    model_id: int,
    evidence: Iterable[str] | None = None,
    excluded: bool = False,
) -> list[Cell]:
    """Return the cells of (project, model) with their counters, ordered by name; no rows are counted.

    Args:
        evidence: kinds to include; all when None.
        excluded: return the cells of excluded rows instead of those that count.
    """
    query = sa.select(CalibrationCell).filter_by(project_id=project_id, model_id=model_id)
    query = query.where(CalibrationCell.exclusion != "" if excluded else CalibrationCell.exclusion == "")
    if evidence is not None:
        query = query.where(CalibrationCell.evidence.in_(list(evidence)))
    rows = session.execute(query.execution_options(populate_existing=True)).scalars()
    cells = [Cell(row.id, row.stratum, row.evidence, row.exclusion, row.n, row.n_infinite, row.tasks) for row in rows]
    # Sorted here, because the databases' collations differ.
    return sorted(cells, key=lambda cell: (cell.stratum, cell.evidence, cell.exclusion))


def count_first(session: Session, cells: Sequence[Cell]) -> dict[int, int]:
    """Return, by cell id, how many of its tasks have the model's best labeling as their label, in all their units."""
    score, other = CalibrationScore, aliased(CalibrationScore)
    elsewhere = sa.exists().where(
        other.task_id == score.task_id,
        other.model_id == score.model_id,
        other.unit > 0,
        other.removed_at_revision.is_(None),
        other.rank > 1.0,
    )
    rows = session.execute(
        sa.select(score.cell_id, sa.func.count())
        .where(
            score.cell_id.in_([cell.id for cell in cells]),
            score.removed_at_revision.is_(None),
            score.rank <= 1.0,
            score.unit == 0,
            ~elsewhere,
        )
        .group_by(score.cell_id)
    )
    return {cell: int(count) for cell, count in rows}


def is_complete() -> sa.ColumnElement[bool]:
    """Whether a row says all that rows say today: where its unit is, and the errors of its task."""
    score = CalibrationScore
    return sa.and_(score.stop.is_not(None), sa.or_(score.unit > 0, score.true_spans.is_not(None)))


def has_unplaced(session: Session, project_id: int, *, model_id: int) -> bool:
    """Whether live rows of an earlier release, without units or errors, wait for being scored again.

    Those that never will be do not count: their text is gone, or their label was set aside. Such a row stays what it
    is, the one unit of its task.
    """
    score, cell, attempt = CalibrationScore, CalibrationCell, ScoringAttempt
    aside = sa.exists().where(
        attempt.task_id == score.task_id, attempt.model_id == score.model_id, attempt.set_aside_at.is_not(None)
    )
    waiting = session.execute(
        sa.select(score.id)
        .join(cell, cell.id == score.cell_id)
        .join(Task, Task.id == score.task_id)
        .where(cell.project_id == project_id, cell.model_id == model_id)
        .where(score.removed_at_revision.is_(None), ~is_complete(), Task.text.is_not(None), ~aside)
        .limit(1)
    )
    return waiting.first() is not None


def recount_cells(session: Session, project_id: int, *, model_id: int) -> dict[int, tuple[int, int, int]]:
    """Count the live rows of every cell the slow way, as (n, n_infinite, tasks) by cell id: a check of the counters."""
    infinite = sa.func.sum(sa.case((CalibrationScore.nll == math.inf, 1), else_=0))
    counted = sa.and_(CalibrationScore.unit == 0, sa.or_(CalibrationScore.stop.is_not(None), CalibrationScore.drawn))
    first = sa.func.sum(sa.case((counted, 1), else_=0))
    rows = session.execute(
        sa.select(CalibrationCell.id, sa.func.count(CalibrationScore.id), infinite, first)
        .outerjoin(
            CalibrationScore,
            sa.and_(CalibrationScore.cell_id == CalibrationCell.id, CalibrationScore.removed_at_revision.is_(None)),
        )
        .where(CalibrationCell.project_id == project_id, CalibrationCell.model_id == model_id)
        .group_by(CalibrationCell.id)
    )
    return {cell: (int(n), int(n_infinite or 0), int(tasks or 0)) for cell, n, n_infinite, tasks in rows}


def lock_rows(session: Session, project_id: int, *, model_id: int) -> int:
    """Keep the rows of (project, model) as they are to the end of the transaction; returns their revision."""
    return _lock_head(session, project_id, model_id)


def _lock_head(session: Session, project_id: int, model_id: int) -> int:
    key = {"project_id": project_id, "model_id": model_id}
    fresh = {"revision": 0, "changed_at": database_now(session)}
    return get_or_create(session, CalibrationHead, key, fresh, lock=True).revision


def _advance_head(session: Session, project_id: int, model_id: int, revision: int) -> None:
    head = sa.update(CalibrationHead).filter_by(project_id=project_id, model_id=model_id)
    session.execute(head.values(revision=revision, changed_at=database_now(session)))


def _count_units(
    session: Session, project_id: int, model_id: int, units: Sequence[UnitRow], within: Mapping[str, str]
) -> dict[str, int]:
    """Count a task's units in their cells; returns the cells' ids by stratum."""
    counts: dict[str, Counter[str]] = {}
    for number, unit in enumerate(units):
        more = {"n": 1, "n_infinite": int(math.isinf(unit.scores.nll)), "tasks": int(number == 0)}
        counts.setdefault(unit.stratum, Counter()).update(more)
    cells: dict[str, int] = {}
    for stratum, counted in sorted(counts.items()):
        key: dict[str, object] = {"project_id": project_id, "model_id": model_id, **within, "stratum": stratum}
        added = {name: getattr(CalibrationCell, name) + count for name, count in counted.items()}
        statement = (
            insert(session, CalibrationCell)
            .values(key | counted)
            .on_conflict_do_update(index_elements=list(key), set_=added)
            .returning(CalibrationCell.id)
        )
        cells[stratum] = int(session.execute(statement).scalar_one())
    return cells


def _retire(session: Session, rows: Sequence[StoredRow], revision: int) -> None:
    """Retire all units of a task."""
    held: list[sa.Row[int, float, int]] = []
    for begin in range(0, len(rows), _MANY):
        numbers = [row.id for row in rows[begin : begin + _MANY]]
        gone = sa.update(CalibrationScore).where(CalibrationScore.id.in_(numbers)).values(removed_at_revision=revision)
        held += session.execute(
            gone.returning(CalibrationScore.cell_id, CalibrationScore.nll, CalibrationScore.id)
        ).all()
    first = {row.id for row in rows if row.unit == 0 and row.is_counted}
    counts: dict[int, Counter[str]] = {}
    for cell_id, nll, number in held:
        less = {"n": 1, "n_infinite": int(math.isinf(nll)), "tasks": int(number in first)}
        counts.setdefault(cell_id, Counter()).update(less)
    for cell_id, counted in sorted(counts.items()):
        session.execute(
            sa.update(CalibrationCell)
            .where(CalibrationCell.id == cell_id)
            .values({name: getattr(CalibrationCell, name) - count for name, count in counted.items()})
        )
    session.expire_all()


def _sorted(entities: Iterable[EntityRow]) -> list[EntityRow]:
    return sorted(entities, key=lambda each: (each.start, each.end, each.label))


def _refuse_nan(scores: SequenceScores, entities: Sequence[EntityRow], weight: float) -> None:
    # Of all values, only NaN is not equal to itself.
    if weight != weight or any(value != value for each in (scores, *entities) for value in vars(each).values()):  # noqa: PLR0124
        # SQLite would turn NaN into null, and a NaN has no rank among scores.
        raise InvalidScores("expected scores that are numbers or +inf, got NaN: the model's output is broken")
