"""What a piece of background work is given: settings, the database, the model, and a way to say that it is alive."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy.orm import Session

from backend.domain.records import JobRecord, ModelRecord, ProjectRecord
from backend.errors import NotFound
from backend.labelstudio.client import LabelStudio
from backend.models.gate import FairGate
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.settings import Settings
from backend.store import Store
from backend.store.projects import ensure_model, load_project
from backend.tagger.project_classes import project_tagger
from backend.tagger.tagger import Tagger


class Heartbeat(Protocol):
    """Renews the job's lease and reports progress; raises `LeaseLost` when another process has the job."""

    def __call__(self, done: int | None = None, total: int | None = None, note: str | None = None) -> None:
        """Say how far the work is."""


@dataclass(frozen=True)
class WorkContext:
    """What the handlers of jobs work with; one is made for each job, around what the worker holds."""

    settings: Settings
    store: Store
    loader: ModelLoader
    views: Views
    label_studio: Callable[[], LabelStudio | None]
    heartbeat: Heartbeat
    log: logging.Logger

    def project_of(self, job: JobRecord) -> ProjectRecord:
        """Return the project that a job is about.

        Raises:
            NotFound: when the job names none, or one that is gone.
        """
        if job.project_id is None:
            raise NotFound(f"expected a job of kind {job.kind} to name its project, got none")
        with self.store.read() as session:
            return load_project(session, job.project_id)

    def starter_directory(self, project: ProjectRecord) -> Path:
        """Return where starter calibrations of the project's model lie, if it has any."""
        return self.views.base_of(project).directory

    def model_of(self, project: ProjectRecord) -> tuple[ModelRecord, Tagger]:
        """Return the project's model as the database knows it, and its tagger over the classes of its label config.

        Waits for the model.

        Raises:
            ModelUnavailable: when there is no model.
            InvalidLabelConfig: when the config has no labels over a text.
        """
        loader = self.views.base_of(project)
        tagger = self.views.models.tagger(loader, self.settings.model_wait)
        if project.label_config is not None:
            tagger = project_tagger(tagger, self.views.target(project.label_config, tagger.space.classes))
        origin = loader.header().origin  # kept, so that this model can serve on while a later one gets ready
        details = None if origin is None else origin.details()

        def work(session: Session) -> ModelRecord:
            return ensure_model(session, tagger.name, tagger.hash, classes=tagger.space.classes, details=details)

        return self.store.run(work), tagger


def no_heartbeat(done: int | None = None, total: int | None = None, note: str | None = None) -> None:
    """Say nothing: for work that no job asked for."""


class TurnTakingStore(Store):
    """A store whose writing transactions take turns with the others of the process at SQLite's one writer."""

    def __init__(self, raw_url: str, writing: FairGate, *, key: str = "worker", **options: Any) -> None:  # noqa: ANN401
        super().__init__(raw_url, **options)
        self._turns, self._key = writing, key

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One writing transaction, as `Store.write`, in its turn."""
        with self._turns.turn(self._key), super().write() as session:
            yield session
