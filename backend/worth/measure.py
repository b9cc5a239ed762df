"""The record of a project's worth: made by a job from labels and lists, read by pages as it is.

It reads a sample of the collection and the newest labels and submissions, so its work is bounded; pages read one small
record, whatever there are of labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from backend.acceptance.report import acceptance_report
from backend.calibration.evidence import Evidence
from backend.domain.records import JobRecord, ModelRecord, ProjectRecord
from backend.domain.streams import Order, review_began
from backend.domain.target import Target
from backend.jobs.context import WorkContext
from backend.jobs.kinds import Kind, is_pending, queue_worth
from backend.labelstudio.payloads import read_time
from backend.settings import Settings
from backend.store.calibration import head_revision
from backend.store.engine import database_now
from backend.store.jobs import last_job
from backend.store.projects import lookup_model
from backend.store.sampling import current_order, load_history
from backend.store.state import WORTH, get_state, set_state
from backend.store.worth import is_served_since, last_served, shared_tasks
from backend.tagger.identity import ModelHeader
from backend.tagger.tokens import tokenize
from backend.worth.accuracy import how_good, read_labels
from backend.worth.left import what_is_left
from backend.worth.sample import read_sample
from backend.worth.times import char_spans, read_work, what_it_saved, what_was_done
from conformal.estimates import agree

SHARED = 1_000  # tasks that several people labelled, the newest
LEAST_PAUSE = timedelta(minutes=10)  # between two measurements while labels come
MOST_PAUSE = timedelta(hours=1)  # after which what was served since is looked at too
PAUSES = 20  # times as long as it took: so it never takes more than a twentieth of a worker


def measure(
    session: Session,
    project: ProjectRecord,
    model: ModelRecord,
    *,
    target: Target,
    settings: Settings,
    beat: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Return the figures of a project under a model, as JSON values; needs no model in memory."""
    history = load_history(session, project.id)
    order = current_order(session, project.id)
    at_random = order in {Order.UNIFORM, Order.SHUFFLED} and review_began(history) is None and history.accepted is None
    sample = read_sample(session, project.id, model_id=model.id, target=target, beat=beat)
    blind, assisted = (
        read_labels(session, project.id, model_id=model.id, target=target, evidence=kind, beat=beat)
        for kind in (Evidence.BLIND, Evidence.ASSISTED)
    )
    work = read_work(session, project.id, history=history, target=target, beat=beat)
    shared = shared_tasks(session, project.id, limit=SHARED)
    agreement = agree(
        ([(each.start, each.end) for each in tokenize(text)], [char_spans(spans) for spans in people])
        for text, people in shared
    )
    return {
        "accuracy": how_good(blind, assisted, sample, at_random=at_random),
        "saving": what_it_saved(work, seed=project.id),
        "edits": what_was_done(work),
        "agreement": vars(agreement),
        "left": what_is_left(sample, blind, work, at_random=at_random)
        | {"acceptable": acceptance_report(session, project, model, settings=settings)["acceptable"]},
    }


def run_worth(context: WorkContext, job: JobRecord) -> dict[str, Any]:
    """Do a job of kind `worth`: measure, and keep the record that pages show."""
    project = context.project_of(job)
    header = context.views.serving_model(project)
    if header.blank or project.label_config is None:
        return {"skipped": "the model knows no label of the project: nothing is suggested yet"}
    target = context.views.target(project.label_config, header.classes)
    began = time.monotonic()

    def beat() -> None:
        context.heartbeat(note="measuring")

    with context.store.read() as session:
        model = lookup_model(session, header.name, header.hash)
        if model is None:
            return {"skipped": "nothing was asked of the model yet"}
        mark = _mark(session, project, model)
        figures = measure(session, project, model, target=target, settings=context.settings, beat=beat)
    seconds = time.monotonic() - began

    def keep(session: Session) -> None:
        at = database_now(session).isoformat()
        set_state(session, project.id, WORTH, figures | mark | {"at": at, "seconds": round(seconds, 2)})

    context.store.run(keep)
    return {"labels": figures["accuracy"][0]["labels"], "tasks": figures["left"]["tasks"]}


def queue_due_worth(session: Session, project: ProjectRecord, *, header: ModelHeader) -> bool:
    """Queue a measurement if it is time; returns whether it was. By counts and time alone.

    While labels come, every ten minutes or after twenty times what the last one took; hourly where only sets were
    served; never where nothing was. What was served for other projects asks for nothing.
    """
    model = lookup_model(session, header.name, header.hash)
    if model is None or header.blank or project.label_config is None or is_pending(session, Kind.WORTH, project):
        return False
    known, mark = get_state(session, project.id, WORTH) or {}, _mark(session, project, model)
    if not any((mark["revision"], mark["served"])) or all(known.get(name) == value for name, value in mark.items()):
        return False
    last = read_time(known.get("at"))
    age = None if last is None else database_now(session) - last
    fresh = known.get("model") == mark["model"] and known.get("revision") == mark["revision"]
    pause = max(LEAST_PAUSE, timedelta(seconds=PAUSES * float(known.get("seconds", 0.0))))
    if known.get("model") == mark["model"] and age is not None and age < (max(pause, MOST_PAUSE) if fresh else pause):
        return False
    if _failed_lately(session, project):
        return False
    if fresh and not is_served_since(session, project.id, after=int(known.get("served", 0))):
        set_state(session, project.id, WORTH, known | mark)  # so that the next look begins behind what was looked at
        return False
    queue_worth(session, project)
    return True


def _failed_lately(session: Session, project: ProjectRecord) -> bool:
    """Say whether a measurement was given up not long ago: it has been tried often enough for now."""
    last = last_job(session, Kind.WORTH.value, project_id=project.id)
    if last is None or last.state != "failed" or last.heartbeat_at is None:
        return False
    return database_now(session) - last.heartbeat_at < MOST_PAUSE


def _mark(session: Session, project: ProjectRecord, model: ModelRecord) -> dict[str, int]:
    """Return how far labels and served sets are: figures of the same mark are the same."""
    revision = head_revision(session, project.id, model_id=model.id)
    return {"model": model.id, "revision": revision, "served": last_served(session)}
