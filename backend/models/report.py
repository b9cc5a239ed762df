"""The models of a project, told to people and programs: which serves, what each learnt from, and its licence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from backend.domain.project_model import ProjectModel, State
from backend.domain.records import ProjectRecord
from backend.settings import Settings
from backend.store.project_models import kept_files, list_models
from backend.tagger.model_files import BUNDLED

LICENCE = "uses the bundled network, whose licence is non-commercial (CC BY-NC-SA 4.0)"
SHOWN = 50


def models_report(session: Session, project: ProjectRecord, *, settings: Settings) -> dict[str, Any]:
    """Return the models of a project, the newest first, and what serves it without one of its own."""
    models = list_models(session, project.id, limit=SHOWN)
    files = kept_files(session, [each.model_hash for each in models])
    base = settings.model or BUNDLED
    return {
        "project": project.uid,
        "serving": next((each.version for each in models if each.state is State.SERVING), None),
        "base": {"model": base, "licence": LICENCE if base == BUNDLED else ""},
        "models": [_describe(each, models, kept=each.model_hash in files) for each in models],
    }


def licence_of(model: ProjectModel, models: Sequence[ProjectModel]) -> str:
    """Say what the licence of the bundled weights asks of a model that came from them, itself or by way of others.

    Without such weights the model is the work of whoever labelled the texts, and this is empty.
    """
    known: Mapping[str, ProjectModel] = {each.model_hash: each for each in models}
    seen: set[str] = set()
    step: ProjectModel | None = model
    while step is not None and step.model_hash not in seen:
        if step.base == BUNDLED:
            return LICENCE
        seen.add(step.model_hash)
        step = known.get(step.base)
    return ""


def _describe(model: ProjectModel, models: Sequence[ProjectModel], *, kept: bool) -> dict[str, Any]:
    return {
        "hash": model.model_hash,
        "version": model.version,
        "state": model.state.value,
        "classes": list(model.classes),
        "labels": model.labels,
        "labels_until": _moment(model.labels_until),
        "base": model.base,
        "licence": licence_of(model, models),
        "figures": dict(model.figures),
        "recipe": dict(model.recipe),
        "asked_by": model.asked_by,
        "why": model.why,
        "created_at": _moment(model.created_at),
        "promoted_at": _moment(model.promoted_at),
        "retired_at": _moment(model.retired_at),
        "can_serve": kept,
    }


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
