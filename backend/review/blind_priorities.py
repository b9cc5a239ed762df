"""The priority that stands for a blind task: a fixed random quantile of its project's priorities (METHODS 8.1).

Under "least certain first" a blind task must stand where a random task would stand, so its priority is a random
quantile of those of the project's other tasks. The quantile is drawn once per task (`domain.streams`); nothing of the
task's own text or prediction goes into it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.store.queue import figures_of
from backend.store.tables import ServedSet, Task

SAMPLE = 500  # priorities kept per project and model: a quantile of them is known to about two percent
LOOKED_AT = 4  # tasks that are looked at for each of them, so that a sample costs the same in any project
ENOUGH = 20  # priorities of the version that serves, below which those of earlier ones are better than none


def blind_priority(quantile: float, priorities: Sequence[float]) -> float:
    """Return the priority at a `quantile` in [0, 1) of sorted priorities; the quantile itself when there are none.

    >>> blind_priority(0.5, [0.1, 0.2, 0.9]), blind_priority(0.99, [0.1, 0.2, 0.9]), blind_priority(0.25, [])
    (0.2, 0.9, 0.25)
    """
    return priorities[int(quantile * len(priorities))] if priorities else quantile


def sample_priorities(
    session: Session, project_id: int, *, model_id: int, version_id: int | None = None, limit: int = SAMPLE
) -> list[float]:
    """Return the priorities of a random sample of the project's shown tasks, under one model, sorted.

    The sample is the beginning of the project's random order, so every process gets the same one. Of a task that was
    served several times the last set counts. Where enough of them were served under the threshold version (None: the
    starter), only those do: under another, other sets are open or empty, and those stand in front.
    """
    tasks = (
        sa.select(Task.id)
        .where(Task.project_id == project_id, Task.random_order.is_not(None), Task.blind.is_(False))
        .where(Task.deleted_at.is_(None))
        .order_by(Task.random_order)
        .limit(LOOKED_AT * limit)
        .subquery()
    )
    last = (
        sa.select(sa.func.max(ServedSet.id))
        .join(tasks, tasks.c.id == ServedSet.task_id)
        .where(ServedSet.model_id == model_id, ServedSet.shadow.is_(False))
        .group_by(ServedSet.task_id)
        .limit(limit)
    )
    columns = (ServedSet.version_id, ServedSet.priority, ServedSet.is_open, ServedSet.set_size, ServedSet.ranked)
    rows = session.execute(sa.select(*columns).where(ServedSet.id.in_(last))).all()
    same = [row for row in rows if row.version_id == version_id]
    return sorted(
        figures_of(bytes(row.ranked), is_open=row.is_open, set_size=row.set_size)[0]
        if row.priority is None
        else row.priority
        for row in (same if len(same) >= ENOUGH else rows)
    )


class PrioritySample:
    """The last `size` priorities of shown tasks. Safe to share between threads."""

    def __init__(self, seed: Iterable[float] = (), *, size: int = SAMPLE) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self.add(seed)

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, priorities: Iterable[float]) -> None:
        """Take priorities in; the oldest go."""
        with self._lock:
            for priority in priorities:
                insort(self._sorted, priority)
                self._order.append(priority)
                if len(self._order) > self._size:
                    del self._sorted[bisect_left(self._sorted, self._order.popleft())]

    def at(self, quantile: float, *, beside: Sequence[float] = ()) -> float:
        """Return the priority at a quantile in [0, 1), among these and those `beside` them."""
        with self._lock:
            return blind_priority(quantile, sorted([*self._sorted, *beside]) if beside else self._sorted)
