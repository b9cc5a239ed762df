"""Labels that a person confirmed, with their texts and where they come from: what `surespan export` reads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.label_choice import ACCEPTED, MAJORITY
from backend.domain.records import TextSpan
from backend.store.tables import Annotation, CalibrationCell, CalibrationScore, Label, Model, Task


@dataclass(frozen=True)
class ConfirmedLabel:
    """A confirmed labeling. `text` is None once a retention rule removed it.

    `evidence` and `exclusion` are those of the newest calibration row made from the label: what it is worth, and why it
    does not calibrate ("" when it does); both None while no row was made from it.
    """

    id: int
    task: str
    text: str | None
    language: str | None
    spans: tuple[TextSpan, ...]
    annotation_id: int | None
    completed_by: int | None
    updated_at: datetime | None
    created_at: datetime | None
    ground_truth: bool
    lead_time: float | None
    votes: int
    voters: int
    evidence: str | None
    exclusion: str | None
    accepted: bool = False


EXCLUDE, INCLUDE, ONLY = "exclude", "include", "only"


def confirmed_labels(
    session: Session,
    project_id: int,
    *,
    after: int = 0,
    limit: int = 500,
    policy: str = MAJORITY,
    accepted: str = EXCLUDE,
) -> list[ConfirmedLabel]:
    """Return a page of the labels of a project that a person stands behind, by label id.

    Whether a label may calibrate does not matter here; skips, bulk copies of predictions and what was withdrawn are
    nobody's word and are left out (METHODS 8.3). So is what acceptance made (METHODS 12.4), unless `accepted` asks to
    `include` it, or for it `only`.
    """
    kinds = {
        EXCLUDE: Label.exclusion.is_(None),
        INCLUDE: sa.or_(Label.exclusion.is_(None), Label.exclusion == ACCEPTED),
        ONLY: Label.exclusion == ACCEPTED,
    }
    rows = session.execute(
        sa.select(
            Label.id,
            Label.task_id,
            Task.external_id,
            Task.text,
            Task.language,
            Label.spans,
            Annotation.annotation_id,
            Annotation.completed_by,
            Annotation.updated_at,
            Annotation.created_at,
            Annotation.ground_truth,
            Annotation.lead_time,
            Label.votes,
            Label.voters,
            Label.exclusion,
        )
        .join(Task, Task.id == Label.task_id)
        .outerjoin(Annotation, Annotation.id == Label.annotation_row)
        .where(Label.project_id == project_id, Label.policy == policy, Label.id > after)
        .where(kinds[accepted], Label.spans.is_not(None))
        .order_by(Label.id)
        .limit(limit)
    ).all()
    worth = _worth(session, [row.task_id for row in rows])
    return [
        ConfirmedLabel(
            id=row.id,
            task=row.external_id,
            text=row.text,
            language=row.language,
            spans=tuple(TextSpan(*span) for span in row.spans),
            annotation_id=row.annotation_id,
            completed_by=row.completed_by,
            updated_at=row.updated_at,
            created_at=row.created_at,
            ground_truth=bool(row.ground_truth),
            lead_time=row.lead_time,
            votes=row.votes,
            voters=row.voters,
            evidence=worth.get(row.task_id, (None, None))[0],
            exclusion=row.exclusion or worth.get(row.task_id, (None, None))[1],
            accepted=row.exclusion == ACCEPTED,
        )
        for row in rows
    ]


def count_unconfirmed(session: Session, project_id: int, *, policy: str = MAJORITY) -> dict[str, int]:
    """Return how many labels of a project nobody confirmed, by reason (`skipped`, `bulk`, `accepted`, `withdrawn`)."""
    rows = session.execute(
        sa.select(Label.exclusion, sa.func.count())
        .where(Label.project_id == project_id, Label.policy == policy)
        .where(Label.exclusion.is_not(None))
        .group_by(Label.exclusion)
    )
    return {str(reason): int(count) for reason, count in rows}


def project_classes(session: Session, project_id: int) -> tuple[str, ...]:
    """Return the classes of the newest model with calibration rows in the project; empty when there is none."""
    classes = session.execute(
        sa.select(Model.classes)
        .join(CalibrationCell, CalibrationCell.model_id == Model.id)
        .where(CalibrationCell.project_id == project_id)
        .order_by(Model.id.desc())
        .limit(1)
    ).scalar_one_or_none()
    return tuple(classes or ())


def _worth(session: Session, task_ids: list[int]) -> dict[int, tuple[str, str]]:
    rows = session.execute(
        sa.select(CalibrationScore.task_id, CalibrationCell.evidence, CalibrationCell.exclusion)
        .join(CalibrationCell, CalibrationCell.id == CalibrationScore.cell_id)
        .where(CalibrationScore.task_id.in_(task_ids), CalibrationScore.removed_at_revision.is_(None))
        .order_by(CalibrationScore.id)
    )
    return {task_id: (evidence, exclusion) for task_id, evidence, exclusion in rows}  # the newest comes last
