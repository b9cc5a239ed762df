"""When to refit: by counts and by time, never by what the labels or thresholds say (METHODS 8.5)."""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.labelstudio.identity import ModelHeader
from backend.labelstudio.payloads import read_time
from backend.settings import Settings
from backend.store.calibration import head_revision, load_cells
from backend.store.engine import database_now
from backend.store.jobs import enqueue_job
from backend.store.projects import lookup_model
from backend.store.state import REFIT, get_state, set_state
from backend.store.tables import Job
from backend.store.types import ProjectRecord

LEAST = 20


def is_due(
    *,
    rows: int,
    rows_then: int,
    revision: int,
    revision_then: int,
    since: timedelta | None,
    every_labels: int | None,
    every_minutes: float,
) -> bool:
    """Whether thresholds are to be fitted again.

    After `every_labels` new rows (None: 20, or a tenth of those fitted on if that is more), or after `every_minutes`
    if anything changed at all, an edited label for example. `since` is the time since the last refit, None if there
    was none.

    >>> common = {"revision": 9, "revision_then": 1, "since": timedelta(minutes=1), "every_minutes": 60.0}
    >>> [is_due(rows=rows, rows_then=400, every_labels=None, **common) for rows in (439, 440)]
    [False, True]
    """
    if revision == revision_then:
        return False
    wanted = every_labels or max(LEAST, rows_then // 10)
    if rows - rows_then >= wanted:
        return True
    return since is not None and since >= timedelta(minutes=every_minutes)


def queue_due_refit(session: Session, project: ProjectRecord, *, header: ModelHeader, settings: Settings) -> bool:
    """Queue a refit of a project under a model if it is due, and note the counts it was decided by.

    While the labels are being scored under a new model nothing is decided: the job that does it asks for the refit
    when it is done.
    """
    model = lookup_model(session, header.name, header.hash)
    if model is None:
        return False
    revision = head_revision(session, project.id, model_id=model.id)
    noted = get_state(session, project.id, REFIT) or {}
    if noted.get("model") != model.id:
        noted = {}
    if revision == noted.get("revision", 0) or _is_rescoring(session, project):
        return False
    now = database_now(session)
    rows = sum(cell.n for cell in load_cells(session, project.id, model_id=model.id))
    due = is_due(
        rows=rows,
        rows_then=int(noted.get("rows", 0)),
        revision=revision,
        revision_then=int(noted.get("revision", 0)),
        since=_since(noted, now) if noted else timedelta(0),
        every_labels=settings.refit_every_labels,
        every_minutes=settings.refit_every_minutes,
    )
    if not noted or due:
        # The first look at a project starts its clock, so that few labels are not left waiting for ever.
        fresh = {"model": model.id, "rows": rows if due else 0, "revision": revision if due else 0}
        set_state(session, project.id, REFIT, fresh | {"at": now.isoformat()})
    if due:
        payload = {"reason": f"{rows} labels"}
        enqueue_job(session, "refit", key=f"refit:{project.uid}", project_id=project.id, payload=payload)
    return due


def _since(noted: dict[str, object], now: datetime) -> timedelta | None:
    at = read_time(noted.get("at"))
    return None if at is None else now - at


def _is_rescoring(session: Session, project: ProjectRecord) -> bool:
    found = sa.select(Job.id).where(Job.key == f"rescore:{project.uid}", Job.state.in_(["queued", "running"]))
    return session.execute(found.limit(1)).scalar_one_or_none() is not None
