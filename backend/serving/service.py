"""The service itself, without HTTP: what a process holds, and what it does for each kind of request."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from cachetools import LRUCache
from sqlalchemy.orm import Session

from backend.calibration.model_change import queue_rescores
from backend.documents.reading import length_of
from backend.domain.precedence import LONG
from backend.domain.target import TextTag
from backend.errors import BackendError
from backend.jobs.kinds import queue_refit, queue_train
from backend.labelstudio.payloads import PredictIn, SetupIn
from backend.models.gate import FairGate
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.prediction.answer import Answer
from backend.serving.admission import Admission
from backend.serving.blindness import BlindPriorities
from backend.serving.cache import AnswerCache
from backend.serving.chunks import Chunk, ChunkPredictor
from backend.serving.inbox import DELIVERIES, Inbox
from backend.serving.measures import Measures
from backend.serving.presenting import DrawnTasks, Present
from backend.serving.recording import Recorder, ServedBatch
from backend.serving.same_words import ProjectWords
from backend.settings import Settings
from backend.store import Store
from backend.store.projects import ensure_project

_log = logging.getLogger(__name__)

CHUNK_TASKS = 32
CHUNK_CHARACTERS = 60_000
RECORD_WAIT = 2.0
PROJECTS = 10_000  # whose label configs are at hand


class Service:
    """One process's model, views, cache and connections. Make it after the fork; `start` begins to load the model."""

    def __init__(self, settings: Settings, *, present: Present | None = None) -> None:
        self.settings = settings
        self.measures = Measures()
        # Readers get connections of their own: however many writers queue, /setup and /health find one.
        self.reads = Store(settings.database_url, wait=5.0, pool_size=4)
        self.writes = Store(settings.database_url, wait=30.0, pool_size=2)
        self._records = Store(settings.database_url, wait=RECORD_WAIT, pool_size=1)
        self.loader = ModelLoader(settings)
        self.views = Views(settings, self.reads, self.loader)
        # One writer at a time and turns for all, instead of SQLite's busy loop, which lets some wait very long.
        # Label Studio waits one second for a delivery, and one write takes in all that wait: that goes first.
        self.writing = FairGate(slots=1 if self.writes.is_sqlite else 8, urgent=DELIVERIES)
        self.inbox = Inbox(self.writes, self.writing)
        self.recorder = Recorder(self._records, self.measures, writing=self.writing)
        self.gate = FairGate(slots=max(1, min(4, (os.cpu_count() or 1) - 1)))
        self.admission = Admission(settings.threads)
        self.cache: AnswerCache[tuple[object, ...], Answer] = AnswerCache(
            settings.cache_tasks, weigh=lambda answer: answer.weight
        )
        self.present = present or DrawnTasks(settings, self.reads, self.writes, writing=self.writing)
        self._chunks = ChunkPredictor(
            settings,
            gate=self.gate,
            cache=self.cache,
            recorder=self.recorder,
            measures=self.measures,
            present=self.present,
            blind_priorities=BlindPriorities(self.reads),
            words=ProjectWords(self.reads),
        )
        self._configs: LRUCache[str, str] = LRUCache(PROJECTS)
        self._noting = threading.Lock()
        self._looking: threading.Thread | None = None

    def start(self) -> None:
        """Load the model and write the backlog in the background."""
        self.inbox.start()
        self.recorder.start()
        self.loader.start()
        if self._looking is None:
            self._looking = threading.Thread(target=self._look_at_projects, name="new-model", daemon=True)
            self._looking.start()

    def close(self) -> None:
        """Write what is left, wait for the loader's thread, close every connection."""
        self.inbox.close()
        self.recorder.close()
        self.views.models.close()
        if self._looking is not None:
            self._looking.join(30.0)
        for store in (self.reads, self.writes, self._records):
            store.close()

    def _look_at_projects(self) -> None:
        """Once the model is there: have stored labels scored under it where it is new to a project."""
        try:
            self.loader.tagger(self.settings.model_wait)
            self.measures.model_ready.set(1)
            with self.writing.turn("jobs"):
                queue_rescores(self.writes, self.views)
        except BackendError as error:  # a worker looks again, every few minutes
            _log.warning("projects not looked at for a new model", extra={"reason": type(error).__name__})

    def setup(self, request: SetupIn) -> str:
        """Return the version that predictions of the project carry now; the project is noted in the background."""
        version = self.views.model_version(request.project, request.label_config)
        with self._noting:
            changed = self._configs.get(request.project) != request.label_config
            self._configs[request.project] = request.label_config
        if changed:
            self.recorder.postpone(ServedBatch.of(request.project, request.label_config))
        return version

    def predict(self, request: PredictIn) -> Iterator[bytes]:
        """Yield the JSON of the answer's entries, one per task and in order, a chunk at a time.

        Waits for the model before the first entry. From then on nothing fails: a task that cannot be predicted has
        an empty entry.
        """
        with self._noting:
            noted = self._configs.get(request.project)
        config = self.views.label_config(request.project, request.label_config or noted)
        view = self.views.view(request.project, config)
        self.measures.batch.observe(len(request.tasks))
        if request.context is not None and len(request.tasks) == 1:
            yield _encode(self._chunks.suggest(view, request.tasks[0], request.context, label_config=config))
            return
        for part in _parts(request, view.target.text):
            for entry in self._chunks.predict(Chunk(view, config, tuple(part), opened=len(request.tasks) == 1)):
                yield _encode(entry)

    def store_delivery(self, payload: dict[str, Any]) -> int:
        """Keep an event and return its id once it is on disk."""
        return self.inbox.put(payload)

    def queue_training(self, project: str, *, who: str) -> tuple[int, int]:
        """Ask for a refit of a project and a model of its own; requests that wait already are the same ones.

        Returns the ids of both jobs.
        """

        def ask(session: Session) -> tuple[int, int]:
            known = ensure_project(session, project)
            return queue_refit(session, known, reason="train"), queue_train(session, known, who=who)

        with self.writing.turn("jobs"):
            return self.writes.run(ask)


def _encode(entry: object) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode()


def _parts(request: PredictIn, tag: TextTag) -> Iterator[Sequence[Any]]:
    """Cut a batch so that a part has a bounded number of tasks and characters; a long text is one by itself."""
    tasks = iter(request.tasks)
    while part := list(islice(tasks, CHUNK_TASKS)):
        begin, size = 0, 0
        for i, task in enumerate(part):
            length = 0 if task is None or task.data is None else length_of(task.data.get(tag.key), tag)
            if i > begin and (length > LONG or size > LONG or size + length > CHUNK_CHARACTERS):
                yield part[begin:i]
                begin, size = i, 0
            size += length
        yield part[begin:]
