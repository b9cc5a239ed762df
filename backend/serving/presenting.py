"""Whether a task's prediction may be seen: where the streams of METHODS 8.1 come in.

Before a task is shown for the first time it is drawn: its place in a random order, whether it audits, whether it is
blind. The draw comes from the project's salt and the task's id, under the order in which the project gives out its
tasks at that moment; nothing of the request's content goes into it. What was drawn is kept with the task and holds
for ever, also when the order or the shares change, so the kept draws are looked up first, a chunk at a time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cachetools import LRUCache
from sqlalchemy.orm import Session

from backend.domain.records import Draw
from backend.domain.streams import Order, draw_task, uniforms
from backend.errors import StoreError
from backend.models.gate import FairGate
from backend.models.polling import Polled
from backend.settings import Settings
from backend.store import Store
from backend.store.projects import LOCAL, ensure_project, find_project
from backend.store.sampling import current_order
from backend.store.state import SALT, ensure_salt, get_state
from backend.store.task_draws import KeptDraw, load_draws

_log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
_REMEMBERED = 20_000  # draws that a process keeps at hand: some ten megabytes


class Met(NamedTuple):
    """A task as it came: its id, and the hash of its text."""

    task: str
    text: bytes


@dataclass(frozen=True)
class Presentation:
    """The draw of a task (None: nothing is drawn), and the quantile of priorities that stands for a blind one.

    `kept` says that the draw is in the database already.
    """

    draw: Draw | None = None
    quantile: float = 0.0
    kept: bool = False

    @property
    def blind(self) -> bool:
        """Whether the annotator sees nothing and the set is stored as shadow."""
        return self.draw is not None and self.draw.blind


class Present:
    """Says how tasks are presented. This one shows every prediction and draws nothing: a project without streams.

    The answer must be the same for the same task for ever, and may not depend on what the model says.
    """

    def __call__(self, project: str, tasks: Sequence[Met]) -> list[Presentation]:  # noqa: ARG002
        """Return how each of these tasks is presented."""
        return [Presentation()] * len(tasks)

    def forget(self, project: str, met: Met) -> None:
        """Drop what is remembered of a task: another draw of it was kept."""


@dataclass(frozen=True)
class Streams:
    """What is known of a project's streams: its number in the database, the salt, and the order in force."""

    project_id: int
    salt: str
    order: Order | None


class DrawnTasks(Present):
    """How the tasks of real projects are presented. Safe to share between threads.

    Without Label Studio (the project `local`) nothing is drawn. Where the database cannot be asked for a project's
    salt, tasks are shown undrawn, which is recorded: their labels are never evidence.
    """

    def __init__(
        self, settings: Settings, reads: Store, writes: Store, *, writing: FairGate, poll: float = POLL_SECONDS
    ) -> None:
        self._audit_share, self._blind = settings.audit_share, settings.blind
        self._reads, self._writes, self._writing = reads, writes, writing
        self._streams: Polled[str, Streams] = Polled(self._ask, every=poll)
        self._known: LRUCache[tuple[str, Met], Presentation] = LRUCache(_REMEMBERED)
        self._lock = threading.Lock()

    def __call__(self, project: str, tasks: Sequence[Met]) -> list[Presentation]:
        """Return how each of these tasks is presented; those met for the first time are drawn."""
        if project == LOCAL:
            return super().__call__(project, tasks)
        streams = self._streams.get(project)
        if streams is None:
            return super().__call__(project, tasks)
        known = self._recall(project, tasks)
        wanted = [each for each in dict.fromkeys(tasks) if each not in known and each.task]
        stored = self._load(streams, wanted)
        fresh = {each: self._present(project, each, streams, stored.get(each)) for each in wanted}
        self._remember(project, fresh)
        return [known.get(each) or fresh.get(each) or Presentation() for each in tasks]

    def streams(self, project: str) -> Streams | None:
        """Return what is known of a project's streams now, None when the database cannot be asked."""
        return None if project == LOCAL else self._streams.get(project)

    def forget(self, project: str, met: Met) -> None:
        """Drop what is remembered of a task."""
        with self._lock:
            self._known.pop((project, met), None)

    def _present(self, project: str, met: Met, streams: Streams, kept: KeptDraw | None) -> Presentation:
        quantile = uniforms(streams.salt, project, met.task).v
        if kept is not None:
            return Presentation(kept.draw, quantile, kept=True)
        draw = draw_task(
            streams.salt,
            project,
            met.task,
            order=streams.order,
            audit_share=self._audit_share,
            blind=self._blind,
        )
        return Presentation(draw, quantile)

    def _load(self, streams: Streams, wanted: Sequence[Met]) -> dict[Met, KeptDraw]:
        if not wanted:
            return {}
        try:
            with self._reads.read() as session:
                draws = load_draws(session, streams.project_id, wanted)
        except StoreError as error:
            # The hash draws the same again unless the order has changed; the record keeps the first draw anyway.
            _log.warning("kept draws not read", extra={"reason": type(error).__name__})
            return {}
        return {Met(*key): kept for key, kept in draws.items()}

    def _ask(self, project: str, before: Streams | None) -> Streams:
        with self._reads.read() as session:
            row = find_project(session, project)
            salt = None if row is None else get_state(session, row.id, SALT)
            order = None if row is None else current_order(session, row.id)
        if row is None or salt is None:

            def begin(session: Session) -> Streams:
                record = ensure_project(session, project)
                return Streams(record.id, ensure_salt(session, record.id), order)

            with self._writing.turn("streams"):
                fresh = self._writes.run(begin)
        else:
            fresh = Streams(row.id, str(salt["salt"]), order)
        if before is not None and before.order is not fresh.order:
            _say_change(project, before.order, fresh.order)
        return fresh

    def _recall(self, project: str, tasks: Sequence[Met]) -> dict[Met, Presentation]:
        with self._lock:
            return {each: shown for each in tasks if (shown := self._known.get((project, each))) is not None}

    def _remember(self, project: str, shown: dict[Met, Presentation]) -> None:
        with self._lock:
            for each, presentation in shown.items():
                self._known[project, each] = presentation


def _say_change(project: str, before: Order | None, after: Order | None) -> None:
    what = {
        Order.REVIEW: "from now on only blind audit tasks calibrate",
        Order.SEQUENTIAL: "labels made in this order do not calibrate unless the collection was shuffled",
    }
    _log.warning(
        "the order in which the project gives out its tasks has changed",
        extra={
            "project": project,
            "before": None if before is None else before.value,
            "order": None if after is None else after.value,
            "meaning": "tasks that were drawn keep their draw"
            if after is None or after not in what
            else f"tasks that were drawn keep their draw; {what[after]}",
        },
    )
