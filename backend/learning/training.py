"""The job that trains a project's model: its labels in, a candidate out, which serves if it is better.

Everything that training brings is written in one transaction: the file, what is known of the model, and which labels it
has seen. Killed before, it begins again and comes to the same model; killed after, nothing is left to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy.orm import Session

from backend.calibration.promotion import add_model
from backend.domain.project_model import ProjectModel
from backend.domain.records import JobRecord, ProjectRecord
from backend.errors import InvalidLabelConfig
from backend.jobs.context import WorkContext
from backend.labels.training_sets import read_project
from backend.learning.choice import Rival, consider_candidate, has_own, is_better, retire_older
from backend.learning.parts import Parts, as_classes, part_labels
from backend.learning.process import Trained, train_apart
from backend.learning.progress import TimeLeft, progress_note
from backend.learning.schedule import SCHEDULE, note_tried
from backend.store.engine import database_now
from backend.store.jobs import heartbeat
from backend.store.training import count_trainable
from backend.tagger.blank import BlankTagger
from backend.tagger.entity_f1 import entity_f1
from backend.tagger.errors import InvalidTraining

_STEPS = 100  # of which progress is told


@dataclass(frozen=True)
class _Outcome:
    """What a training came to."""

    model: ProjectModel
    serves: bool


def run_train(context: WorkContext, job: JobRecord) -> dict[str, Any]:
    """Do a job of kind `train`: train a model from the project's labels and let it serve if it is better.

    A project without anything to learn from is no failure: the job says why, and the next label changes that.
    """
    project = context.project_of(job)
    if context.settings.learn == "off":
        return {"skipped": "SURESPAN_LEARN is off"}
    with context.store.read() as session:
        until, trainable = database_now(session), count_trainable(session, project.id)
    with TemporaryDirectory(prefix="surespan-training-") as folder:
        return _train(context, job, project, Path(folder), until=until, trainable=trainable)


def _train(
    context: WorkContext, job: JobRecord, project: ProjectRecord, folder: Path, *, until: datetime, trainable: int
) -> dict[str, Any]:
    try:
        labels = read_project(context.store, project.uid)
        parts = part_labels(labels)
        context.log.info("training begins", extra={"project": project.uid, "labels": len(parts.training)})
        left = TimeLeft()
        trained = train_apart(
            parts,
            folder,
            name=f"project-{project.key}-{len(parts.training)}",
            start=context.settings.learn_from,
            tell=lambda stage, share: context.heartbeat(
                done=round(share * _STEPS),
                total=_STEPS,
                note=progress_note(len(parts.training), stage, left.guess(share)),
            ),
        )
    except (InvalidTraining, InvalidLabelConfig) as error:
        reason = str(error)
        context.store.run(lambda session: note_tried(session, project, trainable, refused=reason))
        return {"skipped": reason, "labels": trainable}
    rival = rival_of(context, project, parts)

    def write(session: Session) -> _Outcome:
        heartbeat(session, job)  # nobody else has the job
        return _keep(
            session, context, project, trained, parts, rival=rival, until=until, trainable=trainable,
            who=str(job.payload.get("who") or SCHEDULE),
        )  # fmt: skip

    outcome = context.store.run(write)
    context.log.info(
        "a model was trained",
        extra={"project": project.uid, "model_version": outcome.model.version, "serves": outcome.serves},
    )
    return {
        "model": outcome.model.version,
        "labels": len(parts.training),
        "classes": list(trained.classes),
        "base": trained.base,
        "serves": outcome.serves,
        "why": outcome.model.why,
    }


def rival_of(context: WorkContext, project: ProjectRecord, parts: Parts | None = None) -> Rival:
    """Return the model that serves a project, judged by the labels that are held out for choosing."""
    _, tagger = context.model_of(project)
    blank = isinstance(tagger, BlankTagger)
    with context.store.read() as session:
        own = has_own(session, project)
    classes = () if blank else tagger.space.classes
    unknown = len(context.views.unknown_labels(project, context.views.model_of(project)))
    choice = [] if blank or parts is None else as_classes(parts.choice, project.label_config, classes)
    f1 = entity_f1(tagger, choice) if choice else None
    return Rival(f"{tagger.name}@{tagger.hash[:8]}", own, blank, unknown, f1)


def _keep(
    session: Session,
    context: WorkContext,
    project: ProjectRecord,
    trained: Trained,
    parts: Parts,
    *,
    rival: Rival,
    until: datetime,
    trainable: int,
    who: str,
) -> _Outcome:
    """Keep a trained model and decide whether it serves."""
    unknown = 0
    if project.label_config is not None:
        unknown = len(context.views.target(project.label_config, trained.classes).unknown)
    better, why = is_better(rival, unknown=unknown, f1=trained.choice_f1, compared=len(parts.choice))
    model = add_model(
        session,
        project,
        trained.directory,
        settings=context.settings,
        base=trained.base,
        trained_on=parts.tasks,
        labels=len(parts.training),
        labels_until=until,
        asked_by=who,
        recipe={"start": context.settings.learn_from, "ancestors": list(trained.ancestors), "trainable": trainable},
        figures={
            "better": better,
            "choice_f1": trained.choice_f1,
            "choice_texts": len(parts.choice),
            "rival": rival.version,
            "rival_f1": rival.f1,
            "held_f1": trained.report["held_f1"],
            "held_loss": trained.report["held_loss"],
        },
        why=why,
    )
    retire_older(session, project, model)
    version = consider_candidate(session, project, rival, settings=context.settings)
    note_tried(session, project, trainable)
    return _Outcome(model, version == model.version)
