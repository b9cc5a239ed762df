"""Who predicts: groups of texts in, groups of answers out, in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from backend.preannotate.recipe import Item, Recipe, predict_items
from backend.prediction.answer import Answer
from backend.prediction.predictor import Predictor

Group = Sequence[Item]
Answers = list[Answer | None]

BATCH = 50  # texts that are predicted together: enough to fill a batch of the model, few enough to share out


class Engine(Protocol):
    """Predicts with one recipe."""

    def run(self, recipe: Recipe, groups: Iterator[Group], *, own: Predictor) -> Iterator[Answers]:
        """Yield one list of answers per group, in order; groups are read ahead, but not far.

        An empty group takes its turn like the others. `own` is the predictor of this process, of the same recipe.
        """


class Inline:
    """Predicts in this process."""

    def run(self, recipe: Recipe, groups: Iterator[Group], *, own: Predictor) -> Iterator[Answers]:  # noqa: ARG002
        """Yield the answers of each group."""
        for group in groups:
            answers: Answers = []
            for part in parts_of(group):
                answers += predict_items(own, part)
            yield answers


def parts_of(group: Group) -> list[Group]:
    """Cut a group into what is predicted together.

    >>> [len(part) for part in parts_of([Item("1", "a")] * 120)]
    [50, 50, 20]
    """
    return [group[first : first + BATCH] for first in range(0, len(group), BATCH)]
