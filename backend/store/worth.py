"""What the figures of a project's worth are made from: pages of rows, so that a job reads as much as it must.

Every function reads a page or a sample of a size that is given, whatever the size of the project.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from backend.domain.label_choice import MAJORITY
from backend.domain.records import Draw, TextSpan
from backend.domain.streams import FILE_STREAM, UNSHOWN
from backend.store.acceptance import TAKEN_BACK, read_spans
from backend.store.served import newest_set
from backend.store.tables import (
    AcceptedTask,
    Annotation,
    CalibrationCell,
    CalibrationScore,
    Label,
    LabelHistory,
    ServedSet,
    Task,
)

_CHUNK = 500


@dataclass(frozen=True)
class KnownTask:
    """A living task of the collection as a model last served it.

    `ranked` is the packed list of what the model says, None where it was not asked: of tasks that were done before it
    came. `labelled`: somebody labelled, skipped or accepted it.
    """

    id: int
    order: float
    language: str | None
    blind: bool
    labelled: bool
    ranked: bytes | None
    flags: int | None


@dataclass(frozen=True)
class ScoredLabel:
    """A label that may calibrate, with what the model says of its text; `weight` is one over its chance."""

    task_id: int
    language: str | None
    text: str | None
    weight: float
    spans: tuple[TextSpan, ...]
    ranked: bytes


@dataclass(frozen=True)
class Submission:
    """The first annotation that a person submitted for a task, as it was then."""

    id: int
    task_id: int
    draw: Draw | None
    at: datetime
    person: int | None
    seconds: float | None
    skipped: bool
    spans: tuple[TextSpan, ...]


@dataclass(frozen=True)
class InView:
    """What was last served for a task before somebody submitted."""

    served_id: int
    model_id: int
    shadow: bool
    shown: int


def sample_tasks(
    session: Session, project_id: int, *, model_id: int, after: tuple[float, int], limit: int
) -> list[KnownTask]:
    """Return a page of the project's tasks in their random order, after one of (order, id).

    The order is drawn, so the first tasks are a random sample of all that were. Open tasks that a model has not been
    asked about are left out.
    """
    said = sa.select(Label.id).where(Label.task_id == Task.id, Label.policy == MAJORITY)
    accepted = sa.select(AcceptedTask.id).where(AcceptedTask.task_id == Task.id, AcceptedTask.state != TAKEN_BACK)
    done = sa.or_(
        said.where(sa.or_(Label.exclusion.is_(None), Label.exclusion != "withdrawn")).exists(), accepted.exists()
    )
    order, number = after
    rows = session.execute(
        sa.select(
            Task.id,
            Task.random_order,
            Task.language,
            Task.blind,
            done.label("labelled"),
            ServedSet.ranked,
            ServedSet.flags,
        )
        .outerjoin(ServedSet, ServedSet.id == newest_set(model_id))
        .where(Task.project_id == project_id, Task.deleted_at.is_(None))
        .where(Task.stream.not_in([UNSHOWN, FILE_STREAM]), sa.or_(ServedSet.id.is_not(None), done))
        .where(sa.or_(Task.random_order > order, sa.and_(Task.random_order == order, Task.id > number)))
        .order_by(Task.random_order, Task.id)
        .limit(limit)
    )
    return [
        KnownTask(
            row.id,
            float(row.random_order),
            row.language,
            bool(row.blind),
            bool(row.labelled),
            None if row.ranked is None else bytes(row.ranked),
            row.flags,
        )
        for row in rows
    ]


def count_tasks(session: Session, project_id: int) -> int:
    """Return how many living tasks of the collection have a draw."""
    query = sa.select(sa.func.count()).where(
        Task.project_id == project_id,
        Task.deleted_at.is_(None),
        Task.random_order.is_not(None),
        Task.stream.not_in([UNSHOWN, FILE_STREAM]),
    )
    return int(session.execute(query.select_from(Task)).scalar_one())


def scored_tasks(
    session: Session, project_id: int, *, model_id: int, evidence: str, limit: int
) -> list[tuple[int, float]]:
    """Return the tasks whose labels of one kind may calibrate a model, the newest first, with one over their chance.

    Their contents are asked for by page (`scored_labels`): ordered together with them every page would read them all.
    """
    score, cell = CalibrationScore, CalibrationCell
    rows = session.execute(
        sa.select(score.task_id, score.weight)
        .join(cell, cell.id == score.cell_id)
        .where(cell.project_id == project_id, cell.model_id == model_id, score.model_id == model_id)
        .where(cell.evidence == evidence, cell.exclusion == "", score.unit == 0, score.removed_at_revision.is_(None))
        .order_by(score.task_id.desc())
        .limit(limit)
    )
    return [(row.task_id, float(row.weight)) for row in rows]


def scored_labels(session: Session, tasks: Sequence[tuple[int, float]], *, model_id: int) -> list[ScoredLabel]:
    """Return the labels of a page of `scored_tasks`.

    Labels whose text the model was not asked about, or whose set a retention rule removed, are left out.
    """
    weights = dict(tasks)
    score = CalibrationScore
    rows = session.execute(
        sa.select(Task.id, Task.language, Task.text, Label.spans, ServedSet.ranked)
        .join(score, score.task_id == Task.id)
        .join(Label, sa.and_(Label.task_id == Task.id, Label.policy == MAJORITY))
        .join(ServedSet, ServedSet.id == newest_set(model_id))
        .where(Task.id.in_(weights), score.model_id == model_id, score.unit == 0)
        .where(score.removed_at_revision.is_(None), score.label_revision == Label.revision)
        .where(Label.exclusion.is_(None), Label.spans.is_not(None), Task.deleted_at.is_(None))
        .order_by(Task.id.desc())
    )
    return [
        ScoredLabel(row.id, row.language, row.text, weights[row.id], read_spans(row.spans), bytes(row.ranked))
        for row in rows
    ]


def first_submissions(
    session: Session, project_id: int, *, before: int, limit: int
) -> tuple[list[Submission], int | None]:
    """Return the first annotation of each task among a page of annotations, the newest first, and where the page ends.

    What nothing is known of any more is left out; None instead of an end says that there was no page.

    What people said first is read from the history: edits add to the time and change the spans. Copies of predictions
    and what acceptance made are nobody's. `before`: an id; 0 begins.
    """
    other = aliased(Annotation)
    earlier = sa.select(other.id).where(
        other.task_id == Annotation.task_id,
        other.bulk.is_(False),
        other.accepted.is_(False),
        sa.or_(
            other.created_at < Annotation.created_at,
            sa.and_(other.created_at == Annotation.created_at, other.annotation_id < Annotation.annotation_id),
        ),
    )
    query = (
        sa.select(
            Annotation.annotation_id,
            Annotation.task_id,
            Annotation.created_at,
            Annotation.completed_by,
            Task.stream,
            Task.random_order,
            Task.selection_probability,
            Task.blind,
        )
        .join(Task, Task.id == Annotation.task_id)
        .where(Annotation.project_id == project_id, Annotation.created_at.is_not(None))
        .where(Annotation.bulk.is_(False), Annotation.accepted.is_(False), ~earlier.exists())
        .order_by(Annotation.annotation_id.desc())  # an index has them so; by row all would be sorted for every page
        .limit(limit)
    )
    if before:
        query = query.where(Annotation.annotation_id < before)
    rows = session.execute(query).all()
    said = _first_said(session, project_id, [row.annotation_id for row in rows])
    found = []
    for row in rows:
        content = said.get(row.annotation_id)
        if content is None:
            continue
        draw = None
        if row.random_order is not None:
            draw = Draw(row.stream, row.random_order, row.selection_probability, bool(row.blind))
        found.append(
            Submission(
                id=row.annotation_id,
                task_id=row.task_id,
                draw=draw,
                at=row.created_at,
                person=content.get("completed_by") or row.completed_by,
                seconds=content.get("lead_time"),
                skipped=bool(content.get("was_cancelled")),
                spans=read_spans(content.get("spans") or []),
            )
        )
    return found, rows[-1].annotation_id if rows else None


def _first_said(session: Session, project_id: int, annotations: Sequence[int]) -> dict[int, Mapping[str, Any]]:
    """Return the earliest known content of each of these annotations."""
    said: dict[int, Mapping[str, Any]] = {}
    for begin in range(0, len(annotations), _CHUNK):
        rows = session.execute(
            sa.select(LabelHistory.annotation_id, LabelHistory.content)
            .where(LabelHistory.project_id == project_id, LabelHistory.task_id.is_not(None))
            .where(LabelHistory.annotation_id.in_(annotations[begin : begin + _CHUNK]))
            .order_by(LabelHistory.annotation_id, LabelHistory.at, LabelHistory.id)
        )
        for number, content in rows:
            if number not in said and content:
                said[number] = json.loads(content)
    return said


def in_view(session: Session, submissions: Sequence[Submission]) -> dict[int, InView]:
    """Return what was last served before each submission was made, by the submission's id."""
    tasks: dict[int, list[Submission]] = {}
    for each in submissions:
        tasks.setdefault(each.task_id, []).append(each)
    found: dict[int, InView] = {}
    numbers = sorted(tasks)
    for begin in range(0, len(numbers), _CHUNK):
        rows = session.execute(
            sa.select(
                ServedSet.id,
                ServedSet.task_id,
                ServedSet.model_id,
                ServedSet.shadow,
                ServedSet.shown,
                ServedSet.served_at,
            )
            .where(ServedSet.task_id.in_(numbers[begin : begin + _CHUNK]))
            .order_by(ServedSet.served_at, ServedSet.id)
        )
        for row in rows:
            for each in tasks[row.task_id]:
                if row.served_at <= each.at:
                    found[each.id] = InView(row.id, row.model_id, row.shadow, row.shown)
    return found


def load_lists(session: Session, served: Sequence[int]) -> dict[int, bytes]:
    """Return the packed lists of these served sets."""
    found: dict[int, bytes] = {}
    for begin in range(0, len(served), _CHUNK):
        chunk = served[begin : begin + _CHUNK]
        rows = session.execute(sa.select(ServedSet.id, ServedSet.ranked).where(ServedSet.id.in_(chunk)))
        found |= {row.id: bytes(row.ranked) for row in rows}
    return found


def last_served(session: Session) -> int:
    """Return a number that grows whenever anything is served, in whichever project."""
    return int(session.execute(sa.select(sa.func.max(ServedSet.id))).scalar_one() or 0)


def is_served_since(session: Session, project_id: int, *, after: int) -> bool:
    """Say whether anything was served for a project after a number of `last_served`; reads what came after it alone."""
    mine = sa.select(Task.id).where(Task.id == ServedSet.task_id, Task.project_id == project_id).exists()
    return session.execute(sa.select(ServedSet.id).where(ServedSet.id > after, mine).limit(1)).first() is not None


def shared_tasks(session: Session, project_id: int, *, limit: int) -> list[tuple[str, list[tuple[TextSpan, ...]]]]:
    """Return texts that several people labelled, with the spans of each of them: the tasks that came last.

    Of one person the newest annotation of a task counts. Texts that a retention rule removed are left out.
    """
    counted = (
        Annotation.project_id == project_id,
        Annotation.task_id.is_not(None),
        Annotation.spans.is_not(None),
        Annotation.completed_by.is_not(None),
        Annotation.was_cancelled.is_(False),
        Annotation.bulk.is_(False),
        Annotation.accepted.is_(False),
        sa.or_(Annotation.deleted_at.is_(None), Annotation.updated_at > Annotation.deleted_at),
    )
    several = (
        sa.select(Annotation.task_id)
        .where(*counted)
        .group_by(Annotation.task_id)
        .having(sa.func.count(sa.distinct(Annotation.completed_by)) > 1)
        .order_by(Annotation.task_id.desc())
        .limit(limit)
        .subquery()
    )
    rows = session.execute(
        sa.select(Task.id, Task.text, Annotation.completed_by, Annotation.spans)
        .join(Task, Task.id == Annotation.task_id)
        .join(several, several.c.task_id == Task.id)
        .where(*counted, Task.text.is_not(None), Task.deleted_at.is_(None))
        .order_by(Task.id, Annotation.updated_at, Annotation.id)
    )
    texts: dict[int, str] = {}
    people: dict[int, dict[int, tuple[TextSpan, ...]]] = {}
    for row in rows:
        texts[row.id] = row.text or ""
        people.setdefault(row.id, {})[row.completed_by] = read_spans(row.spans)
    return [(texts[number], list(given.values())) for number, given in people.items()]
