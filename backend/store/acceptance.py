"""Acceptance in the database: decisions, what they were made on, what was accepted, and what is ours (METHODS 12)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from backend.domain.label_choice import MAJORITY, WITHDRAWN
from backend.domain.records import AcceptanceRecord, TextSpan
from backend.domain.streams import AUDIT, FILE_STREAM, UNSHOWN
from backend.domain.text import plain
from backend.store.engine import database_now
from backend.store.served import newest_set
from backend.store.tables import (
    Acceptance,
    AcceptedTask,
    Annotation,
    CalibrationCell,
    CalibrationScore,
    Label,
    QueueEntry,
    ServedSet,
    ShadowAcceptance,
    Task,
)
from backend.store.upsert import insert

PLANNED, SENT, TAKEN_BACK = "planned", "sent", "withdrawn"
_CHUNK = 500


@dataclass(frozen=True)
class BlindLabel:
    """The label of a task that was drawn to be blind, made without a prediction in view.

    `ranked` is the packed list of what the model says about its text, None while it was not asked.
    """

    task_id: int
    task: str
    text: str | None
    language: str | None
    spans: tuple[TextSpan, ...]
    at: datetime
    ranked: bytes | None


@dataclass(frozen=True)
class Planned:
    """A task that is accepted, or about to be."""

    task_id: int
    task: str
    unique_id: str
    annotation_id: int | None


@dataclass(frozen=True)
class Shadow:
    """What a drawn-blind task would have got by a decision: its best labeling then, of so many units."""

    task_id: int
    spans: tuple[TextSpan, ...]
    units: int


def list_acceptances(session: Session, project_id: int) -> list[AcceptanceRecord]:
    """Return the decisions of a project, the first one first."""
    rows = session.execute(
        sa.select(Acceptance).where(Acceptance.project_id == project_id).order_by(Acceptance.number)
    ).scalars()
    return [_record(row) for row in rows]


def record_acceptance(session: Session, project_id: int, values: Mapping[str, Any]) -> AcceptanceRecord:
    """Keep a decision under the next number of its project.

    Raises:
        StoreConflict: when `number` was taken meanwhile: another process has looked, and spent.
    """
    row = Acceptance(project_id=project_id, decided_at=database_now(session), **values)
    session.add(row)
    session.flush()
    return _record(row)


def first_acceptance(session: Session, project_id: int) -> datetime | None:
    """Return when tasks of a project were first accepted, None while none were."""
    return session.execute(
        sa.select(sa.func.min(Acceptance.acted_at)).where(Acceptance.project_id == project_id)
    ).scalar_one()


def load_doubts(session: Session, project_id: int, *, model_id: int) -> list[float]:
    """Return the doubt of every living task of which a model's is known, blind and labelled ones too."""
    rows = session.execute(
        sa.select(ServedSet.doubt)
        .join(Task, Task.id == ServedSet.task_id)
        .where(Task.project_id == project_id, Task.deleted_at.is_(None))
        .where(ServedSet.id == newest_set(model_id), ServedSet.doubt.is_not(None))
    )
    return [float(doubt) for doubt in rows.scalars() if doubt is not None]


def blind_labels(session: Session, project_id: int, *, model_id: int) -> list[BlindLabel]:
    """Return the labels that decisions rest on, in the order in which people made them.

    Those of drawn-blind tasks that may calibrate this model; files are left out, because they are not of the
    collection.
    """
    score, cell = CalibrationScore, CalibrationCell
    made = sa.func.coalesce(Annotation.created_at, Annotation.updated_at)
    rows = session.execute(
        sa.select(Task.id, Task.external_id, Task.text, Task.language, Label.spans, made, ServedSet.ranked)
        .join(score, score.task_id == Task.id)
        .join(cell, cell.id == score.cell_id)
        .join(Label, sa.and_(Label.task_id == Task.id, Label.policy == MAJORITY))
        .join(Annotation, Annotation.id == Label.annotation_row)
        .outerjoin(ServedSet, ServedSet.id == newest_set(model_id))
        .where(cell.project_id == project_id, cell.model_id == model_id, score.model_id == model_id)
        .where(cell.evidence == "blind", cell.exclusion == "", score.unit == 0)
        .where(score.removed_at_revision.is_(None), score.label_revision == Label.revision)
        .where(Label.exclusion.is_(None), Task.deleted_at.is_(None), Task.blind.is_(True))
        .order_by(made, Task.id)
    )
    return [
        BlindLabel(number, task, text, language, read_spans(spans), at, None if ranked is None else bytes(ranked))
        for number, task, text, language, spans, at, ranked in rows
    ]


def count_blind_labels(session: Session, project_id: int, *, model_id: int) -> int:
    """Return how many labels decisions of a model may rest on."""
    cell = CalibrationCell
    total = session.execute(
        sa.select(sa.func.sum(cell.tasks)).where(
            cell.project_id == project_id, cell.model_id == model_id, cell.evidence == "blind", cell.exclusion == ""
        )
    ).scalar_one()
    return int(total or 0)


def passed_over(session: Session, project_id: int) -> list[str]:
    """Return the living tasks that were drawn and are not blind."""
    rows = session.execute(
        sa.select(Task.external_id).where(
            Task.project_id == project_id,
            Task.deleted_at.is_(None),
            Task.random_order.is_not(None),
            Task.blind.is_(False),
            Task.stream.not_in([UNSHOWN, FILE_STREAM]),
        )
    )
    return list(rows.scalars())


def count_undrawn(session: Session, project_id: int) -> int:
    """Return how many living tasks without a label have no draw."""
    labelled = sa.select(Label.id).where(Label.task_id == Task.id, Label.exclusion.is_(None)).exists()
    query = sa.select(sa.func.count()).where(
        Task.project_id == project_id, Task.deleted_at.is_(None), Task.random_order.is_(None), ~labelled
    )
    return int(session.execute(query.select_from(Task)).scalar_one())


def acceptable(
    session: Session,
    project_id: int,
    *,
    model_id: int,
    version_id: int | None,
    level: float,
    idle_since: datetime,
) -> list[tuple[int, str]]:
    """Return the tasks (id, its name in Label Studio) that a decision may accept now.

    Their newest set is of the version that serves, has no flag and a doubt up to the level. Left alone are tasks that
    are blind or of the audit, undrawn, labelled or skipped, leased, opened since `idle_since`, or accepted already.
    """
    later = aliased(Task)
    edited = sa.select(later.id).where(
        later.project_id == Task.project_id, later.external_id == Task.external_id, later.id > Task.id
    )
    said = sa.select(Label.id).where(
        Label.task_id == Task.id, sa.or_(Label.exclusion.is_(None), Label.exclusion != WITHDRAWN)
    )
    taken = sa.select(AcceptedTask.id).where(AcceptedTask.task_id == Task.id, AcceptedTask.state != TAKEN_BACK)
    at_work = sa.select(QueueEntry.task_id).where(
        QueueEntry.task_id == Task.id,
        sa.or_(QueueEntry.claimed_until > database_now(session), QueueEntry.opened_at >= idle_since),
    )
    version = ServedSet.version_id.is_(None) if version_id is None else ServedSet.version_id == version_id
    rows = session.execute(
        sa.select(Task.id, Task.external_id)
        .join(ServedSet, ServedSet.id == newest_set(model_id))
        .where(Task.project_id == project_id, Task.deleted_at.is_(None), Task.random_order.is_not(None))
        .where(Task.blind.is_(False), Task.stream.not_in([AUDIT, FILE_STREAM]))
        .where(version, ServedSet.shadow.is_(False), ServedSet.flags == 0, ServedSet.doubt <= level)
        .where(~edited.exists(), ~said.exists(), ~taken.exists(), ~at_work.exists())
        .order_by(Task.id)
    )
    return [(number, task) for number, task in rows]


def blind_lists(session: Session, project_id: int, *, model_id: int, level: float) -> list[tuple[int, bytes]]:
    """Return the drawn-blind tasks whose doubt is up to a level, each with the list of what the model says."""
    rows = session.execute(
        sa.select(Task.id, ServedSet.ranked)
        .join(ServedSet, ServedSet.id == newest_set(model_id))
        .where(Task.project_id == project_id, Task.deleted_at.is_(None), Task.blind.is_(True))
        .where(ServedSet.doubt <= level)
        .order_by(Task.id)
    )
    return [(number, bytes(ranked)) for number, ranked in rows]


def act_on(
    session: Session,
    acceptance: AcceptanceRecord,
    *,
    tasks: Mapping[int, str],
    shadows: Iterable[Shadow],
    account: int,
) -> int:
    """Plan the acceptance of tasks, each under its unique id, and keep what blind tasks would have got.

    Asked for again, only what is not there yet is added; nothing once the decision was withdrawn. Returns how many
    tasks are new.
    """
    now = database_now(session)
    row = session.execute(sa.select(Acceptance).where(Acceptance.id == acceptance.id).with_for_update()).scalar_one()
    if row.withdrawn_at is not None:
        return 0
    row.acted_at, row.account = row.acted_at or now, account
    session.flush()
    before = _count(session, acceptance.id)
    rows = [
        {
            "acceptance_id": acceptance.id,
            "project_id": acceptance.project_id,
            "task_id": task,
            "unique_id": unique,
            "state": PLANNED,
            "updated_at": now,
        }
        for task, unique in sorted(tasks.items())
    ]
    for begin in range(0, len(rows), _CHUNK):
        session.execute(insert(session, AcceptedTask).on_conflict_do_nothing(), rows[begin : begin + _CHUNK])
    kept = [
        {"acceptance_id": acceptance.id, "task_id": each.task_id, "spans": [list(span) for span in each.spans]}
        | {"units": each.units}
        for each in shadows
    ]
    for begin in range(0, len(kept), _CHUNK):
        session.execute(insert(session, ShadowAcceptance).on_conflict_do_nothing(), kept[begin : begin + _CHUNK])
    return _count(session, acceptance.id) - before


def load_shadows(session: Session, acceptance_id: int) -> list[Shadow]:
    """Return what blind tasks would have got by a decision."""
    rows = session.execute(sa.select(ShadowAcceptance).where(ShadowAcceptance.acceptance_id == acceptance_id)).scalars()
    return [Shadow(row.task_id, read_spans(row.spans), row.units) for row in rows]


def accepted_page(
    session: Session, acceptance_id: int, *, state: str, after: int = 0, limit: int = 100
) -> list[Planned]:
    """Return a page of a decision's tasks in a state, by task id."""
    rows = session.execute(
        sa.select(AcceptedTask, Task.external_id)
        .join(Task, Task.id == AcceptedTask.task_id)
        .where(AcceptedTask.acceptance_id == acceptance_id, AcceptedTask.state == state, AcceptedTask.task_id > after)
        .order_by(AcceptedTask.task_id)
        .limit(limit)
    )
    return [Planned(row.task_id, name, row.unique_id, row.annotation_id) for row, name in rows]


def name_annotation(session: Session, unique_id: str, *, annotation_id: int) -> None:
    """Note that an accepted task's annotation is on the server, under this number."""
    session.execute(
        sa.update(AcceptedTask)
        .where(AcceptedTask.unique_id == plain(unique_id, 36), AcceptedTask.state != TAKEN_BACK)
        .values(state=SENT, annotation_id=annotation_id, updated_at=database_now(session))
    )


def forget_plan(session: Session, acceptance_id: int) -> int:
    """Forget what was planned and not sent; where nothing was sent at all, the decision was never acted on.

    Returns how many tasks that were.
    """
    waiting = sa.and_(AcceptedTask.acceptance_id == acceptance_id, AcceptedTask.state == PLANNED)
    before = _count(session, acceptance_id)
    session.execute(sa.delete(AcceptedTask).where(waiting))
    left = _count(session, acceptance_id)
    if not left:
        session.execute(sa.update(Acceptance).where(Acceptance.id == acceptance_id).values(acted_at=None))
        session.execute(sa.delete(ShadowAcceptance).where(ShadowAcceptance.acceptance_id == acceptance_id))
    return before - left


def leave_alone(session: Session, acceptance_id: int, task_ids: Sequence[int]) -> None:
    """Forget that tasks were to be accepted: nothing of ours was sent for them."""
    session.execute(
        sa.delete(AcceptedTask).where(
            AcceptedTask.acceptance_id == acceptance_id,
            AcceptedTask.task_id.in_(task_ids),
            AcceptedTask.state == PLANNED,
        )
    )


def take_back(session: Session, acceptance_id: int, task_id: int) -> None:
    """Note that the annotation of an accepted task is gone from the server, or was never sent."""
    session.execute(
        sa.update(AcceptedTask)
        .where(AcceptedTask.acceptance_id == acceptance_id, AcceptedTask.task_id == task_id)
        .values(state=TAKEN_BACK, updated_at=database_now(session))
    )


def mark_withdrawn(session: Session, acceptance_ids: Sequence[int], *, why: str) -> None:
    """Note that decisions are withdrawn: nothing more is accepted on them, whatever is left to take back."""
    session.execute(
        sa.update(Acceptance)
        .where(Acceptance.id.in_(acceptance_ids), Acceptance.acted_at.is_not(None), Acceptance.withdrawn_at.is_(None))
        .values(withdrawn_at=database_now(session), withdrawn_why=why[:300])
    )


def count_accepted(session: Session, project_id: int) -> dict[int, dict[str, int]]:
    """Return how many tasks of each decision are in each state."""
    rows = session.execute(
        sa.select(AcceptedTask.acceptance_id, AcceptedTask.state, sa.func.count())
        .where(AcceptedTask.project_id == project_id)
        .group_by(AcceptedTask.acceptance_id, AcceptedTask.state)
    )
    counts: dict[int, dict[str, int]] = {}
    for number, state, count in rows:
        counts.setdefault(number, {})[state] = int(count)
    return counts


def is_accepted(
    session: Session,
    project_id: int,
    *,
    task: str,
    annotation_id: int,
    unique_id: str | None,
    by: int | None,
    timed: bool,
) -> bool:
    """Whether acceptance made an annotation, also before its number is known here.

    Webhooks carry the unique id; the server's API does not. Where neither it nor the number is known yet, the
    annotation of a task that is planned is ours if the accepting account made it and nobody's time went into it
    (`timed`): the editor always measures that.
    """
    row = AcceptedTask
    known = [sa.and_(row.annotation_id == annotation_id, row.state != TAKEN_BACK)]
    if unique_id is not None:
        known.append(row.unique_id == plain(unique_id, 36))
    if by is not None and not timed:
        planned = sa.and_(row.annotation_id.is_(None), row.state == PLANNED, Acceptance.account == by)
        known.append(sa.and_(planned, Task.external_id == plain(task, 200)))
    query = (
        sa.select(row.id)
        .join(Acceptance, Acceptance.id == row.acceptance_id)
        .join(Task, Task.id == row.task_id)
        .where(row.project_id == project_id, sa.or_(*known))
        .limit(1)
    )
    return session.execute(query).first() is not None


def _count(session: Session, acceptance_id: int) -> int:
    query = sa.select(sa.func.count()).where(AcceptedTask.acceptance_id == acceptance_id)
    return int(session.execute(query.select_from(AcceptedTask)).scalar_one())


def read_spans(stored: Sequence[Any] | None) -> tuple[TextSpan, ...]:
    """Return spans as they are stored in JSON."""
    return tuple(TextSpan(*each) for each in stored or ())


_FIELDS = tuple(AcceptanceRecord.__dataclass_fields__)


def _record(row: Acceptance) -> AcceptanceRecord:
    return AcceptanceRecord(**{name: getattr(row, name) for name in _FIELDS})
