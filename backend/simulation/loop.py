"""The product's own loop around a simulated project: what it serves, what it learns from labels, what it accepts.

Nothing is imitated but the server and the people: tasks are drawn, predicted and recorded as published ones are, labels
come into the inbox as webhooks, and the worker takes its steps one after the other, in this thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from backend.acceptance.decision import Wish
from backend.calibration.order import record_order
from backend.domain.records import ProjectRecord, TextSpan
from backend.domain.streams import Order
from backend.errors import BackendError
from backend.jobs.kinds import queue_accept
from backend.labelstudio.client import Json
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.publish import publish_project
from backend.publish.fresh import FreshPredictions
from backend.settings import Settings
from backend.simulation.annotators import Shown
from backend.simulation.desk import Desk, label_config
from backend.simulation.project import Corpus, PlayedProject, regions, spans_of
from backend.store import Store, open_store
from backend.store.events import store_events
from backend.store.jobs import failed_jobs, load_job
from backend.store.projects import ensure_project
from backend.store.state import CONNECTION, SALT, set_state
from backend.tagger.readers import LabelledText
from backend.worker.worker import Worker

SAMPLING = {Order.UNIFORM: "Uniform sampling", Order.REVIEW: "Uncertainty sampling"}


class SimulationFailed(BackendError):
    """A part of the loop failed, so that the campaign says nothing."""


class Loop(PlayedProject):
    """A project at work. Make it with `running`."""

    def __init__(self, settings: Settings, store: Store, corpus: Corpus, *, order: Order, loader: ModelLoader) -> None:
        config = label_config(corpus.labels)
        views = Views(settings, store, loader, poll=0.0)

        def begin(session: Session) -> ProjectRecord:
            made = ensure_project(session, corpus.uid, label_config=config)
            set_state(session, made.id, SALT, {"salt": corpus.salt})
            set_state(session, made.id, CONNECTION, {"backend": 1})
            record_order(session, made.id, order=order, at=datetime.now(UTC), source="declared")
            return made

        super().__init__(settings, store, corpus, project=store.run(begin), config=config, loader=loader, views=views)
        self.desk = Desk(
            corpus.uid,
            config,
            sampling=SAMPLING[order],
            tasks={number: _data(text) for number, text in corpus.texts.items()},
        )
        self._worker = Worker(
            settings, store, loader=loader, views=views, label_studio=lambda: self.desk, clock=lambda: 0.0
        )
        self._fresh: FreshPredictions | None = None

    def close(self) -> None:
        """Write what is left, and let the models go."""
        if self._fresh is not None:
            self._fresh.close()
        self._views.models.close()

    def show(self, numbers: Sequence[int]) -> dict[int, Shown]:
        """Have tasks predicted, drawn and recorded under what serves now, and return what their editor shows."""
        entries = self._predictions().of([self.desk.task(number) for number in numbers])
        return self._shown({number: entry[-1]["result"] for number, entry in zip(numbers, entries, strict=True)})

    def submit(self, labels: Mapping[int, tuple[Sequence[TextSpan], float]]) -> None:
        """Have labels come in with the seconds they took, and the worker work until nothing is due."""
        events = [
            self.desk.annotate(number, regions(self.corpus.texts[number].text, spans), seconds=seconds)
            for number, (spans, seconds) in labels.items()
        ]
        store_events(self.store, events)
        self._work()

    def publish(self) -> None:
        """Bring every task without a label up to date, as after each new version."""
        with self._connected():
            publish_project(self._context, self.desk, self.project)

    def accept(self, wish: Wish) -> Json:
        """Ask for a decision and have it acted on; returns what the job says."""
        with self._connected():
            job = self.store.run(
                lambda session: queue_accept(
                    session,
                    self.project,
                    max_error=wish.max_error,
                    promise=wish.promise.value,
                    who="simulation",
                )
            )
            self._work()
        with self.store.read() as session:
            done = load_job(session, job)
        return dict(done.result or {}) if done is not None else {}

    def accepted(self) -> dict[int, tuple[TextSpan, ...]]:
        """Return the tasks that are accepted now, with their labels."""
        return {number: spans_of(result) for number, result in self.desk.accepted().items()}

    def _predictions(self) -> FreshPredictions:
        view = self.view()
        if self._fresh is None or self._fresh.view.model_version != view.model_version:
            if self._fresh is not None:
                self._fresh.close()
            self._fresh = FreshPredictions(self._context, self.project, view, label_config=self._config)
        return self._fresh

    def _work(self) -> None:
        self._worker.hurry()
        self._worker.drain()
        with self.store.read() as session:
            failed = failed_jobs(session, project_id=self.project.id, limit=1)
        if failed:
            raise SimulationFailed(f"expected every job of the loop to be done, got a failed {failed[0].kind}")

    @contextmanager
    def _connected(self) -> Iterator[None]:
        self.desk.answers = True
        try:
            yield
        finally:
            self.desk.answers = False


@contextmanager
def running(
    settings: Settings, corpus: Corpus, *, order: Order, loader: ModelLoader, directory: Path
) -> Iterator[Loop]:
    """Lend a loop on a new database in a directory."""
    settings = settings.model_copy(
        update={
            "database_url": f"sqlite:///{directory / 'simulated.db'}",
            "model_dir": None,
            "worker": False,
            "sync_every_minutes": 0.0,
            "at_work_minutes": 0.0,
            "refit_every_minutes": 1e9,  # by counts alone: the time of a simulation means nothing
        }
    )
    with open_store(settings.database_url) as store:
        loop = Loop(settings, store, corpus, order=order, loader=loader)
        try:
            yield loop
        finally:
            loop.close()


def _data(text: LabelledText) -> dict[str, Any]:
    return {"text": text.text} | ({"language": text.language} if text.language else {})
