"""Calibration rows: added and retired with their counters in one transaction, never overwritten.

A row carries the revision at which it began to count and, once retired, the one at which it ceased to. The revision is
taken under the lock of (project, model), so the rows of revision r are the same whenever they are asked for, and a
threshold version can be rebuilt from the revision it names. The price is that rows of one (project, model) are written
one transaction after another; a forward pass costs far more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.errors import InvalidScores, StoreConflict
from backend.store.engine import database_now
from backend.store.judgements import kind_of, rekind_judgement, retract_judgement
from backend.store.policy import MAJORITY
from backend.store.tables import CalibrationCell, CalibrationHead, CalibrationScore, EntityScore, Label, Task
from backend.store.types import Cell, EntityRow, SequenceScores
from backend.store.upsert import get_or_create, insert

CALIBRATION = "calibration"
TUNING = "tuning"
SCORES = ("nll", "rank", "cumulative")


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
    part: str = CALIBRATION,
    exclusion: str | None = None,
    weight: float = 1.0,
    policy: str = MAJORITY,
) -> bool:
    """Make this the one live row of (task, model); returns False when it already was (METHODS 8.4).

    Args:
        label_revision: of the label that was scored.
        exclusion: why the row is no evidence for this model; such rows are kept and counted apart.
        weight: 1 over the probability with which the task was selected (METHODS 3.7).

    Raises:
        StoreConflict: when the label has changed since it was read; nothing is written.
        InvalidScores: when a score is NaN; nothing is written.
    """
    _refuse_nan(scores, entities, weight)
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
    live = session.execute(
        sa.select(CalibrationScore, CalibrationCell)
        .join(CalibrationCell, CalibrationCell.id == CalibrationScore.cell_id)
        .where(
            CalibrationScore.task_id == task_id,
            CalibrationScore.model_id == model_id,
            CalibrationScore.removed_at_revision.is_(None),
        )
        .execution_options(populate_existing=True)
    ).one_or_none()
    wanted = (label_revision, scores, weight, stratum, evidence, part, exclusion or "")
    if live is not None:
        row, cell = live
        have = SequenceScores(row.nll, row.rank, row.cumulative, row.entities, row.predicted_entities)
        known = (row.label_revision, have, row.weight, cell.stratum, cell.evidence, cell.part, cell.exclusion)
        if known == wanted and _entities_of(session, row.id) == _sorted(entities):
            return False
        _retire(session, row, revision + 1)
        if row.label_revision == label_revision:  # the same label, worth something else
            rekind_judgement(session, task_id, model_id=model_id, kind=kind_of(evidence, exclusion))
    cell_id = _count_one(session, project_id, model_id, wanted[3:], infinite=math.isinf(scores.nll))
    fresh = CalibrationScore(
        task_id=task_id,
        model_id=model_id,
        cell_id=cell_id,
        label_revision=label_revision,
        nll=scores.nll + 0.0,  # -0.0 becomes 0.0: SQLite does not keep the sign, and equal scores must look equal
        rank=scores.rank + 0.0,
        cumulative=scores.cumulative + 0.0,
        weight=weight + 0.0,
        entities=scores.entities,
        predicted_entities=scores.predicted_entities,
        added_at_revision=revision + 1,
        created_at=database_now(session),
    )
    session.add(fresh)
    session.flush()
    if entities:
        session.execute(sa.insert(EntityScore), [_entity_row(fresh.id, each) for each in _sorted(entities)])
    _advance_head(session, project_id, model_id, revision + 1)
    return True


def withdraw_scores(session: Session, project_id: int, *, task_id: int, model_id: int | None = None) -> int:
    """Retire the live rows of a task, of one model or of all: its label no longer says what was scored.

    What was judged by it is taken back too.
    """
    query = sa.select(CalibrationScore.model_id).where(
        CalibrationScore.task_id == task_id, CalibrationScore.removed_at_revision.is_(None)
    )
    if model_id is not None:
        query = query.where(CalibrationScore.model_id == model_id)
    retired = 0
    for model in sorted(session.execute(query).scalars()):
        revision = _lock_head(session, project_id, model) + 1
        row = session.execute(
            sa.select(CalibrationScore)
            .where(
                CalibrationScore.task_id == task_id,
                CalibrationScore.model_id == model,
                CalibrationScore.removed_at_revision.is_(None),
            )
            .execution_options(populate_existing=True)
        ).scalar_one_or_none()
        if row is not None:
            _retire(session, row, revision)
            retract_judgement(session, task_id, model_id=model)
            _advance_head(session, project_id, model, revision)
            retired += 1
    return retired


def head_revision(session: Session, project_id: int, *, model_id: int) -> int:
    """Return the number of the last change to the rows of (project, model): the inputs' high-water mark."""
    found = session.execute(
        sa.select(CalibrationHead.revision).filter_by(project_id=project_id, model_id=model_id)
    ).scalar_one_or_none()
    return 0 if found is None else found


def load_cells(
    session: Session,
    project_id: int,
    *,
    model_id: int,
    evidence: Iterable[str] | None = None,
    part: str | None = CALIBRATION,
    excluded: bool = False,
) -> list[Cell]:
    """Return the cells of (project, model) with their counters, ordered by name; no rows are counted.

    Args:
        evidence: kinds to include; all when None.
        part: `calibration`, `tuning`, or None for both.
        excluded: return the cells of excluded rows instead of those that count.
    """
    query = sa.select(CalibrationCell).filter_by(project_id=project_id, model_id=model_id)
    query = query.where(CalibrationCell.exclusion != "" if excluded else CalibrationCell.exclusion == "")
    if evidence is not None:
        query = query.where(CalibrationCell.evidence.in_(list(evidence)))
    if part is not None:
        query = query.where(CalibrationCell.part == part)
    rows = session.execute(query.execution_options(populate_existing=True)).scalars()
    cells = [Cell(row.id, row.stratum, row.evidence, row.part, row.exclusion, row.n, row.n_infinite) for row in rows]
    # Sorted here, because the databases' collations differ.
    return sorted(cells, key=lambda cell: (cell.stratum, cell.evidence, cell.part, cell.exclusion))


def count_first(session: Session, cells: Sequence[Cell]) -> dict[int, int]:
    """Return, by cell id, how many live rows have the model's best labeling as their label; read from an index."""
    rows = session.execute(
        sa.select(CalibrationScore.cell_id, sa.func.count())
        .where(
            CalibrationScore.cell_id.in_([cell.id for cell in cells]),
            CalibrationScore.removed_at_revision.is_(None),
            CalibrationScore.rank <= 1.0,
        )
        .group_by(CalibrationScore.cell_id)
    )
    return {cell: int(count) for cell, count in rows}


def recount_cells(session: Session, project_id: int, *, model_id: int) -> dict[int, tuple[int, int]]:
    """Count the live rows of every cell the slow way, as (n, n_infinite) by cell id: a check of the counters."""
    infinite = sa.func.sum(sa.case((CalibrationScore.nll == math.inf, 1), else_=0))
    rows = session.execute(
        sa.select(CalibrationCell.id, sa.func.count(CalibrationScore.id), infinite)
        .outerjoin(
            CalibrationScore,
            sa.and_(CalibrationScore.cell_id == CalibrationCell.id, CalibrationScore.removed_at_revision.is_(None)),
        )
        .where(CalibrationCell.project_id == project_id, CalibrationCell.model_id == model_id)
        .group_by(CalibrationCell.id)
    )
    return {cell: (int(n), int(n_infinite or 0)) for cell, n, n_infinite in rows}


def order_statistic(session: Session, cells: Sequence[Cell], *, k: int, score: str = "nll") -> float:
    """Return the k-th smallest score among the live rows of a pool, `+inf` when k exceeds their number (METHODS 3.1).

    Read through the index from the nearer end: `min(k, n - k + 1)` index entries per cell at most.

    Args:
        k: 1 for the smallest.
        score: `nll`, `rank` or `cumulative`.
    """
    if score not in SCORES:
        raise ValueError(f"expected one of {', '.join(SCORES)}, got {score!r}")
    if k < 1:
        raise ValueError(f"expected k of at least 1, got {k}")
    filled = [cell for cell in cells if cell.n > 0]
    total = sum(cell.n for cell in filled)
    if k > total:
        return math.inf
    from_top = total - k + 1
    place, order = min(k, from_top), "ASC" if k <= from_top else "DESC"
    # Written out, because hundreds are asked for at once and composing a statement costs more than running it.
    each = [
        f"SELECT {score} AS value FROM calibration_scores "  # noqa: S608 - a known name and integers
        f"WHERE cell_id = {int(cell.id)} AND removed_at_revision IS NULL ORDER BY {score} {order}"
        for cell in filled
    ]
    statement = f"{each[0]} LIMIT 1 OFFSET {place - 1}"
    if len(each) > 1:
        # The place-th of the union is among the first `place` of each cell.
        select = "SELECT value FROM"
        nearest = " UNION ALL ".join(f"{select} ({one} LIMIT {place}) c{i}" for i, one in enumerate(each))
        statement = f"{select} ({nearest}) pool ORDER BY value {order} LIMIT 1 OFFSET {place - 1}"
    return float(session.connection().exec_driver_sql(statement).scalar_one())


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


def _count_one(session: Session, project_id: int, model_id: int, cell: Sequence[object], *, infinite: bool) -> int:
    names = ("stratum", "evidence", "part", "exclusion")
    key = {"project_id": project_id, "model_id": model_id} | dict(zip(names, cell, strict=True))
    statement = insert(session, CalibrationCell).values(key | {"n": 1, "n_infinite": int(infinite)})
    counted = statement.on_conflict_do_update(
        index_elements=list(key),
        set_={"n": CalibrationCell.n + 1, "n_infinite": CalibrationCell.n_infinite + int(infinite)},
    ).returning(CalibrationCell.id)
    return int(session.execute(counted).scalar_one())


def _retire(session: Session, row: CalibrationScore, revision: int) -> None:
    row.removed_at_revision = revision
    session.flush()
    session.execute(
        sa.update(CalibrationCell)
        .where(CalibrationCell.id == row.cell_id)
        .values(n=CalibrationCell.n - 1, n_infinite=CalibrationCell.n_infinite - int(math.isinf(row.nll)))
    )


def _entity_row(score_id: int, entity: EntityRow) -> dict[str, object]:
    return {
        "score_id": score_id,
        "start": entity.start,
        "end": entity.end,
        "label": entity.label,
        "probability": entity.probability + 0.0,
        "cumulative": entity.cumulative + 0.0,
        "place": entity.place + 0.0,
        "rank": entity.rank + 0.0,
    }


def _entities_of(session: Session, score_id: int) -> list[EntityRow]:
    rows = session.execute(sa.select(EntityScore).where(EntityScore.score_id == score_id)).scalars()
    return _sorted(
        EntityRow(row.start, row.end, row.label, row.probability, row.cumulative, row.place, row.rank) for row in rows
    )


def _sorted(entities: Iterable[EntityRow]) -> list[EntityRow]:
    return sorted(entities, key=lambda each: (each.start, each.end, each.label))


def _refuse_nan(scores: SequenceScores, entities: Sequence[EntityRow], weight: float) -> None:
    numbers = [scores.nll, scores.rank, scores.cumulative, weight]
    for each in entities:
        numbers += [each.probability, each.cumulative, each.place, each.rank]
    if any(math.isnan(number) for number in numbers):
        # SQLite would turn NaN into null, and a NaN has no rank among scores.
        raise InvalidScores("expected scores that are numbers or +inf, got NaN: the model's output is broken")
