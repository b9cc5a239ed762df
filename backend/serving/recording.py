"""The record of what was served. It is written before the answer goes out, and never holds the answer up for long.

A label that comes back is judged against what its annotator had in view, so the record matters; but an annotator who
gets no prediction because the database is busy for a moment is worse off than one whose record comes a second late.
Therefore: the writer waits two seconds for the database. If it is still busy (or away), the rows go to a backlog in
memory that a thread of its own writes as soon as it can, in order. The backlog is bounded; beyond it the oldest rows
are dropped, counted and logged. A clean stop writes what is left.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy.orm import Session

from backend.errors import StoreConflict, StoreError
from backend.labelstudio.identity import ModelHeader
from backend.outcome import Outcome
from backend.serving.measures import Measures
from backend.store import Store
from backend.store.projects import ensure_model, ensure_project, ensure_task
from backend.store.served import record_served
from backend.store.types import Draw, Served

_log = logging.getLogger(__name__)

MAX_BACKLOG = 20_000  # rows
_PAUSE = 1.0


class ServedTask(NamedTuple):
    """One task as it was answered; blind ones are recorded as shadow."""

    task: str
    text: str
    created_at: datetime | None
    draw: Draw | None
    outcome: Outcome


@dataclass(frozen=True)
class ServedBatch:
    """Tasks of one project that were answered together; without a model it only makes the project known."""

    project: str
    label_config: str | None
    model: ModelHeader | None
    tasks: tuple[ServedTask, ...]
    served_at: datetime

    @classmethod
    def of(
        cls,
        project: str,
        label_config: str | None,
        model: ModelHeader | None = None,
        tasks: tuple[ServedTask, ...] = (),
    ) -> ServedBatch:
        """Stamp a batch with the present time."""
        return cls(project, label_config, model, tasks, datetime.now(UTC))


class Recorder:
    """Writes batches; `start` it after the fork."""

    def __init__(self, store: Store, measures: Measures, *, max_backlog: int = MAX_BACKLOG) -> None:
        self._store, self._measures, self._max = store, measures, max_backlog
        self._backlog: deque[ServedBatch] = deque()
        self._rows = 0
        self._changed = threading.Condition()
        self._writing = threading.Lock()  # SQLite has one writer: queueing here is fairer than its busy loop
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def backlog(self) -> int:
        """Rows that wait to be written."""
        return self._rows

    def start(self) -> None:
        """Begin to write the backlog whenever there is one."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
            self._thread.start()

    def record(self, batch: ServedBatch) -> None:
        """Write a batch now, or put it on the backlog; never raises for trouble with the database."""
        if self._backlog or not self._try(batch):
            self.postpone(batch)

    def postpone(self, batch: ServedBatch) -> None:
        """Put a batch on the backlog without waiting for anything."""
        dropped = 0
        with self._changed:
            self._backlog.append(batch)
            self._rows += len(batch.tasks)
            while self._rows > self._max:
                dropped += len(self._pop().tasks)
            self._changed.notify()
        self._measures.backlog.set(self._rows)
        if dropped:
            self._measures.served_rows.labels("dropped").inc(dropped)
            _log.error("record of served sets dropped: the database was away for too long", extra={"tasks": dropped})

    def close(self, timeout: float = 10.0) -> None:
        """Write what is left and stop; gives up after `timeout` seconds."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout)
        elif self._backlog:
            self._flush()
        if self._rows:
            _log.error("record of served sets lost at stop: the database was away", extra={"tasks": self._rows})

    def _pop(self) -> ServedBatch:
        batch = self._backlog.popleft()
        self._rows -= len(batch.tasks)
        return batch

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._backlog or self._stopping)
                stopping = self._stopping
            done = self._flush()
            if stopping:
                return
            if not done:
                time.sleep(_PAUSE)

    def _flush(self) -> bool:
        while True:
            with self._changed:
                batch = self._backlog[0] if self._backlog else None
            if batch is None:
                return True
            if not self._try(batch):
                return False
            with self._changed:
                # A full backlog may have dropped it meanwhile.
                if self._backlog and self._backlog[0] is batch:
                    self._pop()
            self._measures.backlog.set(self._rows)

    def _try(self, batch: ServedBatch) -> bool:
        try:
            with self._writing, self._store.write() as session:
                _write(session, batch)
        except StoreConflict as error:
            # Trying again would end the same way; a set that cannot be recorded must not block the others.
            self._measures.served_rows.labels("refused").inc(len(batch.tasks))
            _log.error("record of served sets refused", extra={"reason": type(error).__name__})
            return True
        except StoreError as error:
            _log.warning("record of served sets postponed", extra={"reason": type(error).__name__})
            return False
        self._measures.served_rows.labels("recorded").inc(len(batch.tasks))
        return True


def _write(session: Session, batch: ServedBatch) -> None:
    project = ensure_project(session, batch.project, label_config=batch.label_config)
    header = batch.model
    if header is None:
        return
    model = ensure_model(session, header.name, header.hash, classes=header.classes)
    rows: list[Served] = []
    for task, text, created_at, draw, outcome in batch.tasks:
        kept = ensure_task(
            session,
            project.id,
            external_id=task,
            text=text,
            language=outcome.language,
            length=outcome.length,
            draw=draw,
            created_at=created_at,
        )
        blind = kept.draw is not None and kept.draw.blind
        rows.append(
            replace(served_row(outcome, served_at=batch.served_at), task_id=kept.id, model_id=model.id, shadow=blind)
        )
    record_served(session, rows)


def served_row(outcome: Outcome, *, served_at: datetime) -> Served:
    """Return an outcome as the store keeps it; task, model and shadow are the caller's to fill in."""
    return Served(
        task_id=0,
        model_id=0,
        version_id=outcome.threshold_version or None,  # 0 is the starter, which is no row of the database
        shadow=False,
        stratum=outcome.stratum,
        pool=outcome.pool,
        guarantee=outcome.guarantee,
        n=outcome.n,
        tau=outcome.tau,
        is_open=outcome.open,
        set_size=outcome.set_size,
        shown=len(outcome.labelings),
        ranked=outcome.ranked,
        served_at=served_at,
    )
