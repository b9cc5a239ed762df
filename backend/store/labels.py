"""Annotations in, labels out. The end state does not depend on the order or the number of deliveries.

Three rules make that so. The newest `updated_at` of an annotation id wins, whenever it arrives (equal times: the
greater content hash). A deletion wins over everything made up to its moment, also over what arrives later. The label
of a task is a pure function of its living annotations (`policy.choose_label`).

Locks are taken in one order, tasks before annotations before calibration rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.label_choice import ACCEPTED, MAJORITY, WITHDRAWN, choose_label
from backend.domain.records import AnnotationRecord, LabelChange, LabelRecord, TextSpan
from backend.domain.text import plain
from backend.errors import NotFound, StoreConflict
from backend.store.attempts import REST
from backend.store.calibration import is_complete, withdraw_scores
from backend.store.engine import database_now, is_postgresql
from backend.store.projects import lock_tasks
from backend.store.queue import rest, settle
from backend.store.tables import Annotation, CalibrationScore, Label, LabelHistory, ScoringAttempt, Task, TaskDeletion
from backend.store.upsert import get_or_create, insert


def record_annotation(
    session: Session, task_id: int, annotation: AnnotationRecord, *, event_id: int | None = None
) -> list[LabelChange]:
    """Record what is known about one annotation and derive the label of its task again.

    Idempotent and independent of order. When the label changes, calibration rows that were scored from the old one
    are withdrawn in the same transaction. Returns a change per task concerned: usually one, two when a reused
    annotation id moved from a task whose deletion was never heard of.

    Raises:
        NotFound: when the task does not exist.
    """
    task = session.get(Task, task_id)
    if task is None:
        raise NotFound(f"expected the id of a task, got {task_id}, which does not exist")
    now = database_now(session)
    content = _content(annotation, task)
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
    fact = {"at": annotation.updated_at, "kind": "submitted", "content_hash": digest, "content": content}
    _remember(
        session, task.project_id, annotation.annotation_id, task_id=task_id, event_id=event_id, fact=fact, now=now
    )
    row, concerned = _lock(session, task.project_id, annotation.annotation_id, {task_id})
    made = annotation.created_at or annotation.updated_at
    reused = row.deleted_at is not None and made > row.deleted_at
    if annotation.accepted != row.accepted and (annotation.accepted or reused):
        # Acceptance made it: so it stays, whoever edits it, until another annotation gets its number.
        row.accepted = annotation.accepted
        session.flush()
    if row.updated_at is None or (annotation.updated_at, digest) > (row.updated_at, row.content_hash or ""):
        row.task_id, row.updated_at, row.content_hash = task_id, annotation.updated_at, digest
        row.spans = [list(span) for span in sorted(set(annotation.spans))]
        row.was_cancelled, row.ground_truth, row.bulk = (
            annotation.was_cancelled,
            annotation.ground_truth,
            annotation.bulk,
        )
        row.created_at, row.lead_time, row.origins = (
            annotation.created_at,
            annotation.lead_time,
            dict(annotation.origins),
        )
        row.unique_id = None if annotation.unique_id is None else plain(annotation.unique_id, 100)
        row.parent_prediction, row.parent_annotation = annotation.parent_prediction, annotation.parent_annotation
        row.completed_by = annotation.completed_by
        session.flush()
        if annotation.was_cancelled:
            rest(session, task_id)
    return [_derive(session, each, now) for each in sorted(concerned)]


def delete_annotation(
    session: Session, project_id: int, *, annotation_id: int, at: datetime, event_id: int | None = None
) -> list[LabelChange]:
    """Record that an annotation was deleted at `at`: whatever was made of it up to then no longer counts.

    May arrive before the annotation itself. A later annotation that reuses the id counts again.
    """
    now = database_now(session)
    fact = {"at": at, "kind": "deleted", "content_hash": "", "content": ""}
    _remember(session, project_id, annotation_id, task_id=None, event_id=event_id, fact=fact, now=now)
    row, concerned = _lock(session, project_id, annotation_id, set())
    if row.deleted_at is None or at > row.deleted_at:
        row.deleted_at = at
        session.flush()
    return [_derive(session, each, now) for each in sorted(concerned)]


def lock_annotated(session: Session, project_id: int, annotation_ids: Iterable[int]) -> None:
    """Hold the tasks of several annotations before any of them is changed (see `lock_tasks`)."""
    mine = Annotation.project_id == project_id, Annotation.annotation_id.in_(sorted(set(annotation_ids)))
    rows = session.execute(sa.select(Annotation.task_id).where(*mine, Annotation.task_id.is_not(None)))
    lock_tasks(session, [int(number) for number in rows.scalars() if number is not None])


def delete_tasks(session: Session, project_id: int, *, external_ids: Iterable[str], at: datetime) -> list[LabelChange]:
    """Record that tasks were deleted at `at`: nothing made on them up to then counts, whenever it arrives.

    A task created later under the same id is another task, also when its text is the same: servers reuse ids.
    """
    now = database_now(session)
    changes = []
    names = sorted(set(external_ids))
    concerned = sa.select(Task.id).where(Task.project_id == project_id, Task.external_id.in_(names))
    lock_tasks(session, session.execute(concerned).scalars())
    for external_id in names:
        statement = insert(session, TaskDeletion).values(project_id=project_id, external_id=external_id, at=at)
        session.execute(
            statement.on_conflict_do_update(
                index_elements=["project_id", "external_id"],
                set_={"at": statement.excluded.at},
                where=TaskDeletion.at < statement.excluded.at,
            )
        )
        last = session.execute(
            sa.select(TaskDeletion.at).where(
                TaskDeletion.project_id == project_id, TaskDeletion.external_id == external_id
            )
        ).scalar_one()
        rows = session.execute(
            sa.select(Task)
            .where(Task.project_id == project_id, Task.external_id == external_id)
            .order_by(Task.id)
            .with_for_update()
        ).scalars()
        for task in list(rows):
            if task.external_created_at is None or task.external_created_at <= last:
                task.deleted_at = last
                session.flush()
                settle(session, task.id, waits=False)
            changes.append(_derive(session, task.id, now))
    return changes


def current_label(session: Session, task_id: int, *, policy: str = MAJORITY) -> LabelRecord | None:
    """Return the label of a task, None when nothing was ever said about it."""
    row = session.execute(sa.select(Label).where(Label.task_id == task_id, Label.policy == policy)).scalar_one_or_none()
    return None if row is None else _label(session, row)


def labels_of(session: Session, task_ids: Iterable[int], *, policy: str = MAJORITY) -> dict[int, LabelRecord]:
    """Return the labels of tasks, by task; tasks about which nothing was ever said are left out."""
    rows = session.execute(
        sa.select(Label).where(Label.task_id.in_(sorted(set(task_ids))), Label.policy == policy)
    ).scalars()
    return {row.task_id: _label(session, row) for row in rows}


def unscored_labels(
    session: Session,
    project_id: int,
    *,
    model_id: int,
    after: int = 0,
    limit: int = 500,
    policy: str = MAJORITY,
    task_ids: Iterable[int] | None = None,
    tried: bool = False,
) -> list[LabelRecord]:
    """Return labels that have no calibration row of this model for their present revision, by label id.

    For the catch-up after a crash, and for scoring everything under a new model (METHODS 8.4): all labels of the
    project are looked at. With `task_ids` only those tasks are. Labels that were set aside are left out.

    Args:
        tried: return those whose scoring was begun before and did not come to an end, instead of all others; those
            that failed within the last minute are left out.
    """
    scored = (
        sa.select(CalibrationScore.id)
        .where(
            CalibrationScore.task_id == Label.task_id,
            CalibrationScore.model_id == model_id,
            CalibrationScore.removed_at_revision.is_(None),
            CalibrationScore.label_revision == Label.revision,
            CalibrationScore.unit == 0,
            is_complete(),  # otherwise written by an earlier release
        )
        .exists()
    )
    query = (
        sa.select(Label)
        .where(Label.project_id == project_id, Label.policy == policy, Label.id > after, ~scored)
        .where(sa.or_(Label.exclusion.is_(None), Label.exclusion.not_in([WITHDRAWN, ACCEPTED])))
        .order_by(Label.id)
        .limit(limit)
    )
    attempt = sa.select(ScoringAttempt.task_id).where(
        ScoringAttempt.task_id == Label.task_id,
        ScoringAttempt.model_id == model_id,
        ScoringAttempt.label_revision == Label.revision,
    )
    # What failed rests a while: its reason may pass. What a process died with may have nothing to do with it.
    rested = sa.or_(ScoringAttempt.error.is_(None), ScoringAttempt.updated_at < database_now(session) - REST)
    again = attempt.where(ScoringAttempt.set_aside_at.is_(None), rested)
    query = query.where(again.exists() if tried else ~attempt.exists())
    if task_ids is not None:
        query = query.where(Label.task_id.in_(sorted(set(task_ids))))
    return [_label(session, row) for row in session.execute(query).scalars()]


def list_labels(
    session: Session, project_id: int, *, after: int = 0, limit: int = 500, policy: str = MAJORITY
) -> list[LabelRecord]:
    """Return labels of a project by label id, excluded ones too."""
    rows = session.execute(
        sa.select(Label)
        .where(Label.project_id == project_id, Label.policy == policy, Label.id > after)
        .order_by(Label.id)
        .limit(limit)
    ).scalars()
    return [_label(session, row) for row in rows]


def label_history(session: Session, task_id: int) -> list[tuple[datetime, str, int, dict[str, Any]]]:
    """Return everything said about a task's annotations as (when, kind, annotation id, content), in order of time."""
    ids = sa.select(LabelHistory.annotation_id, LabelHistory.project_id).where(LabelHistory.task_id == task_id)
    rows = session.execute(
        sa.select(LabelHistory)
        .where(sa.tuple_(LabelHistory.annotation_id, LabelHistory.project_id).in_(ids))
        .where(sa.or_(LabelHistory.task_id == task_id, LabelHistory.task_id.is_(None)))
        .order_by(LabelHistory.at, LabelHistory.id)
    ).scalars()
    return [(row.at, row.kind, row.annotation_id, json.loads(row.content or "{}")) for row in rows]


def _lock(session: Session, project_id: int, annotation_id: int, tasks: set[int]) -> tuple[Annotation, set[int]]:
    key = {"project_id": project_id, "annotation_id": annotation_id}
    blank = {"was_cancelled": False, "ground_truth": False, "bulk": False, "origins": {}}
    row = get_or_create(session, Annotation, key, blank)
    concerned = tasks | ({row.task_id} if row.task_id is not None else set())
    if not is_postgresql(session):
        return row, concerned  # a writing transaction of SQLite has the database to itself
    if concerned:
        session.execute(sa.select(Task.id).where(Task.id.in_(concerned)).order_by(Task.id).with_for_update())
    row = session.execute(
        sa.select(Annotation).filter_by(**key).with_for_update().execution_options(populate_existing=True)
    ).scalar_one()
    if row.task_id is not None and row.task_id not in concerned:
        raise StoreConflict(f"annotation {annotation_id} moved to another task meanwhile: try the event again")
    return row, concerned


def _derive(session: Session, task_id: int, now: datetime, policy: str = MAJORITY) -> LabelChange:
    task = session.get_one(Task, task_id)
    deletion = session.get(TaskDeletion, (task.project_id, task.external_id), populate_existing=True)
    # Rows that this session read before it held the task's lock may be out of date.
    fresh = {"populate_existing": True}
    rows = (
        session.execute(sa.select(Annotation).where(Annotation.task_id == task_id).execution_options(**fresh))
        .scalars()
        .all()
    )
    alive = {
        row.annotation_id: row
        for row in rows
        if row.updated_at is not None
        and (row.deleted_at is None or row.updated_at > row.deleted_at)
        and (deletion is None or row.updated_at > deletion.at)
    }
    label = session.execute(
        sa.select(Label).where(Label.task_id == task_id, Label.policy == policy).execution_options(**fresh)
    ).scalar_one_or_none()
    if label is None and not rows and not _was_ever_labelled(session, task_id):
        return LabelChange(task_id, changed=False, label=None)
    choice = choose_label(_annotation(row) for row in alive.values())
    chosen = None if choice.annotation is None else alive[choice.annotation.annotation_id]
    spans = None if choice.spans is None else [list(span) for span in choice.spans]
    if label is None:
        label = Label(
            project_id=task.project_id, task_id=task_id, policy=policy, revision=0, changed_at=now, exclusion=WITHDRAWN
        )
        session.add(label)
    before = (label.revision > 0, label.spans, label.exclusion, label.annotation_row, label.content_hash)
    chosen_id, digest = (None, None) if chosen is None else (chosen.id, chosen.content_hash)
    after = (True, spans, choice.exclusion, chosen_id, digest)
    changed = before != after
    label.votes, label.voters = choice.votes, choice.voters
    if changed:
        label.spans, label.exclusion = spans, choice.exclusion
        label.annotation_row, label.content_hash = chosen_id, digest
        label.revision += 1
        label.changed_at = now
    session.flush()
    if changed:
        withdraw_scores(session, task.project_id, task_id=task_id)
        if policy == MAJORITY:
            waits = label.exclusion not in (None, ACCEPTED) and task.deleted_at is None
            settle(session, task_id, waits=waits)
    return LabelChange(task_id, changed=changed, label=_label(session, label))


def _was_ever_labelled(session: Session, task_id: int) -> bool:
    query = sa.select(LabelHistory.id).where(LabelHistory.task_id == task_id).limit(1)
    return session.execute(query).scalar_one_or_none() is not None


def _remember(
    session: Session,
    project_id: int,
    annotation_id: int,
    *,
    task_id: int | None,
    event_id: int | None,
    fact: dict[str, Any],
    now: datetime,
) -> None:
    row = {
        "project_id": project_id,
        "annotation_id": annotation_id,
        "task_id": task_id,
        "event_id": event_id,
        "recorded_at": now,
    }
    session.execute(
        insert(session, LabelHistory)
        .values(row | fact)
        .on_conflict_do_nothing(index_elements=["project_id", "annotation_id", "kind", "at", "content_hash"])
    )


def _content(annotation: AnnotationRecord, task: Task) -> str:
    content = {name: value for name, value in asdict(annotation).items() if name != "accepted"} | {
        "task": task.external_id,
        "text": bytes(task.text_hash).hex(),
        "spans": sorted(set(annotation.spans)),
        "origins": dict(annotation.origins),
        "updated_at": annotation.updated_at.isoformat(),
        "created_at": annotation.created_at and annotation.created_at.isoformat(),
    }
    return json.dumps(content, sort_keys=True)


def _annotation(row: Annotation) -> AnnotationRecord:
    assert row.updated_at is not None  # noqa: S101 - callers have filtered rows that only carry a deletion
    return AnnotationRecord(
        annotation_id=row.annotation_id,
        updated_at=row.updated_at,
        spans=_spans(row.spans) or (),
        was_cancelled=row.was_cancelled,
        ground_truth=row.ground_truth,
        bulk=row.bulk,
        created_at=row.created_at,
        unique_id=row.unique_id,
        parent_prediction=row.parent_prediction,
        parent_annotation=row.parent_annotation,
        origins=row.origins,
        lead_time=row.lead_time,
        completed_by=row.completed_by,
        accepted=row.accepted,
    )


def _spans(stored: list[Any] | None) -> tuple[TextSpan, ...] | None:
    return None if stored is None else tuple(TextSpan(*each) for each in stored)


def _label(session: Session, row: Label) -> LabelRecord:
    chosen = None if row.annotation_row is None else session.get(Annotation, row.annotation_row)
    return LabelRecord(
        id=row.id,
        project_id=row.project_id,
        task_id=row.task_id,
        policy=row.policy,
        revision=row.revision,
        spans=_spans(row.spans),
        exclusion=row.exclusion,
        votes=row.votes,
        voters=row.voters,
        annotation=None if chosen is None or chosen.updated_at is None else _annotation(chosen),
    )
