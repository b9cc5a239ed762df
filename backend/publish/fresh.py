"""Predictions for a page of the server's tasks, exactly as /predict would answer them, from remembered lists first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from backend.domain.records import ProjectRecord
from backend.domain.text import text_hash
from backend.jobs.context import WorkContext
from backend.labelstudio.client import Json
from backend.labelstudio.payloads import Unpredictable, read_tasks, read_text
from backend.labelstudio.render import Result
from backend.models.views import View
from backend.prediction.answer import Answer, answer_of
from backend.prediction.rethreshold import Remembered, rethreshold
from backend.prediction.versions import Versions
from backend.serving.assembly import lone_predictor
from backend.serving.chunks import Chunk, Question
from backend.store.projects import lookup_model
from backend.store.republish import last_lists
from conformal.subsequence import EntityMethod

Ready = Mapping[tuple[str, bytes], Answer]
"""Answers that were made elsewhere, by (task, hash of its text)."""


class Unknown(NamedTuple):
    """A task that only the model can answer."""

    task: str
    text: str
    digest: bytes
    language: str | None


class FreshPredictions:
    """Predicts, draws and records as the service does: what is published counts as served.

    `reused` counts the answers that were cut from remembered lists.
    """

    def __init__(self, context: WorkContext, project: ProjectRecord, view: View, *, label_config: str) -> None:
        self._context, self._project, self._config = context, project, label_config
        self.view = view
        self._chunks = lone_predictor(context.settings, context.store)
        self._versions = Versions()
        self.reused = 0

    @property
    def label_config(self) -> str:
        """The label config that the predictions are for."""
        return self._config

    def unknown(self, tasks: Sequence[Json]) -> list[Unknown]:
        """Return those of the tasks that have a text, and no list of it is remembered."""
        lists = self._remembered([str(task["id"]) for task in tasks])
        unknown = []
        for task in read_tasks(list(tasks)):
            text = read_text(task, self.view.target.text, max_text=self._context.settings.max_text)
            if task is None or isinstance(text, Unpredictable):
                continue  # an address is fetched where the task is answered
            digest = text_hash(text)
            if (task.id, digest) not in lists:
                unknown.append(Unknown(task.id, text, digest, task.language))
        return unknown

    def of(self, tasks: Sequence[Json], ready: Ready | None = None) -> list[list[Result]]:
        """Return the predictions of each task, worst first: those that are ready, those of lists, the model's."""
        lists = self._remembered([str(task["id"]) for task in tasks])

        def answer(question: Question) -> Answer | None:
            key = (question.task.id, question.digest)
            if ready is not None and key in ready:
                return ready[key]
            return self._again(question.text, lists[key]) if key in lists else None

        return self._chunks.predict(Chunk(self.view, self._config, tuple(read_tasks(list(tasks))), answer))

    def close(self) -> None:
        """Write what is left of the record."""
        self._chunks.close()

    def _again(self, text: str, remembered: Remembered) -> Answer | None:
        prediction = rethreshold(self.view.predictor, text, remembered)
        if prediction is None:
            return None
        answer = answer_of(prediction)
        self.reused += 1
        return answer

    def _remembered(self, tasks: Sequence[str]) -> dict[tuple[str, bytes], Remembered]:
        model = self.view.model
        with self._context.store.read() as session:
            record = lookup_model(session, model.name, model.hash)
            lists = [] if record is None else last_lists(session, self._project.id, model_id=record.id, tasks=tasks)
            methods = {number: self._entity_method(session, number) for number in {each.version_id for each in lists}}
        return {
            (each.task, each.text_hash): Remembered(each.ranked, each.stratum, each.language or "", method)
            for each in lists
            if (method := methods[each.version_id]) is not None
        }

    def _entity_method(self, session: Session, version_id: int | None) -> EntityMethod | None:
        if version_id is None:
            return EntityMethod()  # what the starter is fitted with
        return self._versions.entity_method(session, version_id)
