"""Tasks and their labels as plain rows: for tests that may not share a line of code with what reads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.store import Store

MOMENT = "2026-01-01 12:00:00.000000"

_TASK = sa.text(
    "INSERT INTO tasks (project_id, external_id, text_hash, text, length, stream, blind, created_at, deleted_at) "
    f"VALUES (:project, :task, :hash, :text, :length, :stream, :blind, '{MOMENT}', :deleted)"
)
_LABEL = sa.text(
    "INSERT INTO labels (project_id, task_id, policy, revision, spans, exclusion, votes, voters, changed_at) "
    f"VALUES (:project, :task, 'majority', 1, :spans, :exclusion, 1, 1, '{MOMENT}')"
)


def insert_label(
    store: Store,
    project_id: int,
    task: str,
    text: str | None,
    spans: Sequence[tuple[int, int, str]] | None,
    *,
    length: int | None = 5,
    stream: str | None = "uniform",
    blind: bool | None = False,
    deleted: bool = False,
    exclusion: str | None = None,
) -> int:
    """Insert a task with its label; returns the label's number."""
    fields = {
        "project": project_id,
        "task": task,
        "hash": hashlib.sha256(f"{task} {text}".encode()).digest(),
        "text": None if text is None else text.encode(),
        "length": length,
        "stream": stream,
        "blind": blind,
        "deleted": MOMENT if deleted else None,
    }
    label = {"spans": None if spans is None else json.dumps(spans), "exclusion": exclusion}

    def insert(session: Session) -> int:
        session.execute(_TASK, fields)
        number = session.execute(sa.text("SELECT max(id) FROM tasks")).scalar_one()
        session.execute(_LABEL, label | {"project": project_id, "task": number})
        return int(session.execute(sa.text("SELECT max(id) FROM labels")).scalar_one())

    return store.run(insert)
