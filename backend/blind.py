"""The score that stands for a blind task: a fixed random quantile of its project's scores (METHODS 8.1).

Under "least certain first" a blind task must stand where a random task would stand, so its score is that of a random
place among the scores of the project's other tasks. The place is drawn once per task (`backend.streams`); nothing of
the task's own text or prediction goes into it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.store.ranked import best_score
from backend.store.tables import ServedSet, Task

SAMPLE = 500  # scores kept per project and model: a place among them is known to about two percent


def blind_score(quantile: float, scores: Sequence[float]) -> float:
    """Return the score at a place `quantile` in [0, 1) of sorted scores; the place itself when there are none.

    >>> blind_score(0.5, [0.1, 0.2, 0.9]), blind_score(0.99, [0.1, 0.2, 0.9]), blind_score(0.25, [])
    (0.2, 0.9, 0.25)
    """
    return scores[int(quantile * len(scores))] if scores else quantile


def sample_scores(session: Session, project_id: int, *, model_id: int, limit: int = SAMPLE) -> list[float]:
    """Return the scores of rank 1 of a random sample of the project's shown tasks, under one model.

    The sample is the beginning of the project's random order, so every process gets the same one. Of a task that was
    served several times the last set counts.
    """
    tasks = (
        sa.select(Task.id, Task.random_order)
        .where(Task.project_id == project_id, Task.random_order.is_not(None), Task.blind.is_(False))
        .where(Task.deleted_at.is_(None))
        .where(sa.select(ServedSet.id).where(ServedSet.task_id == Task.id, ServedSet.model_id == model_id).exists())
        .order_by(Task.random_order)
        .limit(limit)
        .subquery()
    )
    last = (
        sa.select(sa.func.max(ServedSet.id))
        .join(tasks, tasks.c.id == ServedSet.task_id)
        .where(ServedSet.model_id == model_id)
        .group_by(ServedSet.task_id)
    )
    rows = session.execute(sa.select(ServedSet.ranked).where(ServedSet.id.in_(last))).scalars()
    return sorted(best_score(bytes(row)) for row in rows)


class ScoreSample:
    """The last `size` scores of shown tasks. Safe to share between threads."""

    def __init__(self, seed: Iterable[float] = (), *, size: int = SAMPLE) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self.add(seed)

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, scores: Iterable[float]) -> None:
        """Take scores in; the oldest go."""
        with self._lock:
            for score in scores:
                insort(self._sorted, score)
                self._order.append(score)
                if len(self._order) > self._size:
                    del self._sorted[bisect_left(self._sorted, self._order.popleft())]

    def at(self, quantile: float) -> float:
        """Return the score at a place in [0, 1)."""
        with self._lock:
            return blind_score(quantile, self._sorted)
