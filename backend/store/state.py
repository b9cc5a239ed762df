"""Small JSON objects that parts of the loop keep per project, under a name each."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.store.engine import database_now
from backend.store.tables import ProjectState
from backend.store.upsert import get_or_create, insert

# Every name that something is kept under.
SALT = "salt"  # of the draws
REFIT = "refit"  # the last refit that changed nothing: no version says when that was
SYNC = "sync"  # how far it is
PUBLISH = "publish"  # how far it is
EDITED_TASKS = "edited"  # in the state of publishing: tasks whose predictions were made for another text
CONNECTION = "connection"  # what `connect` changed
ADAPTIVE = "adaptive"  # whether the project's level follows its misses
HANDOVER = "handover"  # the model that labels are being scored under
HEARD = "heard"  # when the project object that is kept was last changed, by the server's clock
LABELS = "labels"  # the labels that the label config has or had, and since when
LEARNING = "learning"  # with how many labels a training was last tried, and what became of it
SECOND_LOOKS = "second-looks"  # the figures of the lists
WORTH = "worth"  # how good prelabels are, what they saved, what is left: the record that a job makes

Value = dict[str, Any]


def get_state(session: Session, project_id: int, name: str) -> Value | None:
    """Return what is kept under a name, None when nothing ever was."""
    row = session.execute(
        sa.select(ProjectState).filter_by(project_id=project_id, name=name).execution_options(populate_existing=True)
    ).scalar_one_or_none()
    return None if row is None else dict(row.value)


def set_state(session: Session, project_id: int, name: str, value: Mapping[str, Any]) -> None:
    """Replace what is kept under a name."""
    row = {"project_id": project_id, "name": name, "value": dict(value), "updated_at": database_now(session)}
    statement = insert(session, ProjectState).values(row)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=["project_id", "name"],
            set_={"value": statement.excluded.value, "updated_at": statement.excluded.updated_at},
        )
    )


def update_state(session: Session, project_id: int, name: str, change: Callable[[Value], Value]) -> Value:
    """Replace what is kept under a name by what `change` makes of it ({} at first), under the row's lock."""
    now = database_now(session)
    key = {"project_id": project_id, "name": name}
    row = get_or_create(session, ProjectState, key, {"value": {}, "updated_at": now}, lock=True)
    row.value = change(dict(row.value))
    row.updated_at = now
    session.flush()
    return dict(row.value)


def ensure_salt(session: Session, project_id: int) -> str:
    """Return the project's salt, made at random once: nobody can tell what a task will be drawn for (METHODS 8.1)."""
    known = get_state(session, project_id, SALT)
    if known is None:
        key = {"project_id": project_id, "name": SALT}
        fresh = {"value": {"salt": secrets.token_hex(16)}, "updated_at": database_now(session)}
        known = dict(get_or_create(session, ProjectState, key, fresh).value)
    return str(known["salt"])
