"""The monitors' state and the alarms they raised (METHODS 8.7, 8.8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.records import AlarmRecord, MonitorRecord, SequenceScores
from backend.errors import NotFound, StoreConflict
from backend.store.engine import database_now
from backend.store.rows import read_scores
from backend.store.tables import Alarm, CalibrationCell, CalibrationScore, MonitorRow, MonitorState, Task
from backend.store.upsert import insert

COVERAGE, DRIFT, GAP, RISK = "coverage", "drift", "gap", "risk"  # kinds of alarms
QUIET = timedelta(days=7)  # how long an alarm that somebody has seen is not raised again


class MonitorOvertaken(StoreConflict):
    """Another process has taken the step that this one wanted to take."""


def load_monitor(
    session: Session, project_id: int, *, model_id: int, kind: str, stratum: str = ""
) -> MonitorRecord | None:
    """Return a monitor's state, None before its first step. A new model begins anew."""
    row = session.get(MonitorState, (project_id, model_id, kind, stratum), populate_existing=True)
    if row is None:
        return None
    return MonitorRecord(row.kind, row.stratum, row.revision, row.consumed, row.value, bytes(row.state))


def save_monitor(session: Session, project_id: int, *, model_id: int, monitor: MonitorRecord) -> MonitorRecord:
    """Save the next state of a monitor that was loaded at `monitor.revision` (0: it did not exist).

    Raises:
        MonitorOvertaken: when another process has saved a step meanwhile: rows are consumed once, so load it again.
    """
    key = {"project_id": project_id, "model_id": model_id, "kind": monitor.kind, "stratum": monitor.stratum}
    values = {
        "consumed": monitor.consumed,
        "value": monitor.value,
        "state": monitor.state,
        "updated_at": database_now(session),
        "revision": monitor.revision + 1,
    }
    if monitor.revision == 0:
        statement = insert(session, MonitorState).values(key | values)
        statement = statement.on_conflict_do_nothing(index_elements=list(key))
    else:
        statement = sa.update(MonitorState).filter_by(**key, revision=monitor.revision).values(**values)
    if session.execute(statement.returning(MonitorState.revision)).scalar_one_or_none() is None:
        raise MonitorOvertaken(
            f"monitor {monitor.kind}/{monitor.stratum}: expected revision {monitor.revision} still, got a newer one: "
            "load it and try again"
        )
    return MonitorRecord(
        monitor.kind, monitor.stratum, monitor.revision + 1, monitor.consumed, monitor.value, monitor.state
    )


def raise_alarm(
    session: Session, project_id: int, *, model_id: int, kind: str, stratum: str, value: float, message: str
) -> int:
    """Keep an alarm; returns its id. One of the same kind and stratum stands until it is acknowledged, and `QUIET` on.

    What raised it may hold for long, and would raise it again at the next label: a person who has seen it is left in
    peace for a while, and reminded if it still holds then.
    """
    now = database_now(session)
    known = sa.or_(Alarm.acknowledged_at.is_(None), Alarm.acknowledged_at > now - QUIET)
    query = sa.select(Alarm.id).filter_by(project_id=project_id, model_id=model_id, kind=kind, stratum=stratum)
    standing = session.execute(query.where(known).order_by(Alarm.id.desc()).limit(1)).scalar_one_or_none()
    if standing is not None:
        return standing
    alarm = Alarm(
        project_id=project_id,
        model_id=model_id,
        kind=kind,
        stratum=stratum,
        value=value,
        message=message,
        raised_at=now,
    )
    session.add(alarm)
    session.flush()
    return alarm.id


def load_alarm(session: Session, project_id: int, *, alarm_id: int) -> AlarmRecord:
    """Return an alarm of a project.

    Raises:
        NotFound: when the project has no such alarm.
    """
    return _alarm(_find_alarm(session, project_id, alarm_id))


def acknowledge_alarm(session: Session, project_id: int, *, alarm_id: int) -> None:
    """Mark an alarm as seen; it stays in the list. The first time counts.

    Raises:
        NotFound: when the project has no such alarm.
    """
    alarm = _find_alarm(session, project_id, alarm_id)
    alarm.acknowledged_at = alarm.acknowledged_at or database_now(session)
    session.flush()


def _find_alarm(session: Session, project_id: int, alarm_id: int) -> Alarm:
    alarm = session.get(Alarm, alarm_id)
    if alarm is None or alarm.project_id != project_id:
        raise NotFound("expected an alarm of this project, got another: see its list of alarms")
    return alarm


def list_alarms(session: Session, project_id: int, *, limit: int = 100) -> list[AlarmRecord]:
    """Return the newest alarms of a project, newest first."""
    rows = session.execute(
        sa.select(Alarm).where(Alarm.project_id == project_id).order_by(Alarm.id.desc()).limit(limit)
    ).scalars()
    return [_alarm(row) for row in rows]


def _alarm(row: Alarm) -> AlarmRecord:
    return AlarmRecord(row.id, row.kind, row.stratum, row.value, row.message, row.raised_at, row.acknowledged_at)


@dataclass(frozen=True)
class FreshRow:
    """A calibration row that the monitors have not seen yet: the drawn unit of its task.

    `random_order` is drawn for the task.
    """

    id: int
    revision: int
    task_id: int
    unit: int
    external_id: str
    random_order: float | None
    label_revision: int
    stratum: str
    evidence: str
    exclusion: str
    scores: SequenceScores


def rows_after(session: Session, project_id: int, *, model_id: int, revision: int, limit: int = 64) -> list[FreshRow]:
    """Return live rows of (project, model) that were added after a revision, excluded ones too, in order: one a task.

    Call it under the lock of (project, model) (`calibration.lock_rows`): then no row can slip in below the last one.
    """
    score, cell = CalibrationScore, CalibrationCell
    cells = sa.select(cell.id).where(cell.project_id == project_id, cell.model_id == model_id)
    rows = session.execute(
        sa.select(score, cell.stratum, cell.evidence, cell.exclusion, Task.external_id, Task.random_order)
        .join(cell, cell.id == score.cell_id)
        .join(Task, Task.id == score.task_id)
        .where(score.cell_id.in_(cells), score.added_at_revision > revision, score.removed_at_revision.is_(None))
        .where(score.drawn)
        .order_by(score.added_at_revision)
        .limit(limit)
        .execution_options(populate_existing=True)
    ).all()
    return [
        FreshRow(
            id=row.id,
            revision=row.added_at_revision,
            task_id=row.task_id,
            unit=row.unit,
            external_id=external,
            random_order=random_order,
            label_revision=row.label_revision,
            stratum=stratum,
            evidence=evidence,
            exclusion=exclusion,
            scores=read_scores(row),
        )
        for row, stratum, evidence, exclusion, external, random_order in rows
    ]


def consumed_tasks(session: Session, project_id: int, *, model_id: int, task_ids: Sequence[int]) -> set[int]:
    """Return those of the tasks whose score the martingale has consumed."""
    rows = session.execute(
        sa.select(MonitorRow.task_id).where(
            MonitorRow.project_id == project_id, MonitorRow.model_id == model_id, MonitorRow.task_id.in_(task_ids)
        )
    )
    return set(rows.scalars())


def consume_rows(
    session: Session, project_id: int, *, model_id: int, first: int, rows: Iterable[tuple[int, str, float]]
) -> int:
    """Keep (task, stratum, score) of rows as consumed, at the positions `first`, `first + 1`, ...; returns how many."""
    fresh = [
        {
            "project_id": project_id,
            "model_id": model_id,
            "task_id": task,
            "position": first + i,
            "stratum": stratum,
            "score": score + 0.0,
        }
        for i, (task, stratum, score) in enumerate(rows)
    ]
    if fresh:
        session.execute(sa.insert(MonitorRow), fresh)
    return len(fresh)


def consumed_scores(session: Session, project_id: int, *, model_id: int) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Return the strata and scores of all consumed rows, in the order in which they were consumed."""
    rows = session.execute(
        sa.select(MonitorRow.stratum, MonitorRow.score)
        .where(MonitorRow.project_id == project_id, MonitorRow.model_id == model_id)
        .order_by(MonitorRow.position)
    ).all()
    return [row.stratum for row in rows], np.array([row.score for row in rows], dtype=np.float64)


def list_monitors(session: Session, project_id: int, *, model_id: int, kind: str) -> list[MonitorRecord]:
    """Return the monitors of a kind, by stratum."""
    rows = session.execute(
        sa.select(MonitorState).filter_by(project_id=project_id, model_id=model_id, kind=kind)
    ).scalars()
    monitors = [
        MonitorRecord(row.kind, row.stratum, row.revision, row.consumed, row.value, bytes(row.state)) for row in rows
    ]
    return sorted(monitors, key=lambda each: each.stratum)


def forget_drift(session: Session, project_id: int, *, model_id: int) -> None:
    """Begin the martingales of (project, model) anew: what they consumed is of another kind than what will come."""
    session.execute(sa.delete(MonitorRow).filter_by(project_id=project_id, model_id=model_id))
    session.execute(sa.delete(MonitorState).filter_by(project_id=project_id, model_id=model_id, kind=DRIFT))
