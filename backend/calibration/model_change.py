"""A new model for a project that has labels: they are scored under it, thresholds are fitted, then it serves.

METHODS 8.4. Nobody waits: the job runs in the background, page by page, and begins again where it was broken off,
because a label that has its row is not scored twice. Until its end the earlier model serves (`backend.models.views`).
"""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy.orm import Session

from backend.calibration.refit import run_refit
from backend.calibration.score_labels import score_unscored
from backend.domain.records import JobRecord, ProjectRecord
from backend.jobs.context import WorkContext
from backend.jobs.kinds import Kind, is_running, queue_publish, queue_rescore
from backend.models.views import Views
from backend.store import Store
from backend.store.handover import active_models, begin_handover, count_labels, end_handover, handover_target, has_rows
from backend.store.jobs import heartbeat
from backend.store.projects import list_projects, lookup_model
from backend.tagger.blank import BLANK_REASON, BlankTagger
from backend.tagger.identity import ModelHeader

_log = logging.getLogger(__name__)


def queue_rescores(store: Store, views: Views) -> set[int]:
    """Queue the scoring of stored labels under the settings' model wherever that is due; returns those projects.

    Also returned are projects whose labels are being scored: whoever catches up on single labels leaves them alone.
    """
    with store.read() as session:
        projects = list_projects(session)
    due = set()
    for project in projects:
        header = views.model_of(project)
        with store.read() as session:
            wanted = rescore_is_due(session, project, header=header)
        if wanted and store.run(lambda session, p=project, h=header: queue_due_rescore(session, p, header=h)):  # type: ignore[misc]
            due.add(project.id)
    return due


def rescore_is_due(session: Session, project: ProjectRecord, *, header: ModelHeader) -> bool:
    """Whether a project has labels (or thresholds of an earlier model) and this model is not ready for it yet.

    A project whose first model is collecting its first rows is none of that. Nor is one whose labels the model does not
    know: there is nothing to score them by, and an earlier model that knows them goes on.
    """
    if header.blank:
        return False
    others = active_models(session, project.id)
    if handover_target(session, project.id) == header.hash:
        return True
    if any(each.model.hash == header.hash for each in others):
        return False
    if others:
        return True
    if not count_labels(session, project.id):
        return False
    model = lookup_model(session, header.name, header.hash)
    return model is None or not has_rows(session, project.id, model_id=model.id)


def queue_due_rescore(session: Session, project: ProjectRecord, *, header: ModelHeader) -> bool:
    """Queue the job if it is due, and note that the model is not ready; returns whether a job waits or runs.

    A run in progress is left to finish: what it has not seen, the catch-up does afterwards.
    """
    if not rescore_is_due(session, project, header=header):
        return False
    if not is_running(session, Kind.RESCORE, project):
        begin_handover(session, project.id, to=header.hash)
        queue_rescore(session, project, model=header.hash)
    return True


def run_rescore(context: WorkContext, job: JobRecord) -> dict[str, Any]:
    """Do a job of kind `rescore`: score the project's labels under the settings' model, refit, and let it serve.

    Labels whose text a retention rule has removed cannot be scored; they are counted in the result. Labels that went
    into the model are scored and excluded (`backend.store.training`).
    """
    project = context.project_of(job)
    model, tagger = context.model_of(project)
    if isinstance(tagger, BlankTagger):
        return {"skipped": BLANK_REASON}
    wanted = job.payload.get("model")
    if wanted not in {None, model.hash}:
        context.log.warning("labels are to be scored under a model that this process does not have: restart it")
        return {"skipped": "another model", "model": model.version}
    with context.store.read() as session:
        total = count_labels(session, project.id)
    looked = 0

    def tell(more: int) -> None:
        nonlocal looked
        looked += more
        context.heartbeat(done=looked, total=max(total, looked), note=f"scoring under {model.version}")

    context.heartbeat(done=0, total=total, note=f"scoring under {model.version}")
    done = score_unscored(
        context.store, project, model=model, tagger=tagger, progress=tell, max_text=context.settings.max_text
    )
    if done.without_text:
        context.log.warning(
            "labels without their text cannot be scored under the new model",
            extra={"project": project.uid, "labels": done.without_text},
        )
    fitted = run_refit(context, job)

    def finish(session: Session) -> None:
        heartbeat(session, job)
        end_handover(session, project.id, to=model.hash)
        # The job that the refit asked for may have run while the earlier model still served.
        queue_publish(session, project)

    context.store.run(finish)
    context.log.info("the new model serves", extra={"project": project.uid, "model_version": model.version})
    return {
        **fitted,
        "model": model.version,
        "scored": done.scored,
        "inexpressible": done.inexpressible,
        "without_text": done.without_text,
    }
