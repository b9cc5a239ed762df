"""What was given up after several tries: events, labels and jobs, with their reasons. Nothing of a text is in one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.store.attempts import retry_labels
from backend.store.events import replay_dead
from backend.store.jobs import failed_jobs, retry_jobs
from backend.store.projects import find_project
from backend.store.tables import Event, ScoringAttempt

_LOOKED_AT = 20


@dataclass(frozen=True)
class Aside:
    """How many of a kind were given up, and what the errors of the first of them are called."""

    kind: str
    count: int
    reasons: tuple[str, ...]


def list_aside(session: Session) -> list[Aside]:
    """Return what was given up in all projects: of kinds `event`, `label` and `job`, in this order."""
    events = sa.select(Event.action, Event.error).where(Event.state == "dead").order_by(Event.id).limit(_LOOKED_AT)
    dead = session.execute(sa.select(sa.func.count()).select_from(Event).where(Event.state == "dead")).scalar_one()
    aside = ScoringAttempt.set_aside_at.is_not(None)
    labels = session.execute(sa.select(sa.func.count()).select_from(ScoringAttempt).where(aside)).scalar_one()
    errors = sa.select(ScoringAttempt.error).where(aside).order_by(ScoringAttempt.project_id, ScoringAttempt.task_id)
    jobs = failed_jobs(session)
    return [
        Aside("event", int(dead), _named(f"{row.action} ({_kind(row.error)})" for row in session.execute(events))),
        Aside("label", int(labels), _named(map(_kind, session.execute(errors.limit(_LOOKED_AT)).scalars()))),
        Aside("job", len(jobs), _named(f"{job.kind} ({_kind(job.error)})" for job in jobs)),
    ]


def retry_aside(session: Session, *, project_key: str | None = None) -> dict[str, int]:
    """Let all that was given up (in one project) be tried again, as it came; returns how many of each kind."""
    project = None if project_key is None else find_project(session, project_key)
    again = {"event": replay_dead(session, project_key=project_key), "label": 0, "job": 0}
    if project_key is None or project is not None:
        number = None if project is None else project.id
        again |= {"label": retry_labels(session, project_id=number), "job": retry_jobs(session, project_id=number)}
    return again


def _kind(error: str | None) -> str:
    """Return what an error is called: its message may hold anything."""
    return (error or "unknown").split(":")[0][:80]


def _named(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))
