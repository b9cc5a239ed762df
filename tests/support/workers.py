"""The worker inside the process of the tests, and what it is sent: annotations as Label Studio delivers them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from backend.settings import load_settings
from backend.store import Store
from backend.store.tables import CalibrationScore, ScoringAttempt, Task
from tests.support.payload_shapes import annotation, project_object, region, task

if TYPE_CHECKING:
    from backend.models.loading import ModelLoader
    from backend.worker.worker import Worker

MakeWorker = Callable[..., "Worker"]


@pytest.fixture(scope="session")
def loader(served_model: Path) -> ModelLoader:
    """The small model, loaded once."""
    from backend.models.loading import ModelLoader

    made = ModelLoader(load_settings(model=str(served_model)))
    made.start()
    made.tagger(120.0)
    return made


@pytest.fixture
def make_worker(url: str, store: Store, served_model: Path, loader: ModelLoader) -> MakeWorker:
    """Make workers on the test's database, with other settings; their turns never end for want of time."""
    from backend.models.views import Views
    from backend.worker.worker import Worker

    settings = load_settings(
        database_url=url,
        model=str(served_model),
        refit_every_labels=40,
        n_min=5,
        sync_every_minutes=0,
    )

    def made(**changes: Any) -> Worker:
        mine = settings.model_copy(update=changes)
        return Worker(mine, store, loader=loader, views=Views(mine, store, loader), clock=lambda: 0.0)

    return made


def labelled(
    number: int, text: str, spans: list[tuple[int, int, str]], *, project: int = 31, **more: Any
) -> dict[str, Any]:
    """An annotation as Label Studio sends it, of a task with the same number."""
    made = annotation(number, task_id=number, **more)
    made["result"] = [
        region(start, end, text, label, origin="manual") | {"id": f"r{place}"}
        for place, (start, end, label) in enumerate(spans)
    ]
    about = project_object(project) | {"sampling": "Uniform sampling"}
    return {"action": "ANNOTATION_CREATED", "annotation": made, "task": task(number, text), "project": about}


def let_attempts_rest(store: Store) -> None:
    """Move the attempts at labels back in time, as waiting would."""
    with store.write() as session:
        session.execute(sa.update(ScoringAttempt).values(updated_at=datetime(2026, 1, 1, tzinfo=UTC)))


def catch_up(worker: Worker) -> None:
    """Let the worker look for labels without a row, as it does every few minutes."""
    let_attempts_rest(worker.store)
    worker._due.pop("catch up", None)
    worker.drain()


def scored_tasks(store: Store) -> set[str]:
    """The tasks whose labels have a row that stands."""
    with store.read() as session:
        rows = sa.select(Task.external_id).join(CalibrationScore, CalibrationScore.task_id == Task.id)
        return set(session.execute(rows.where(CalibrationScore.removed_at_revision.is_(None))).scalars())


def attempts(store: Store) -> dict[str, tuple[int, str | None, bool]]:
    """By task: how often scoring was begun without an end, why it failed, and whether it is set aside."""
    with store.read() as session:
        rows = sa.select(Task.external_id, ScoringAttempt).join(Task, Task.id == ScoringAttempt.task_id)
        return {name: (row.attempts, row.error, row.set_aside_at is not None) for name, row in session.execute(rows)}
