"""Decide again which rows may calibrate, when news about the draw or the order of tasks come late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sqlalchemy.orm import Session

from backend.calibration.label_worth import label_exclusion
from backend.domain.records import JobRecord, ProjectRecord
from backend.jobs.context import WorkContext
from backend.store import Store
from backend.store.calibration import record_units
from backend.store.labels import labels_of
from backend.store.projects import load_tasks, lock_tasks
from backend.store.rows import live_rows, row_errors, scored_models, stored_units
from backend.store.sampling import load_history, lock_project
from backend.store.training import TRAINED

_PAGE = 200


def reconsider(store: Store, project: ProjectRecord, *, progress: Callable[[int], None] | None = None) -> int:
    """Decide again for every row of a project, under all models, whether it may calibrate; returns how many changed.

    A row that does is retired and added again with its scores, so that every version of thresholds can still be
    rebuilt. Needs no model.
    """
    with store.read() as session:
        models = scored_models(session, project.id)
    changed = 0
    for model_id in models:
        after = 0
        while True:
            page = store.run(partial(_reconsider_page, project=project, model_id=model_id, after=after))
            if page is None:
                break
            after = page.last
            changed += page.changed
            if progress is not None:
                progress(page.looked)
    return changed


def run_reconsider(context: WorkContext, job: JobRecord) -> dict[str, int]:
    """Do the job of kind `reconsider`."""
    project = context.project_of(job)
    looked = 0

    def tell(more: int) -> None:
        nonlocal looked
        looked += more
        context.heartbeat(done=looked)

    return {"changed": reconsider(context.store, project, progress=tell), "rows": looked}


@dataclass(frozen=True)
class _Page:
    last: int
    looked: int
    changed: int


def _reconsider_page(session: Session, *, project: ProjectRecord, model_id: int, after: int) -> _Page | None:
    lock_project(session, project.id, shared=True)
    rows = live_rows(session, project.id, model_id=model_id, after=after, limit=_PAGE)
    if not rows:
        return None
    history = load_history(session, project.id)
    # From here on no label of these changes, so that what is read below is what is decided on.
    lock_tasks(session, [row.task_id for row in rows])
    labels = labels_of(session, [row.task_id for row in rows])
    tasks = load_tasks(session, [row.task_id for row in rows])
    changed = 0
    for row in rows:
        label = labels.get(row.task_id)
        if row.unit or label is None or label.revision != row.label_revision:
            continue  # a further unit, or what was scored no longer counts: the label will be scored again
        wanted = label_exclusion(label, tasks[row.task_id], history, trained=row.exclusion == TRAINED)
        if (wanted or "") == row.exclusion:
            continue
        changed += record_units(
            session,
            project.id,
            model_id=model_id,
            task_id=row.task_id,
            label_revision=row.label_revision,
            evidence=row.evidence,
            units=stored_units(session, row.task_id, model_id=model_id),
            exclusion=wanted,
            weight=row.weight,
            errors=row_errors(session, row),
        )
    return _Page(rows[-1].id, len(rows), changed)
