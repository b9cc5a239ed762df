"""The monitors' state and the alarms they raised (METHODS 8.7, 8.8)."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.errors import NotFound, StoreConflict
from backend.store.engine import database_now
from backend.store.tables import Alarm, MonitorState
from backend.store.types import AlarmRecord, MonitorRecord
from backend.store.upsert import insert


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
        StoreConflict: when another process has saved a step meanwhile: rows are consumed once, so load and try again.
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
        raise StoreConflict(
            f"monitor {monitor.kind}/{monitor.stratum}: expected revision {monitor.revision} still, got a newer one: "
            "load it and try again"
        )
    return MonitorRecord(
        monitor.kind, monitor.stratum, monitor.revision + 1, monitor.consumed, monitor.value, monitor.state
    )


def raise_alarm(
    session: Session, project_id: int, *, model_id: int, kind: str, stratum: str, value: float, message: str
) -> int:
    """Keep an alarm; returns its id. While one of the same kind and stratum is unacknowledged, that one stands."""
    query = sa.select(Alarm.id).filter_by(project_id=project_id, model_id=model_id, kind=kind, stratum=stratum)
    standing = session.execute(query.where(Alarm.acknowledged_at.is_(None)).limit(1)).scalar_one_or_none()
    if standing is not None:
        return standing
    alarm = Alarm(
        project_id=project_id,
        model_id=model_id,
        kind=kind,
        stratum=stratum,
        value=value,
        message=message,
        raised_at=database_now(session),
    )
    session.add(alarm)
    session.flush()
    return alarm.id


def acknowledge_alarm(session: Session, alarm_id: int) -> None:
    """Mark an alarm as seen; it stays in the list.

    Raises:
        NotFound: when there is no such alarm.
    """
    alarm = session.get(Alarm, alarm_id)
    if alarm is None:
        raise NotFound(f"expected the id of an alarm, got {alarm_id}, which does not exist")
    alarm.acknowledged_at = alarm.acknowledged_at or database_now(session)
    session.flush()


def list_alarms(session: Session, project_id: int, *, limit: int = 100) -> list[AlarmRecord]:
    """Return the newest alarms of a project, newest first."""
    rows = session.execute(
        sa.select(Alarm).where(Alarm.project_id == project_id).order_by(Alarm.id.desc()).limit(limit)
    ).scalars()
    return [
        AlarmRecord(row.id, row.kind, row.stratum, row.value, row.message, row.raised_at, row.acknowledged_at)
        for row in rows
    ]
