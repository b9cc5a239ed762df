"""Second looks in the database: scored labels, the list made of them, and what people said about its entries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.label_choice import MAJORITY
from backend.domain.records import TextSpan
from backend.store.engine import database_now
from backend.store.tables import Annotation, CalibrationCell, CalibrationScore, Label, SecondLook, Task
from backend.store.training import TRAINED
from backend.store.upsert import insert
from conformal.strata import EMPTY, SEEN

FDR = "0.1"
LISTED, CHECK = "listed", "check"
KEPT, EDITED = "kept", "edited"
_CHUNK = 500


@dataclass(frozen=True)
class ScoredLook:
    """What a model says about one confirmed label; see `tables.SecondLook`."""

    task_id: int
    label_revision: int
    score: float
    doubt: float
    order: float
    evidence: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class LookTable:
    """The labels of a project that can be judged, as columns.

    `drawn`: the task was drawn at random. `settled`: somebody looked at the label again, and it is as it was then.
    `trusted`: settled, or ground truth, or two people made the same label.
    """

    id: npt.NDArray[np.int64]
    score: npt.NDArray[np.float64]
    doubt: npt.NDArray[np.float64]
    order: npt.NDArray[np.float64]
    drawn: npt.NDArray[np.bool_]
    settled: npt.NDArray[np.bool_]
    trusted: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Look:
    """An entry of the list. `text` is None once a retention rule removed it; `p_value` only where it is listed."""

    task: str
    state: str
    score: float
    p_value: float | None
    evidence: Mapping[str, Any]
    text: str | None
    spans: tuple[TextSpan, ...]
    label_id: int
    label_revision: int
    annotation_id: int | None
    completed_by: int | None
    labelled_at: datetime | None


def unjudged_tasks(session: Session, project_id: int, *, model_id: int, after: int = 0, limit: int = 200) -> list[int]:
    """Return tasks whose label has a calibration row of this model but was not looked at as it is now, by task id.

    Labels that the model was trained on are left out (it would find its own teacher plausible), as are texts without
    words.
    """
    score, cell = CalibrationScore, CalibrationCell
    known = (
        sa.select(SecondLook.id)
        .where(
            SecondLook.task_id == score.task_id,
            SecondLook.model_id == score.model_id,
            SecondLook.label_revision == score.label_revision,
        )
        .exists()
    )
    rows = session.execute(
        sa.select(score.task_id)
        .join(cell, cell.id == score.cell_id)
        .join(Label, sa.and_(Label.task_id == score.task_id, Label.policy == MAJORITY))
        .join(Task, Task.id == score.task_id)
        .where(cell.project_id == project_id, cell.model_id == model_id, score.model_id == model_id)
        .where(score.unit == 0)  # each task once
        .where(cell.exclusion != TRAINED, cell.stratum.not_in([EMPTY, SEEN]))
        .where(score.removed_at_revision.is_(None), score.label_revision == Label.revision)
        .where(Label.exclusion.is_(None), Task.text.is_not(None), score.task_id > after, ~known)
        .order_by(score.task_id)
        .limit(limit)
    )
    return list(rows.scalars())


def record_looks(session: Session, project_id: int, *, model_id: int, looks: Sequence[ScoredLook]) -> None:
    """Keep what a model says about labels, one row a task and model.

    A label that changed after it was on the list has had its second look; what was settled stays settled under
    another model.
    """
    now = database_now(session)
    before: dict[int, list[SecondLook]] = {}
    tasks = [look.task_id for look in looks]
    for row in session.execute(sa.select(SecondLook).where(SecondLook.task_id.in_(tasks))).scalars():
        before.setdefault(row.task_id, []).append(row)
    for look in looks:
        rows = before.get(look.task_id, [])
        settled, how = _settled(rows, look.label_revision)
        listed = max((row.listed_revision or 0 for row in rows), default=0) or None
        values = {
            "project_id": project_id,
            "model_id": model_id,
            "task_id": look.task_id,
            "label_revision": look.label_revision,
            "score": look.score + 0.0,
            "doubt": look.doubt + 0.0,
            "place": look.order,
            "evidence": dict(look.evidence),
            "state": "",
            "p_value": None,
            "listed_revision": listed,
            "settled_revision": settled,
            "settled_how": how,
            "updated_at": now,
        }
        session.execute(
            insert(session, SecondLook)
            .values(values)
            .on_conflict_do_update(index_elements=["task_id", "model_id"], set_=values)
        )
    session.expire_all()


def _settled(rows: Sequence[SecondLook], revision: int) -> tuple[int | None, str | None]:
    for row in rows:
        if row.settled_revision == revision:
            return revision, row.settled_how
    if any(row.listed_revision is not None and row.listed_revision < revision for row in rows):
        return revision, EDITED
    return None, None


def load_looks(session: Session, project_id: int, *, model_id: int) -> LookTable:
    """Return every label that can be judged: confirmed, expressible, as it was scored. Reads all of them: for jobs."""
    look, score, cell = SecondLook, CalibrationScore, CalibrationCell
    agreed = sa.or_(Annotation.ground_truth.is_(True), Label.votes >= 2)
    settled = look.settled_revision == look.label_revision
    rows = session.execute(
        sa.select(
            look.id,
            look.score,
            look.doubt,
            look.place,
            cell.exclusion == "",
            sa.func.coalesce(settled, sa.false()),
            sa.func.coalesce(agreed, sa.false()),
        )
        .join(
            score,
            sa.and_(
                score.task_id == look.task_id,
                score.model_id == look.model_id,
                score.removed_at_revision.is_(None),
                score.unit == 0,
            ),
        )
        .join(cell, cell.id == score.cell_id)
        .join(Label, sa.and_(Label.task_id == look.task_id, Label.policy == MAJORITY))
        .outerjoin(Annotation, Annotation.id == Label.annotation_row)
        .where(look.project_id == project_id, look.model_id == model_id, look.score < math.inf)
        .where(Label.revision == look.label_revision, Label.exclusion.is_(None), cell.exclusion != TRAINED)
        .order_by(look.id)
    ).all()
    numbers = np.array([tuple(row) for row in rows], dtype=np.float64).reshape(-1, 7)
    done, agree = numbers[:, 5] > 0, numbers[:, 6] > 0
    return LookTable(
        numbers[:, 0].astype(np.int64),
        numbers[:, 1],
        numbers[:, 2],
        numbers[:, 3],
        numbers[:, 4] > 0,
        done,
        done | agree,
    )


def mark_looks(
    session: Session, project_id: int, *, model_id: int, listed: Mapping[int, float], check: Iterable[int]
) -> None:
    """Make these the list: `listed` by row id with their p-values, `check` the reference labels to look at first."""
    session.execute(
        sa.update(SecondLook)
        .where(
            SecondLook.project_id == project_id, SecondLook.model_id == model_id, SecondLook.state.in_([LISTED, CHECK])
        )
        .values(state="", p_value=None)
    )
    marks = [(row, LISTED, p) for row, p in listed.items()] + [(row, CHECK, None) for row in check]
    for first in range(0, len(marks), _CHUNK):
        session.execute(
            sa.update(SecondLook),
            [{"id": row, "state": state, "p_value": p} for row, state, p in marks[first : first + _CHUNK]],
        )
    if marks:
        session.execute(
            sa.update(SecondLook)
            .where(
                SecondLook.project_id == project_id,
                SecondLook.model_id == model_id,
                SecondLook.state.in_([LISTED, CHECK]),
            )
            .values(listed_revision=SecondLook.label_revision)
        )
    session.expire_all()


def list_looks(session: Session, project_id: int, *, model_id: int, state: str, limit: int = 50) -> list[Look]:
    """Return entries of the list, the strangest first; those that were settled or changed since are left out."""
    look = SecondLook
    rows = session.execute(
        sa.select(look, Task.external_id, Task.text, Label, Annotation)
        .join(Task, Task.id == look.task_id)
        .join(Label, sa.and_(Label.task_id == look.task_id, Label.policy == MAJORITY))
        .outerjoin(Annotation, Annotation.id == Label.annotation_row)
        .where(look.project_id == project_id, look.model_id == model_id, look.state == state)
        .where(Label.revision == look.label_revision, Label.exclusion.is_(None), Task.deleted_at.is_(None))
        .where(sa.or_(look.settled_revision.is_(None), look.settled_revision != look.label_revision))
        .order_by(look.score.desc(), look.id)
        .limit(limit)
    ).all()
    return [
        Look(
            task=external,
            state=row.state,
            score=row.score,
            p_value=row.p_value,
            evidence=row.evidence,
            text=text,
            spans=tuple(TextSpan(*each) for each in label.spans or ()),
            label_id=label.id,
            label_revision=label.revision,
            annotation_id=None if annotation is None else annotation.annotation_id,
            completed_by=None if annotation is None else annotation.completed_by,
            labelled_at=None if annotation is None else annotation.updated_at,
        )
        for row, external, text, label, annotation in rows
    ]


def settle_look(session: Session, project_id: int, *, task: str) -> int | None:
    """Keep that somebody looked at the label of a task again and found it right, as it is now, under every model.

    Returns the revision of the label, None when no label of this task was scored.
    """
    current = session.execute(
        sa.select(Label.task_id, Label.revision)
        .join(Task, Task.id == Label.task_id)
        .join(SecondLook, SecondLook.task_id == Label.task_id)
        .where(Task.project_id == project_id, Task.external_id == task, Task.deleted_at.is_(None))
        .where(Label.policy == MAJORITY, Label.exclusion.is_(None), SecondLook.label_revision == Label.revision)
        .limit(1)
    ).one_or_none()
    if current is None:
        return None
    task_id, revision = current
    session.execute(
        sa.update(SecondLook)
        .where(SecondLook.task_id == task_id)
        .values(settled_revision=revision, settled_how=KEPT, state="", p_value=None)
    )
    return int(revision)


def count_looks(session: Session, project_id: int, *, model_id: int) -> tuple[int, int]:
    """Return how many labels were scored, and how many of those the model cannot express."""
    infinite = sa.func.sum(sa.case((SecondLook.score == math.inf, 1), else_=0))
    scored, lost = session.execute(
        sa.select(sa.func.count(), infinite).where(SecondLook.project_id == project_id, SecondLook.model_id == model_id)
    ).one()
    return int(scored), int(lost or 0)
