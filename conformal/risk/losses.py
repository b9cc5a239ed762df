"""What a flag rule leaves behind in a task, at every level at once (METHODS 11.1 and 11.3).

An *error* is a true span that the best labeling lacks (*missing*) or one that it has and should not (*false*). It is
*seen* when a flagged span shares a character with it and *left behind* otherwise. The rules are nested, so one number
an error says all: the greatest level at which it is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidScores
from conformal.quantile import Bools, Floats
from conformal.risk.intervals import Ints, checked_doubts, checked_spans, greatest_touching

CharSpan = tuple[int, int, str]


@dataclass(frozen=True)
class TaskErrors:
    """The errors of one task's best labeling, each as the greatest level at which it is seen.

    0.0 means: touched by no listed span, seen only when everything is flagged.
    """

    entities: int  # |Y|
    best: int  # |B|
    missing: tuple[float, ...]
    false: tuple[float, ...]


def find_errors(
    true: Sequence[CharSpan],
    best: Sequence[CharSpan],
    *,
    starts: npt.ArrayLike,
    ends: npt.ArrayLike,
    doubts: npt.ArrayLike,
) -> TaskErrors:
    """Compare a task's true spans with those of its best labeling, and say at which level each error is seen.

    true, best: (start, end, label), in characters or any unit that starts, ends (S,), the listed spans, share; doubts
    (S,) are those of `span_doubts`. True spans the model cannot express belong here too. A span given twice counts
    once. Near linear in the number of spans.

    Raises:
        InvalidScores: when a span is empty, or the columns do not fit each other.

    >>> found = find_errors([(0, 4, "PER"), (9, 12, "LOC")], [(0, 4, "ORG")], starts=[0], ends=[4], doubts=[0.3])
    >>> found.entities, found.best, found.missing, found.false
    (2, 1, (0.3, 0.0), (0.3,))
    """
    truth, said = {_plain(span) for span in true}, {_plain(span) for span in best}
    missing, false = sorted(truth - said), sorted(said - truth)
    first, last = checked_spans([s[0] for s in missing + false], [s[1] for s in missing + false])
    listed = checked_spans(starts, ends)
    levels = greatest_touching(*listed, values=checked_doubts(doubts, listed[0].size), first=first, last=last).tolist()
    return TaskErrors(len(truth), len(said), tuple(levels[: len(missing)]), tuple(levels[len(missing) :]))


def _plain(span: CharSpan) -> CharSpan:
    start, end, label = span
    return int(start), int(end), label


@dataclass(frozen=True, eq=False)
class ErrorRows:
    """The errors of many tasks in columns: what risk is controlled with.

    entities, best (n,): sizes of Y and B; weight (n,): 1 over the probability with which the task was selected, None
    when all are alike; task, level, false (m,): for each error its task's index, the greatest level at which it is
    seen, and whether it is a false span (else a missing one).
    """

    entities: Ints
    best: Ints
    weight: Floats | None
    task: Ints
    level: Floats
    false: Bools

    def __post_init__(self) -> None:
        n, m = self.entities.size, self.task.size
        if self.entities.shape != (n,) or self.best.shape != (n,) or np.any(self.entities < 0) or np.any(self.best < 0):
            raise InvalidScores(f"expected two counts of at least 0 for each of {n} tasks, got others")
        if self.weight is not None and (
            self.weight.shape != (n,) or not np.all(np.isfinite(self.weight) & (self.weight > 0))
        ):
            raise InvalidScores(f"expected a finite weight above 0 for each of {n} tasks, got others")
        if not self.task.shape == self.level.shape == self.false.shape == (m,):
            raise InvalidScores("expected a task, a level and a kind for each error, got columns of different length")
        if np.any((self.task < 0) | (self.task >= n)):
            raise InvalidScores(f"expected errors of tasks 0 to {n - 1}, got another task")
        checked_doubts(self.level, m)
        kinds = ((self.false, self.best, "false"), (~self.false, self.entities, "missing"))
        for kind, most, name in kinds:
            if np.any(np.bincount(self.task[kind], minlength=n) > most):
                raise InvalidScores(f"expected no more {name} spans than the task has spans, got a task with more")

    @classmethod
    def of(cls, tasks: Sequence[TaskErrors], weight: npt.ArrayLike | None = None) -> ErrorRows:
        """Join tasks into columns.

        >>> rows = ErrorRows.of([TaskErrors(2, 1, (0.3, 0.0), (0.3,)), TaskErrors(1, 1, (), ())])
        >>> rows.losses(0.2).tolist(), rows.losses(0.0).tolist()
        ([0.5, 0.0], [0.0, 0.0])
        """
        sizes = [len(t.missing) + len(t.false) for t in tasks]
        return cls(
            entities=np.array([t.entities for t in tasks], dtype=np.int64),
            best=np.array([t.best for t in tasks], dtype=np.int64),
            weight=None if weight is None else np.array(weight, dtype=np.float64),
            task=np.repeat(np.arange(len(tasks), dtype=np.int64), sizes),
            level=np.array([level for t in tasks for level in (*t.missing, *t.false)], dtype=np.float64),
            false=np.array(
                [kind for t in tasks for kind in [False] * len(t.missing) + [True] * len(t.false)], np.bool_
            ),
        )

    def __len__(self) -> int:
        return int(self.entities.size)

    def take(self, index: npt.ArrayLike) -> ErrorRows:
        """Return the tasks at `index` (whole numbers, also twice, or a mark for each) with their errors."""
        chosen = np.asarray(index)
        chosen = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.int64)
        order = np.argsort(self.task, kind="stable")
        edges = np.append(0, np.cumsum(np.bincount(self.task, minlength=len(self))))
        sizes = edges[chosen + 1] - edges[chosen]  # errors of each chosen task
        task = np.repeat(np.arange(chosen.size, dtype=np.int64), sizes)
        within = np.arange(task.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        errors = order[np.repeat(edges[chosen], sizes) + within]
        return ErrorRows(
            self.entities[chosen],
            self.best[chosen],
            None if self.weight is None else self.weight[chosen],
            task,
            self.level[errors],
            self.false[errors],
        )

    @property
    def counted(self) -> Bools:
        """Which tasks the promise is about: those with a true or a predicted span (empty ones dilute)."""
        return np.asarray((self.entities > 0) | (self.best > 0))

    def left_behind(self, level: float) -> tuple[Ints, Ints]:
        """Return errors left behind at `level`, and spans in the final labels to divide them by, each (n,)."""
        left = self.level < level
        wrong = np.bincount(self.task[left], minlength=len(self))
        false = np.bincount(self.task[left & self.false], minlength=len(self))
        return wrong.astype(np.int64), np.maximum(1, self.entities + false).astype(np.int64)

    def losses(self, level: float) -> Floats:
        """Return each task's loss (n,) when what the rule of `level` flags is put right, in [0, 1], rising with level.

        Errors left behind of `max(1, |Y| + false spans left behind)`: the share of wrong or missing entities in the
        final labels. Level 0 leaves none behind; `inf` flags nothing.
        """
        if np.isnan(level) or level < 0:
            raise InvalidScores(f"expected a level of at least 0, got {level}")
        wrong, size = self.left_behind(level)
        return np.asarray(wrong / size, dtype=np.float64)
