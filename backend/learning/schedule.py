"""When a project's model is trained by itself: at 20, 40, 80, ... labels that a model may learn from (METHODS 13.9).

The steps double, so each model gets as many labels afterwards as it was trained on, and all trainings together cost
about twice the last one. Decided by counts alone, never by what the labels say.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from backend.domain.records import ProjectRecord
from backend.jobs.kinds import Kind, is_pending, queue_train
from backend.settings import Settings
from backend.store.jobs import last_job
from backend.store.project_models import list_models
from backend.store.state import LEARNING, get_state, update_state
from backend.store.training import count_trainable

FIRST = 20
SCHEDULE = "the schedule"  # who asked, where nobody did


def next_step(labels: int) -> int:
    """Return at how many labels the next training is due after one with so many.

    >>> [next_step(n) for n in (0, 19, 20, 39, 40, 100, 1280)]
    [20, 20, 40, 40, 80, 160, 2560]
    """
    step = FIRST
    while step <= labels:
        step *= 2
    return step


def trained_at(session: Session, project: ProjectRecord) -> int:
    """Return how many labels there were when a model was last trained, or tried to be; 0 before the first time.

    A training that failed for good was tried: the next one is due at the next step, or when somebody asks.
    """
    tried = int((get_state(session, project.id, LEARNING) or {}).get("tried", 0))
    last = last_job(session, Kind.TRAIN.value, project_id=project.id)
    if last is not None and last.state == "failed":
        tried = max(tried, int(last.payload.get("labels", 0)))
    return max([tried, *(int(model.recipe.get("trainable", 0)) for model in list_models(session, project.id))])


def count_labels(session: Session, project: ProjectRecord) -> int:
    """Count the labels that a model may learn from, and note it for whoever must not take so long."""
    labels = count_trainable(session, project.id)
    if noted_labels(session, project) != labels:
        update_state(session, project.id, LEARNING, lambda noted: noted | {"labels": labels})
    return labels


def noted_labels(session: Session, project: ProjectRecord) -> int:
    """Return how many labels to learn from there were when they were last counted."""
    return int((get_state(session, project.id, LEARNING) or {}).get("labels", 0))


def note_tried(session: Session, project: ProjectRecord, labels: int, *, refused: str | None = None) -> None:
    """Note that labels up to this count were learnt from, or could not be: the schedule goes on from there."""
    update_state(session, project.id, LEARNING, lambda noted: noted | {"tried": labels, "refused": refused})


def queue_due_training(session: Session, project: ProjectRecord, *, settings: Settings) -> bool:
    """Queue a training if enough labels have come since the last one; returns whether it was."""
    if settings.learn == "off":
        return False
    labels = count_labels(session, project)
    if settings.learn != "auto" or is_pending(session, Kind.TRAIN, project):
        return False
    if labels < next_step(trained_at(session, project)):
        return False
    queue_train(session, project, who=SCHEDULE, labels=labels)
    return True
