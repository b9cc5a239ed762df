"""Whether a trained model takes the place of the one that serves a project (METHODS 13.4).

Which is better is asked of labels that were drawn for it beforehand and that neither learnt from; whether there is
enough to calibrate by is asked of counts. So nothing that calibrates a model has chosen it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sqlalchemy.orm import Session

from backend.calibration.label_worth import label_exclusion
from backend.calibration.promotion import promote
from backend.domain.project_model import ProjectModel, State
from backend.domain.records import ProjectRecord
from backend.settings import Settings
from backend.store.handover import active_models
from backend.store.labels import list_labels
from backend.store.project_models import list_models, retire_model, serving_model
from backend.store.projects import load_tasks
from backend.store.sampling import load_history
from backend.store.training import training_tasks

LEAST_TO_COMPARE = 10  # held-out texts that say which of two models is better
_PAGE = 500


@dataclass(frozen=True)
class Rival:
    """The model that serves while another one was trained.

    `unknown` is how many labels of the project it does not know, `blank` that it knows none; `own` that it was trained
    for the project; `f1` is on the labels held out for choosing, None where there are none.
    """

    version: str
    own: bool
    blank: bool
    unknown: int
    f1: float | None


def is_better(rival: Rival, *, unknown: int, f1: float | None, compared: int) -> tuple[bool, str]:
    """Say whether a trained model is better than the one that serves, and why.

    Args:
        unknown: how many labels of the project the trained model does not know.
        f1: on the labels held out for choosing, None where there are none.
        compared: how many texts those are.
    """
    if rival.blank:
        return True, "the first model that knows the project's labels"
    if rival.unknown > unknown:
        return True, f"knows {rival.unknown - unknown} more of the project's labels than {rival.version}"
    if f1 is None or rival.f1 is None or compared < LEAST_TO_COMPARE:
        if rival.own:
            return True, f"learnt from more labels than {rival.version}; {compared} held out are too few to compare by"
        return False, (
            f"{compared} labels held out are too few to compare it with {rival.version}: it takes {LEAST_TO_COMPARE}"
        )
    figures = f"F1 {f1:.3f} against {rival.f1:.3f} of {rival.version} on {compared} texts held out for choosing"
    return f1 >= rival.f1, figures


def evidence_needed(session: Session, project: ProjectRecord, rival: Rival, *, settings: Settings) -> int:
    """Return how many labels must be there to calibrate a model by before it takes the place of its rival.

    As many as the rival's thresholds rest on, or what a stratum needs to stand alone if that is less. Where the rival
    has borrowed ones, what the level needs at the very least. None where there is nothing to lose.
    """
    if rival.blank or (rival.unknown and not rival.own):
        return 0
    active = active_models(session, project.id)
    own = min(active[0].n, settings.n_min) if active else 0
    least = 0 if rival.own else math.ceil(1.0 / float(project.alpha or settings.alpha)) - 1
    return max(own, least)


def count_evidence(session: Session, project: ProjectRecord, model: ProjectModel, *, enough: int) -> int:
    """Return how many labels may calibrate a model that has not served yet; stops counting at `enough`."""
    history = load_history(session, project.id)
    count = after = 0
    while count < enough and (page := list_labels(session, project.id, after=after, limit=_PAGE)):
        after = page[-1].id
        tasks = load_tasks(session, [label.task_id for label in page])
        trained = training_tasks(session, model.model_hash, list(tasks), ancestors=model.recipe.get("ancestors", ()))
        count += sum(
            label.spans is not None
            and label_exclusion(label, tasks[label.task_id], history, trained=label.task_id in trained) is None
            for label in page
        )
    return min(count, enough)


def consider_candidate(session: Session, project: ProjectRecord, rival: Rival, *, settings: Settings) -> str | None:
    """Let the newest candidate serve if it is better and there is enough to calibrate it by; returns its version.

    Call it when one was trained, and when labels have come since.
    """
    newest = next((model for model in list_models(session, project.id) if model.state is State.CANDIDATE), None)
    if newest is None or not newest.figures.get("better"):
        return None
    needed = evidence_needed(session, project, rival, settings=settings)
    if count_evidence(session, project, newest, enough=needed) < needed:
        return None
    return promote(session, project, newest.model_hash, settings=settings, who=newest.asked_by, why=newest.why).version


def has_candidate(session: Session, project: ProjectRecord) -> bool:
    """Whether a model waits for labels to calibrate it by."""
    return any(m.state is State.CANDIDATE and m.figures.get("better") for m in list_models(session, project.id))


def retire_older(session: Session, project: ProjectRecord, newest: ProjectModel) -> None:
    """Retire candidates that a newer one has overtaken before they could serve."""
    for model in list_models(session, project.id):
        if model.state is State.CANDIDATE and model.id != newest.id:
            retire_model(session, project.id, model.model_hash, why=f"overtaken by {newest.version} before it served")


def has_own(session: Session, project: ProjectRecord) -> bool:
    """Whether the project's model was trained for it."""
    return serving_model(session, project.id) is not None
