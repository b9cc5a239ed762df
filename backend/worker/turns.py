"""Whose labels are scored next: every project that has some gets its turn, and a turn has an end.

A project with many labels at once delays itself alone: after its share of labels or of seconds the next one comes, and
what is left waits for its next turn. Labels of long texts have turns of their own, one label each, beside the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from backend.calibration.score_labels import BEGINNING, Cursor

LABELS = 50
SECONDS = 2.0
MANY = 2000  # tasks that are looked up by their ids; beyond that the whole project is


@dataclass
class Share:
    """What one project gets in one turn: these tasks, or, without any, all labels from `begin` on.

    `is_over` says when its seconds are up; `noted` is the last note that it knows of.
    """

    project_id: int
    tasks: list[int] | None
    begin: Cursor
    is_over: Callable[[], bool]
    most: int = LABELS
    noted: int = 0


@dataclass
class _Waiting:
    tasks: dict[int, int] = field(default_factory=dict)  # by task, its last note
    all_from: Cursor | None = None


class Turns:
    """Projects with labels to score, in the order of their turns. Safe to share between threads.

    >>> turns = Turns()
    >>> for project, task in ((1, 10), (2, 20), (1, 11)):
    ...     turns.note(project, task)
    >>> [(share.project_id, share.tasks) for share in turns.round()]
    [(1, [10, 11]), (2, [20])]
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, labels: int = LABELS, seconds: float = SECONDS
    ) -> None:
        self._clock, self._labels, self._seconds = clock, labels, seconds
        self._waiting: dict[int, _Waiting] = {}
        self._notes = 0
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Whether any project waits for a turn."""
        return bool(self._waiting)

    def note(self, project_id: int, task_id: int) -> None:
        """Remember that a label of this task may have to be scored: once more, if its turn is under way."""
        with self._lock:
            waiting = self._waiting.setdefault(project_id, _Waiting())
            self._notes += 1
            waiting.tasks[task_id] = self._notes
            if len(waiting.tasks) > MANY:
                waiting.tasks, waiting.all_from = {}, BEGINNING

    def note_all(self, project_id: int) -> None:
        """Remember that any label of this project may have to be scored."""
        with self._lock:
            waiting = self._waiting.setdefault(project_id, _Waiting())
            waiting.all_from = waiting.all_from or BEGINNING

    def round(self) -> list[Share]:
        """Return a turn for each project that waits, the one that has waited longest first.

        Single tasks come before the rest of their project: somebody has just labelled them.
        """
        with self._lock:
            return [self._share(project_id, waiting) for project_id, waiting in self._waiting.items()]

    def begin(self, share: Share) -> None:
        """Start the clock of a turn."""
        end = self._clock() + self._seconds
        share.is_over = lambda: self._clock() >= end

    def end(self, share: Share, *, left: Cursor | None) -> None:
        """Note what is left of a turn's work; None when all of it is done. A project with more to do goes last."""
        with self._lock:
            waiting = self._waiting.pop(share.project_id)
            if share.tasks is None:
                waiting.all_from = left
            elif left is None:
                for task in share.tasks:
                    if waiting.tasks.get(task, 0) <= share.noted:
                        waiting.tasks.pop(task, None)
            if waiting.tasks or waiting.all_from is not None:
                self._waiting[share.project_id] = waiting

    def drop(self, share: Share) -> None:
        """Forget what is noted of a project, for example because its labels cannot be scored at all."""
        with self._lock:
            self._waiting.pop(share.project_id, None)

    def _share(self, project_id: int, waiting: _Waiting) -> Share:
        tasks = sorted(waiting.tasks)[: self._labels] if waiting.tasks else None
        begin = BEGINNING if tasks is not None else waiting.all_from or BEGINNING
        return Share(project_id, tasks, begin, lambda: False, self._labels, self._notes)
