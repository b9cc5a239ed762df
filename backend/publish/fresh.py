"""Predictions for a page of the server's tasks, exactly as /predict would answer them, from remembered lists first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from backend.labelstudio.client import Json
from backend.labelstudio.payloads import Unpredictable, read_tasks, read_text
from backend.labelstudio.render import Result
from backend.outcome import Outcome
from backend.rethreshold import Remembered, RememberingPredictor
from backend.serving.blindness import BlindScores
from backend.serving.cache import AnswerCache
from backend.serving.chunks import Chunk, ChunkPredictor
from backend.serving.gate import FairGate
from backend.serving.measures import Measures
from backend.serving.presenting import DrawnTasks
from backend.serving.recording import Recorder
from backend.serving.views import View
from backend.store.projects import lookup_model, text_hash
from backend.store.republish import last_lists
from backend.store.thresholds import load_version
from backend.store.types import ProjectRecord
from conformal.subsequence import EntityMethod
from conformal.thresholds import Thresholds

if TYPE_CHECKING:
    from backend.work import WorkContext


Ready = Mapping[tuple[str, bytes], Outcome]
"""Outcomes that were made elsewhere, by (task, hash of its text)."""


class Unknown(NamedTuple):
    """A task that only the model can answer."""

    task: str
    text: str
    digest: bytes
    language: str | None


class FreshPredictions:
    """Predicts, draws and records as the service does: what is published counts as served."""

    def __init__(self, context: WorkContext, project: ProjectRecord, view: View, *, label_config: str) -> None:
        self._context, self._project, self._config = context, project, label_config
        self.view = view
        store, turns = context.store, FairGate(slots=1)
        nothing: AnswerCache[tuple[object, ...], Outcome] = AnswerCache(0)
        self._recorder = Recorder(store, Measures(), writing=turns)
        self._chunks = ChunkPredictor(
            context.settings,
            gate=turns,
            cache=nothing,
            recorder=self._recorder,
            measures=Measures(),
            present=DrawnTasks(context.settings, store, store, writing=FairGate(slots=1)),
            blind_scores=BlindScores(store),
        )
        self._methods: dict[int | None, EntityMethod] = {}
        self.reused = self.computed = 0

    @property
    def label_config(self) -> str:
        """The label config that the predictions are for."""
        return self._config

    def unknown(self, tasks: Sequence[Json]) -> list[Unknown]:
        """Return those of the tasks that have a text, and no list of it is remembered."""
        kept = self._remembered([str(task["id"]) for task in tasks])
        found = []
        for task in read_tasks(list(tasks)):
            text = read_text(task, self.view.target.text, max_text=self._context.settings.max_text)
            if task is None or isinstance(text, Unpredictable):
                continue  # an address is fetched where the task is answered
            digest = text_hash(text)
            if (task.id, digest) not in kept:
                found.append(Unknown(task.id, text, digest, task.language))
        return found

    def of(self, tasks: Sequence[Json], ready: Ready | None = None) -> list[list[Result]]:
        """Return the predictions of each task, worst first."""
        predictor = RememberingPredictor(self.view.predictor, self._remembered([str(task["id"]) for task in tasks]))
        view = replace(self.view, predictor=predictor)
        chunk = Chunk(view, self._config, tuple(read_tasks(list(tasks))), ready or {})
        entries = self._chunks.predict(chunk)
        self.reused += predictor.reused
        self.computed += predictor.computed
        return entries

    def close(self) -> None:
        """Write what is left of the record."""
        self._recorder.close()

    def _remembered(self, tasks: Sequence[str]) -> dict[tuple[str, bytes], Remembered]:
        model = self.view.model
        with self._context.store.read() as session:
            kept = lookup_model(session, model.name, model.hash)
            found = [] if kept is None else last_lists(session, self._project.id, model_id=kept.id, tasks=tasks)
            for each in found:
                if each.version_id is not None and each.version_id not in self._methods:
                    version = load_version(session, each.version_id)
                    if version is not None:
                        self._methods[each.version_id] = Thresholds.from_bytes(version.content).entity_method
        self._methods.setdefault(None, EntityMethod())  # what the starter is fitted with
        return {
            (each.task, each.text_hash): Remembered(
                each.ranked, each.stratum, each.language or "", self._methods[each.version_id]
            )
            for each in found
            if each.version_id in self._methods
        }
