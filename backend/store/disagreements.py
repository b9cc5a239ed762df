"""Tasks whose annotators said different things.

The label of such a task is the one that most of them gave (`domain.label_choice`); it counts like any other. Whoever
marks one annotation as ground truth settles the matter: then only ground truth votes.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.label_choice import MAJORITY
from backend.store.tables import Label, Task


@dataclass(frozen=True)
class Disagreement:
    """A task, how many of its annotators gave its label, and how many there are."""

    task: str
    votes: int
    voters: int


def disagreements(session: Session, project_id: int, *, limit: int) -> list[Disagreement]:
    """Return tasks that annotators labelled differently, those labelled first at the front.

    All of them are found alike, whatever stream a task was drawn for and whatever was predicted: settling them is then
    no selection (METHODS 8.4).
    """
    rows = session.execute(
        sa.select(Task.external_id, Label.votes, Label.voters)
        .join(Task, Task.id == Label.task_id)
        .where(Label.project_id == project_id, Label.policy == MAJORITY)
        .where(Label.votes < Label.voters, Label.exclusion.is_(None))
        .order_by(Label.id)
        .limit(limit)
    )
    return [Disagreement(*row) for row in rows]
