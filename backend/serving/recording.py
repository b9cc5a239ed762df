"""The record of what was served. It is written before the answer goes out, and never holds the answer up for long.

A label that comes back is judged against what its annotator had in view, so the record matters; but an annotator who
gets no prediction because the database is busy for a moment is worse off than one whose record comes a second late.
Therefore: a thread of its own writes what was served, all that waits in one transaction, and an answer waits for that,
but two seconds at most. If the database is busy (or away) for longer, the rows stay in the queue and are written as
soon as it can be. The queue is bounded; beyond it the oldest rows are dropped, counted and logged. A clean stop writes
what is left.
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

from backend.domain.records import Draw, Served
from backend.errors import StoreConflict, StoreError
from backend.models.gate import FairGate
from backend.prediction.answer import Answer
from backend.serving.measures import Measures
from backend.store import Store
from backend.store.batches import KeptTask, NewTask, ensure_tasks
from backend.store.projects import ensure_model, ensure_project
from backend.store.served import record_served
from backend.tagger.identity import ModelHeader

_MOST = 2**31 - 1  # what the column holds: this or more
_log = logging.getLogger(__name__)

MAX_BACKLOG = 20_000  # rows
PATIENCE = 2.0  # seconds that an answer waits for its record
_TOGETHER = 128  # rows in one transaction: a few dozen milliseconds, so that deliveries do not wait long
_PAUSE = 1.0


class ServedTask(NamedTuple):
    """One task as it was answered; blind ones are recorded as shadow. Without an answer only its draw is kept.

    `stand_in` is the priority that stands for it if it is blind, None when that is to be worked out later. `suggested`
    says that words which people labelled elsewhere were suggested beside the answer.
    """

    task: str
    text: str
    created_at: datetime | None
    draw: Draw | None
    answer: Answer | None
    stand_in: float | None = None
    suggested: bool = False


@dataclass(frozen=True)
class ServedBatch:
    """Tasks of one project that were answered together; without a model it only makes the project known.

    `opened`: somebody has opened them.
    """

    project: str
    label_config: str | None
    model: ModelHeader | None
    tasks: tuple[ServedTask, ...]
    served_at: datetime
    opened: bool = False

    @classmethod
    def of(
        cls,
        project: str,
        label_config: str | None,
        model: ModelHeader | None = None,
        tasks: tuple[ServedTask, ...] = (),
        *,
        opened: bool = False,
    ) -> ServedBatch:
        """Stamp a batch with the present time."""
        return cls(project, label_config, model, tasks, datetime.now(UTC), opened)


class Ticket(threading.Event):
    """Set once a batch is written; `blind` then says of each task whether its kept draw is blind.

    `late` says that the answer went out before: what was shown is then what the batch itself says.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blind: tuple[bool, ...] | None = None
        self.late = False


class Recorder:
    """Writes batches; `start` it after the fork. Before that each is written by its caller."""

    def __init__(
        self,
        store: Store,
        measures: Measures,
        *,
        writing: FairGate | None = None,
        max_backlog: int = MAX_BACKLOG,
        patience: float = PATIENCE,
    ) -> None:
        self._store, self._measures, self._max = store, measures, max_backlog
        self.patience = patience
        self._writing = writing or FairGate(slots=1)
        self._queue: deque[_Queued] = deque()
        self._rows = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def backlog(self) -> int:
        """Rows that wait to be written."""
        return self._rows

    def start(self) -> None:
        """Begin to write what is put in the queue."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
            self._thread.start()

    def record(self, batch: ServedBatch) -> tuple[bool, ...]:
        """Have a batch written, and wait for that up to `patience` seconds; never raises for trouble with the database.

        Returns for each task whether it is blind: by the draw that is kept, which another process may have made a
        moment earlier; by the batch's own where the database did not answer in time.
        """
        done = self.postpone(batch)
        if self._thread is None:
            self._flush()
        else:
            done.wait(self.patience)
        if done.blind is not None:
            return done.blind
        done.late = True
        return tuple(_is_blind(task.draw) for task in batch.tasks)

    def postpone(self, batch: ServedBatch) -> Ticket:
        """Put a batch in the queue and wait for nothing; the ticket is set once it is written."""
        dropped = 0
        done = Ticket()
        with self._changed:
            self._queue.append(_Queued(batch, done))
            self._rows += len(batch.tasks)
            while self._rows > self._max:
                dropped += len(self._pop().batch.tasks)
            self._measures.backlog.set(self._rows)
            self._changed.notify()
        if dropped:
            self._measures.served_rows.labels("dropped").inc(dropped)
            _log.error("record of served sets dropped: the database was away for too long", extra={"tasks": dropped})
        return done

    def close(self, timeout: float = 10.0) -> None:
        """Write what is left and stop; gives up after `timeout` seconds."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is None:
            self._flush()
        else:
            self._thread.join(timeout)
        if self._rows:
            _log.error("record of served sets lost at stop: the database was away", extra={"tasks": self._rows})

    def _pop(self) -> _Queued:
        first = self._queue.popleft()
        self._rows -= len(first.batch.tasks)
        return first

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                stopping = self._stopping
            done = self._flush()
            if stopping:
                return
            if not done:
                time.sleep(_PAUSE)

    def _flush(self) -> bool:
        """Write the queue, a good handful of rows in a transaction; False when the database would not have it."""
        alone = 0  # how many of the first are to be written one by one, because something among them is refused
        while True:
            with self._changed:
                taken: list[_Queued] = []
                rows = 0
                for each in self._queue:
                    if taken and (alone or rows + len(each.batch.tasks) > _TOGETHER):
                        break
                    taken.append(each)
                    rows += len(each.batch.tasks)
            if not taken:
                return True
            try:
                if not self._write(taken):
                    return False
            except _Refused:
                alone = len(taken)
                continue
            alone = max(0, alone - 1)
            with self._changed:
                # A full queue may have dropped some of them meanwhile.
                written = {id(each) for each in taken}
                while self._queue and id(self._queue[0]) in written:
                    self._pop()
                self._measures.backlog.set(self._rows)
            for each in taken:
                each.done.set()

    def _write(self, taken: list[_Queued]) -> bool:
        count = sum(len(each.batch.tasks) for each in taken)
        try:
            with self._writing.turn("record"), self._store.write() as session:
                written = [_write(session, each.batch, late=each.done.late) for each in taken]
                # All at once and last, so that two processes take the rows of the queue in one order.
                record_served(
                    session,
                    [row for each in written for row in each.rows],
                    opened={
                        row.task_id
                        for each, record in zip(taken, written, strict=True)
                        if each.batch.opened
                        for row in record.rows
                    },
                )
        except StoreConflict as error:
            if len(taken) > 1:
                raise _Refused from error
            # Trying again would end the same way; a set that cannot be recorded must not block the others.
            self._measures.served_rows.labels("refused").inc(count)
            _log.error("record of served sets refused", extra={"reason": type(error).__name__})
            return True
        except StoreError as error:
            _log.warning("record of served sets postponed", extra={"reason": type(error).__name__})
            return False
        for each, record in zip(taken, written, strict=True):
            each.done.blind = record.blind
        self._measures.served_rows.labels("recorded").inc(count)
        return True


class _Refused(Exception):
    """Something among several batches was refused."""


class _Written(NamedTuple):
    blind: tuple[bool, ...] = ()
    rows: tuple[Served, ...] = ()


class _Queued(NamedTuple):
    batch: ServedBatch
    done: Ticket


def _write(session: Session, batch: ServedBatch, *, late: bool) -> _Written:
    project = ensure_project(session, batch.project, label_config=batch.label_config)
    header = batch.model
    if header is None:
        return _Written()
    details = None if header.origin is None else header.origin.details()
    model = ensure_model(session, header.name, header.hash, classes=header.classes, details=details)
    kept = ensure_tasks(
        session,
        project.id,
        [
            NewTask(
                each.task,
                each.text,
                None if each.answer is None else each.answer.language,
                None if each.answer is None else each.answer.length,
                each.draw,
                each.created_at,
            )
            for each in batch.tasks
        ],
    )
    rows = []
    for task, each in zip(kept, batch.tasks, strict=True):
        if each.answer is None:
            continue
        shadow = _shown_blind(task, each, late=late)
        row = served_row(each.answer, served_at=batch.served_at)
        if header.blank:
            # The fact that the task was shown blank (METHODS 13.1): not where something was suggested all the same.
            row = replace(row, shown=int(each.suggested and not shadow))
        priority = each.stand_in if shadow else each.answer.priority
        rows.append(replace(row, task_id=task.id, model_id=model.id, shadow=shadow, priority=priority))
    return _Written(tuple(task.blind for task in kept), tuple(rows))


def _shown_blind(task: KeptTask, served: ServedTask, *, late: bool) -> bool:
    own = _is_blind(served.draw)
    if late and own != task.blind:
        # Two processes drew it under different orders while the database was away: say what this one showed.
        _log.warning("a task was shown otherwise than its kept draw says", extra={"task": served.task, "blind": own})
        return own
    return task.blind


def _is_blind(draw: Draw | None) -> bool:
    return draw is not None and draw.blind


def served_row(answer: Answer, *, served_at: datetime) -> Served:
    """Return an answer as the store keeps it; task, model and shadow are the caller's to fill in."""
    return Served(
        task_id=0,
        model_id=0,
        version_id=answer.threshold_version or None,  # 0 is the starter, which is no row of the database
        shadow=False,
        stratum=answer.stratum,
        pool=answer.pool,
        guarantee=answer.guarantee,
        n=answer.n,
        tau=answer.tau,
        is_open=answer.open,
        set_size=None if answer.set_size is None else min(answer.set_size, _MOST),
        shown=len(answer.labelings),
        ranked=answer.ranked,
        served_at=served_at,
        alpha=answer.alpha,
        flags=answer.places,
        doubt=answer.doubt,
    )
