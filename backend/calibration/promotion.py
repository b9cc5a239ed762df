"""A project gets a model of its own, or goes back to one it had: states, scoring and publishing in one transaction.

METHODS 13.8. The first model of a project serves from that transaction on, unless an earlier one has thresholds: then
that one goes on until the labels were scored under the new one (METHODS 8.4), which is the job asked for here. A
model that has thresholds of its own, because it served before, serves with them at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from backend.calibration.model_change import rescore_is_due
from backend.domain.project_model import ProjectModel
from backend.domain.records import ProjectRecord
from backend.jobs.kinds import queue_publish, queue_rescore
from backend.models.own import own_header, seen_header
from backend.models.stored import keep_model
from backend.settings import Settings
from backend.store.actions import record_action
from backend.store.handover import begin_handover
from backend.store.jobs import set_payload
from backend.store.project_models import promote_model, register_model, serving_model
from backend.store.training import record_training_tasks
from backend.tagger.errors import InvalidModel
from backend.tagger.model_files import read_header

PROMOTED = "promote"


def add_model(
    session: Session,
    project: ProjectRecord,
    directory: str | Path,
    *,
    settings: Settings,
    base: str,
    labels: int,
    trained_on: Mapping[str, Iterable[int]],
    asked_by: str,
    recipe: Mapping[str, Any] | None = None,
    figures: Mapping[str, Any] | None = None,
    labels_until: datetime | None = None,
    why: str = "",
) -> ProjectModel:
    """Keep a trained model for every replica and register it as a candidate of the project, with what it learnt from.

    All of it is in the caller's transaction: there is no candidate without its file, nor without the tasks whose labels
    are no evidence about it. A model that is registered already keeps its state.

    Args:
        directory: what `surespan train` wrote.
        base: `bundled`, `nothing`, or the hash of the model that training began with.
        labels: how many labels it learnt from.
        trained_on: ids of tasks by purpose: `training`, `stopping` or `choice`.
        labels_until: the moment up to which labels were read.
        figures: how good it was on labels held out for choosing.

    Raises:
        InvalidModel: when there is no trained model in the directory.
    """
    header = read_header(directory)
    if header is None:
        raise InvalidModel("expected a model made by `surespan train`, got a directory without one")
    digest = keep_model(session, directory, settings=settings)
    for purpose, tasks in trained_on.items():
        record_training_tasks(session, digest, tasks, purpose=purpose)
    return register_model(
        session,
        project.id,
        model_hash=digest,
        name=header.name,
        classes=header.classes,
        base=base,
        labels=labels,
        asked_by=asked_by,
        recipe=recipe,
        figures=figures,
        labels_until=labels_until,
        why=why,
    )


def promote(
    session: Session, project: ProjectRecord, model_hash: str, *, settings: Settings, who: str, why: str
) -> ProjectModel:
    """Let a model be the project's own; asks that labels be scored under it and Label Studio brought up to date.

    A retired one is gone back to in the same way. Nothing is asked for if it serves already.

    Raises:
        NotFound: when the project has no such model, or its file is gone.
    """
    before = serving_model(session, project.id)
    model = promote_model(session, project.id, model_hash, why=why)
    if before is not None and before.model_hash == model.model_hash:
        return model
    header = own_header(model, unit=settings.unit)
    seen = seen_header(header, project.label_config, control=settings.labels_control)
    if rescore_is_due(session, project, header=seen):
        begin_handover(session, project.id, to=seen.hash)
    if not seen.blank:
        # A job that waits was to be about the model before.
        set_payload(session, queue_rescore(session, project, model=seen.hash), {"model": seen.hash})
    queue_publish(session, project)
    details = {"model": model.version, "before": None if before is None else before.version, "why": why}
    record_action(session, project.id, who=who, action=PROMOTED, details=details)
    return model
