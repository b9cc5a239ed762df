"""What people asked for on the pages: written with what they changed, in one transaction; never changed after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.text import plain
from backend.store.engine import database_now
from backend.store.tables import Action


@dataclass(frozen=True)
class ActionRecord:
    """Who asked for what, and when."""

    id: int
    at: datetime
    who: str
    action: str
    details: Mapping[str, Any]


def record_action(
    session: Session, project_id: int, *, who: str, action: str, details: Mapping[str, Any] | None = None
) -> int:
    """Keep that a person asked for something; call it in the transaction that does it. Returns its id."""
    row = Action(
        project_id=project_id,
        at=database_now(session),
        who=plain(who, 200),
        action=plain(action, 20),
        details=dict(details or {}),
    )
    session.add(row)
    session.flush()
    return row.id


def list_actions(session: Session, project_id: int, *, limit: int = 50) -> list[ActionRecord]:
    """Return the newest actions of a project, newest first."""
    rows = session.execute(
        sa.select(Action).where(Action.project_id == project_id).order_by(Action.id.desc()).limit(limit)
    ).scalars()
    return [ActionRecord(row.id, row.at, row.who, row.action, row.details) for row in rows]
