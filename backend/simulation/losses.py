"""How wrong labels are: the loss of one task, and errors over a whole corpus (METHODS 11.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from backend.domain.records import TextSpan


@dataclass(frozen=True)
class Left:
    """The errors left in one task: entities that are missing, spans that are false, and true entities in all.

    `counts` says that the promise speaks of the task: an entity is in it, or was predicted there.
    """

    missing: int
    false: int
    true: int
    counts: bool

    @property
    def loss(self) -> float:
        """The share of the task's final entities that are wrong or missing.

        >>> Left(missing=1, false=1, true=3, counts=True).loss
        0.5
        """
        return (self.missing + self.false) / max(1, self.true + self.false)


def errors_left(gold: Iterable[TextSpan], final: Iterable[TextSpan], *, shown: Sequence[TextSpan] = ()) -> Left:
    """Compare the labels of a task with the true ones; `shown` is what its prelabel was."""
    true, given = set(gold), set(final)
    return Left(len(true - given), len(given - true), len(true), bool(true or given or shown))


@dataclass(frozen=True)
class Quality:
    """Errors left in a corpus: a task's loss on average, over all of the corpus, and how many tasks were averaged."""

    loss: float
    whole: float
    tasks: int


def quality(tasks: Iterable[Left]) -> Quality:
    """Return how good a corpus is.

    `loss` averages over tasks that the promise speaks of; `whole` is all errors over all entities.

    >>> quality([Left(1, 0, 2, True), Left(0, 0, 8, True), Left(0, 0, 0, False)])
    Quality(loss=0.25, whole=0.1, tasks=2)
    """
    every = list(tasks)
    losses = [each.loss for each in every if each.counts]
    wrong = sum(each.missing + each.false for each in every)
    entities = sum(each.true + each.false for each in every)
    return Quality(float(np.mean(losses)) if losses else 0.0, wrong / max(1, entities), len(losses))
