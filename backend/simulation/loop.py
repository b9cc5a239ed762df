"""The product's own loop around a simulated project: what it serves, what it learns from labels, what it accepts.

Nothing is imitated but the server and the people: tasks are drawn, predicted and recorded as published ones are, labels
come into the inbox as webhooks, and the worker takes its steps one after the other, in this thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import conformal
from backend.acceptance.decision import Standing, Wish, stand
from backend.calibration.order import record_order
from backend.domain.guarantee import Guarantee
from backend.domain.records import AcceptanceRecord, ProjectRecord, TaskRecord, TextSpan, VersionRecord
from backend.domain.streams import Order
from backend.errors import BackendError
from backend.jobs.kinds import queue_accept
from backend.labelstudio.client import Json
from backend.models.loading import ModelLoader
from backend.models.views import View, Views
from backend.publish import publish_project
from backend.publish.fresh import FreshPredictions
from backend.review.queue import review_queue
from backend.settings import Settings
from backend.simulation.annotators import Shown
from backend.simulation.desk import FLAG, Desk, label_config
from backend.store import Store, open_store
from backend.store.acceptance import count_blind_labels, list_acceptances
from backend.store.events import store_events
from backend.store.jobs import failed_jobs, load_job
from backend.store.project_models import list_models
from backend.store.projects import ensure_project, find_task, lookup_model
from backend.store.queue import QueuedTask
from backend.store.state import CONNECTION, SALT, set_state
from backend.store.thresholds import active_version
from backend.tagger.blank import BlankTagger
from backend.tagger.readers import LabelledText
from backend.tagger.spans import to_char_spans
from backend.worker.worker import Worker

SAMPLING = {Order.UNIFORM: "Uniform sampling", Order.REVIEW: "Uncertainty sampling"}
UID = "1.1790000000"
_TOGETHER = 200


class SimulationFailed(BackendError):
    """A part of the loop failed, so that the campaign says nothing."""


@dataclass(frozen=True)
class Corpus:
    """The tasks of a project by their numbers, the labels of its config, and under which name and salt it is drawn."""

    texts: Mapping[int, LabelledText]
    labels: tuple[str, ...]
    salt: str
    uid: str = UID


class Loop:
    """A project at work. Make it with `running`."""

    def __init__(
        self, settings: Settings, store: Store, corpus: Corpus, *, order: Order, loader: ModelLoader
    ) -> None:
        self.store, self.corpus = store, corpus
        self._settings = settings
        self._config = label_config(corpus.labels)
        self.desk = Desk(
            corpus.uid,
            self._config,
            sampling=SAMPLING[order],
            tasks={number: _data(text) for number, text in corpus.texts.items()},
        )
        self._views = Views(settings, store, loader, poll=0.0)
        self._worker = Worker(
            settings,
            store,
            loader=loader,
            views=self._views,
            label_studio=lambda: self.desk,
            clock=lambda: 0.0,
        )
        self._context = self._worker.context()
        self._fresh: FreshPredictions | None = None
        with store.write() as session:
            self.project: ProjectRecord = ensure_project(session, corpus.uid, label_config=self._config)
            set_state(session, self.project.id, SALT, {"salt": corpus.salt})
            set_state(session, self.project.id, CONNECTION, {"backend": 1})
            record_order(session, self.project.id, order=order, at=datetime.now(UTC), source="declared")

    def close(self) -> None:
        """Write what is left, and let the models go."""
        if self._fresh is not None:
            self._fresh.close()
        self._views.models.close()

    def view(self) -> View:
        """Return what serves now."""
        return self._views.view(self.corpus.uid, self._config)

    def show(self, numbers: Sequence[int]) -> dict[int, Shown]:
        """Have tasks predicted, drawn and recorded under what serves now, and return what their editor shows."""
        entries = self._predictions().of([self.desk.task(number) for number in numbers])
        view = self.view()
        with self.store.read() as session:
            tasks = {
                number: find_task(session, self.project.id, external_id=str(number)) for number in numbers
            }
        return {
            number: self._shown(view, tasks[number], entry[-1]["result"])
            for number, entry in zip(numbers, entries, strict=True)
        }

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

    def queue(self, limit: int, *, evidence_first: bool = False) -> list[QueuedTask]:
        """Return what to look at next."""
        model = self._context.model_of(self.project)[0]
        with self.store.read() as session:
            return review_queue(
                session,
                self.project.id,
                model_id=model.id,
                settings=self._settings,
                limit=limit,
                evidence_first=evidence_first,
            )

    def guesses(self, numbers: Sequence[int]) -> dict[int, tuple[TextSpan, ...]]:
        """Return the best labelings of tasks under the model that serves; nothing where none knows their labels."""
        view = self.view()
        if view.target.blank:
            return dict.fromkeys(numbers, ())
        tagger, names, found = view.predictor.tagger, view.target.labels, {}
        for begin in range(0, len(numbers), _TOGETHER):
            page = numbers[begin : begin + _TOGETHER]
            texts = [self.corpus.texts[number] for number in page]
            tagged = tagger.potentials([each.text for each in texts], languages=[each.language for each in texts])
            for number, one in zip(page, tagged, strict=True):
                spans = tagger.space.spans(conformal.kbest(one.potentials, 1).labels[0]) if one.tokens else []
                named = (span._replace(label=names[span.label]) for span in to_char_spans(spans, one.tokens))
                found[number] = tuple(named)
        return found

    def standing(self, wish: Wish) -> Standing | None:
        """Say where a wish stands; None while no model knows the project's labels."""
        model, tagger = self._context.model_of(self.project)
        if isinstance(tagger, BlankTagger):
            return None
        with self.store.read() as session:
            labels = count_blind_labels(session, self.project.id, model_id=model.id)
            return stand(list_acceptances(session, self.project.id), wish, model_id=model.id, labels=labels)

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

    def decisions(self) -> list[AcceptanceRecord]:
        """Return the decisions about acceptance so far."""
        with self.store.read() as session:
            return list_acceptances(session, self.project.id)

    def trained(self) -> int:
        """Return how many models of the project's own have served."""
        with self.store.read() as session:
            return sum(model.promoted_at is not None for model in list_models(session, self.project.id))

    def version(self) -> VersionRecord | None:
        """Return the thresholds that serve, None for the starter's."""
        header = self.view().model
        with self.store.read() as session:
            model = lookup_model(session, header.name, header.hash)
            return None if model is None else active_version(session, self.project.id, model_id=model.id)

    def _predictions(self) -> FreshPredictions:
        view = self.view()
        if self._fresh is None or self._fresh.view.model_version != view.model_version:
            if self._fresh is not None:
                self._fresh.close()
            self._fresh = FreshPredictions(self._context, self.project, view, label_config=self._config)
        return self._fresh

    def _shown(self, view: View, task: TaskRecord | None, result: Sequence[Json]) -> Shown:
        if task is None or task.draw is None or task.draw.blind or view.target.blank:
            return Shown()
        flags = view.predictor.calibration.flags_for(task.language or "")
        # What is amber by a borrowed level, or by none, promises nothing about the rest of the project's own texts.
        return shown_of(result, whole=flags is None or flags.level == 0 or flags.guarantee is not Guarantee.OWN)

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


def regions(text: str, spans: Sequence[TextSpan]) -> list[Json]:
    """Return spans as the regions of an annotation."""
    return [
        {
            "id": f"r{place}",
            "from_name": "label",
            "to_name": "text",
            "type": "labels",
            "value": {"start": start, "end": end, "text": text[start:end], "labels": [label]},
        }
        for place, (start, end, label) in enumerate(spans)
    ]


def spans_of(result: Sequence[Json]) -> tuple[TextSpan, ...]:
    """Return the spans of a prediction's or an annotation's regions; marks of doubt are none."""
    return tuple(
        TextSpan(each["value"]["start"], each["value"]["end"], each["value"]["labels"][0])
        for each in result
        if each["from_name"] == "label"
    )


def shown_of(result: Sequence[Json], *, whole: bool = False) -> Shown:
    """Return what the editor shows of a prediction that is no blind task's."""
    amber = tuple(
        (each["value"]["start"], each["value"]["end"]) for each in result if each["value"]["labels"] == [FLAG]
    )
    return Shown(prelabelled=True, spans=spans_of(result), amber=amber, whole=whole)


def _data(text: LabelledText) -> dict[str, Any]:
    return {"text": text.text} | ({"language": text.language} if text.language else {})
