"""From one model of a project to the next: which ones have thresholds, and whether the next is ready (METHODS 8.4).

A project with thresholds is served by them, with the model they were fitted for, until its labels have been scored
under the new model and thresholds were fitted on that. `begin_handover` notes that this is under way, in the
transaction that queues the job; `end_handover` that it is done, in the one that activates the new thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.label_choice import MAJORITY
from backend.domain.records import ModelRecord
from backend.store.state import HANDOVER, get_state, set_state
from backend.store.tables import ActiveVersion, CalibrationScore, Label, Model, Task, ThresholdVersion


@dataclass(frozen=True)
class ActiveModel:
    """A model that has thresholds for a project; `n` labels are behind them."""

    model: ModelRecord
    version_id: int
    n: int
    guarantee: str
    activated_at: datetime


def active_models(session: Session, project_id: int) -> list[ActiveModel]:
    """Return the models that have an active version for a project, the last activated first."""
    rows = session.execute(
        sa.select(Model, ActiveVersion.version_id, ActiveVersion.activated_at, ThresholdVersion.n)
        .add_columns(ThresholdVersion.guarantee)
        .join(ActiveVersion, ActiveVersion.model_id == Model.id)
        .join(ThresholdVersion, ThresholdVersion.id == ActiveVersion.version_id)
        .where(ActiveVersion.project_id == project_id)
        .order_by(ActiveVersion.activated_at.desc(), ActiveVersion.version_id.desc())
    )
    return [
        ActiveModel(
            ModelRecord(model.id, model.name, model.hash, tuple(model.classes), dict(model.details)),
            version,
            int(n),
            guarantee,
            at,
        )
        for model, version, at, n, guarantee in rows
    ]


def count_labels(session: Session, project_id: int) -> int:
    """Return how many tasks of a project have a confirmed label."""
    query = sa.select(sa.func.count()).select_from(Label).where(Label.project_id == project_id)
    return int(session.execute(query.where(Label.policy == MAJORITY, Label.spans.is_not(None))).scalar_one())


def has_rows(session: Session, project_id: int, *, model_id: int) -> bool:
    """Whether any label of a project was ever scored under a model."""
    query = (
        sa.select(CalibrationScore.id)
        .join(Task, Task.id == CalibrationScore.task_id)
        .where(Task.project_id == project_id, CalibrationScore.model_id == model_id)
        .limit(1)
    )
    return session.execute(query).first() is not None


def begin_handover(session: Session, project_id: int, *, to: str) -> None:
    """Note that labels are being scored under the model of this hash; until the end the one before it serves."""
    set_state(session, project_id, HANDOVER, {"to": to, "done": False})


def end_handover(session: Session, project_id: int, *, to: str) -> None:
    """Note that the model of this hash is ready to serve; a hand-over to another one is left alone."""
    if under_way(get_state(session, project_id, HANDOVER)) == to:
        set_state(session, project_id, HANDOVER, {"to": to, "done": True})


def under_way(state: dict[str, object] | None) -> str | None:
    """Return the hash of the model that is not ready yet, None when no hand-over is under way.

    >>> under_way({"to": "ab", "done": False}), under_way({"to": "ab", "done": True}), under_way(None)
    ('ab', None, None)
    """
    return None if state is None or state.get("done") else str(state.get("to"))


def handover_target(session: Session, project_id: int) -> str | None:
    """Return the hash of the model that labels are being scored under, None when no hand-over is under way."""
    return under_way(get_state(session, project_id, HANDOVER))
