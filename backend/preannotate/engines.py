"""Who predicts: groups of texts in, groups of outcomes out, in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from backend.outcome import Outcome
from backend.preannotate.recipe import Item, Recipe, predict_items

if TYPE_CHECKING:
    from backend.predictor import Predictor

Group = Sequence[Item]
Outcomes = list[Outcome | None]

BATCH = 50  # texts that are predicted together: enough to fill a batch of the model, few enough to share out


class Engine(Protocol):
    """Predicts with one recipe."""

    def run(self, recipe: Recipe, groups: Iterator[Group], *, own: Predictor) -> Iterator[Outcomes]:
        """Yield one list of outcomes per group, in order; groups are read ahead, but not far.

        An empty group takes its turn like the others. `own` is the predictor of this process, of the same recipe.
        """


class Inline:
    """Predicts in this process."""

    def run(self, recipe: Recipe, groups: Iterator[Group], *, own: Predictor) -> Iterator[Outcomes]:  # noqa: ARG002
        """Yield the outcomes of each group."""
        for group in groups:
            made: Outcomes = []
            for part in parts_of(group):
                made += predict_items(own, part)
            yield made


def make_engine(name: str, jobs: int) -> Engine:
    """Return the engine of that name: `local` or `ray`.

    Raises:
        RayMissing: when Ray is asked for and is not installed.
    """
    if name == "ray":
        from backend.preannotate.cluster import RayCluster  # noqa: PLC0415 - Ray is optional

        return RayCluster(jobs)
    if jobs == 1:
        return Inline()
    from backend.preannotate.processes import LocalProcesses  # noqa: PLC0415 - one job needs none

    return LocalProcesses(jobs)


def parts_of(group: Group) -> list[Group]:
    """Cut a group into what is predicted together.

    >>> [len(part) for part in parts_of([Item("1", "a")] * 120)]
    [50, 50, 20]
    """
    return [group[first : first + BATCH] for first in range(0, len(group), BATCH)]
