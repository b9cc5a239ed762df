"""A project that learns by itself, run by the product's own parts: service, inbox, worker, trainings and refits.

Nobody asks for a model. People label tasks in uniform order or as the review queue gives them out; where they see a
prelabel that is wrong they accept a share of them as they are. Labels go into the inbox as Label Studio delivers them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

import numpy as np
import sqlalchemy as sa

from backend.app import create_app, service_of
from backend.calibration.order import record_order
from backend.domain.records import ProjectRecord, TextSpan, VersionRecord
from backend.domain.streams import Order
from backend.intake.ingest import read_project_uid
from backend.prediction.calibration import calibration_of
from backend.prediction.scoring import score_labelled
from backend.review.queue import review_queue
from backend.settings import Settings
from backend.store.events import store_events
from backend.store.project_models import list_models
from backend.store.projects import ensure_project, lookup_model
from backend.store.state import SALT, set_state
from backend.store.thresholds import active_version
from backend.store.training import count_trainable
from backend.tagger.readers import LabelledText
from backend.worker.worker import Worker
from conformal.thresholds import Thresholds
from tests.support.loop_world import Collection
from tests.support.own_models import config_of
from tests.support.payload_shapes import predict, project_object, task
from tests.support.workers import labelled

NUMBER = 31
PROJECT = read_project_uid(project_object(NUMBER))
SAMPLING = {Order.UNIFORM: "Uniform sampling", Order.REVIEW: "Uncertainty sampling"}
_PAGE = 50


@dataclass(frozen=True)
class Habits:
    """How people label: which share of wrong prelabels they leave as they are. Without one they are right."""

    stamped: float = 0.3


class LearningProject:
    """A project whose label names no model knows; `work` lets its people label until so many labels may train."""

    def __init__(
        self,
        app: Any,
        settings: Settings,
        texts: Sequence[LabelledText],
        *,
        order: Order,
        habits: Habits,
        labels: Sequence[str],
        seed: int,
    ) -> None:
        self.service = service_of(app)
        self.store, self.texts, self.order, self.habits = self.service.writes, texts, order, habits
        self._client, self._settings = app.test_client(), settings
        self._rng = np.random.default_rng([seed, 5])
        self._config = config_of(*labels)
        self._ids = count(1)
        self.waiting = self._rng.permutation(len(texts)).tolist()
        self.stamped = 0
        self.worker = Worker(
            settings,
            self.store,
            loader=self.service.loader,
            views=self.service.views,
            label_studio=lambda: None,
            clock=lambda: 0.0,
        )
        with self.store.write() as session:
            self.project: ProjectRecord = ensure_project(session, PROJECT, label_config=self._config)
            record_order(session, self.project.id, order=order, at=datetime.now(UTC), source="test")
            set_state(session, self.project.id, SALT, {"salt": str(seed)})  # the same draws each time

    @property
    def trainable(self) -> int:
        with self.store.read() as session:
            return count_trainable(session, self.project.id)

    @property
    def served_models(self) -> list[str]:
        """Hashes of the models that have served, the newest first."""
        with self.store.read() as session:
            return [model.model_hash for model in list_models(session, self.project.id) if model.promoted_at]

    def work(self, until: int, *, step: int) -> None:
        """Label a few tasks at a time until so many labels may be learnt from; after each time the worker works."""
        while (missing := until - self.trainable) > 0:
            shown = self._show(self._next(min(step, missing)))
            store_events(self.store, [self._annotate(number, prelabel) for number, prelabel in shown])
            self.worker.hurry()
            self.worker.drain()

    def _next(self, wanted: int) -> list[int]:
        """Take the next tasks: at random, or from the queue after the model that serves has seen what waits."""
        chosen = self.waiting[:wanted]
        if self.order is Order.REVIEW and self.served_models:
            self._show(self.waiting)
            model, _ = self.worker.context().model_of(self.project)
            with self.store.read() as session:
                queue = review_queue(session, self.project.id, model_id=model.id, settings=self._settings, limit=wanted)
            chosen = [int(each.task) for each in queue]
            assert len(chosen) == min(wanted, len(self.waiting))
        taken = set(chosen)
        self.waiting = [number for number in self.waiting if number not in taken]
        return chosen

    def _show(self, numbers: Sequence[int]) -> list[tuple[int, list[TextSpan] | None]]:
        """Ask for predictions as Label Studio does; return what the editor shows, None where it shows nothing."""
        shown = []
        for first in range(0, len(numbers), _PAGE):
            page = numbers[first : first + _PAGE]
            body = predict([task(n, self.texts[n].text) for n in page], config=self._config, project=PROJECT)
            answer = self._client.post("/predict", json=body, buffered=True)  # read to its end: it gives its seat back
            assert answer.status_code == 200, answer.text
            for number, result in zip(page, answer.json["results"], strict=True):
                regions = result[-1]["result"]  # the last one becomes the prelabel
                spans = [
                    TextSpan(each["value"]["start"], each["value"]["end"], each["value"]["labels"][0])
                    for each in regions
                    if each["type"] == "labels"
                ]
                shown.append((number, spans))
        if not self.served_models:
            return [(number, None) for number, _ in shown]  # blank: no model knows the labels yet
        blind = self.blind_tasks()
        assert not any(spans for number, spans in shown if number in blind)
        return [(number, None if number in blind else spans) for number, spans in shown]

    def blind_tasks(self) -> set[int]:
        """Return the tasks that were drawn blind, of those that were shown."""
        with self.store.read() as session:
            rows = session.execute(sa.text("SELECT external_id FROM tasks WHERE blind"))
            return {int(name) for (name,) in rows}

    def _annotate(self, number: int, prelabel: list[TextSpan] | None) -> dict[str, Any]:
        text, gold = self.texts[number], list(self.texts[number].spans)
        wrong = prelabel is not None and sorted(prelabel) != sorted(gold)
        accepted = bool(wrong and self._rng.random() < self.habits.stamped)
        self.stamped += accepted
        said = prelabel if accepted and prelabel is not None else gold
        at = datetime.now(UTC).isoformat()
        event = labelled(number, text.text, [tuple(span) for span in said], created_at=at, updated_at=at, updated_by=1)
        event["annotation"]["id"] = next(self._ids)
        event["project"] |= {"label_config": self._config, "updated_at": at, "sampling": SAMPLING[self.order]}
        return event

    def version(self) -> VersionRecord:
        """Return the thresholds that serve under the model that serves."""
        header = self.service.views.model_of(self.project)
        with self.store.read() as session:
            model = lookup_model(session, header.name, header.hash)
            assert model is not None
            active = active_version(session, self.project.id, model_id=model.id)
        assert active is not None
        return active

    def thresholds(self) -> Thresholds:
        return calibration_of(self.version()).thresholds

    def judge(self, texts: Sequence[LabelledText]) -> Collection:
        """Score the true labels of texts under the model that serves."""
        _, tagger = self.worker.context().model_of(self.project)
        cells, nll = [], []
        for item in score_labelled(tagger, texts):
            (unit,) = item.units  # the unit is the task
            cells.append(unit.cell)
            nll.append(-unit.scores.log_probability)
        nothing = np.zeros((len(cells), 1))
        return Collection(np.array(cells), np.array(nll), np.ones(len(cells)), nothing, "")


@contextmanager
def learning_project(
    settings: Settings,
    texts: Sequence[LabelledText],
    *,
    order: Order,
    labels: Sequence[str],
    seed: int,
    habits: Habits | None = None,
) -> Iterator[LearningProject]:
    """Lend a project over the database that the settings name; that has the schema and no rows."""
    app = create_app(settings)
    service = service_of(app)
    service.views.polled.every = 0.0  # a promotion is seen at once
    service.recorder.patience = 60.0
    try:
        yield LearningProject(app, settings, texts, order=order, habits=habits or Habits(), labels=labels, seed=seed)
    finally:
        service.close()
