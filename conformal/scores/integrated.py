"""Labelings scored by their strangest part, exact at task level (METHODS 7.3).

`T(y)` is the largest of the class terms of y's entities and the O terms of candidate spans that y leaves out, each on
the scale of its distribution on the tuning part. A missing entity pays an O term, an extra one a class term, a shifted
boundary both. T does not rise with the rank, so these sets are not heads of the ranked list: `conformal.integrated`
finds them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from conformal.errors import InvalidScores
from conformal.labels import OUTSIDE
from conformal.quantile import Floats
from conformal.scores.joint import joint
from conformal.scores.nc1 import NC1
from conformal.scores.ranks import Ranks
from conformal.scores.score import Score, Sets, TuningPart
from conformal.scores.tuned import PART, Choice, Reference, Tuned

if TYPE_CHECKING:
    from conformal.rows import EntityRows, TaskRows


class Integrated(Score):
    """A score made of the terms of a labeling's parts."""

    sets = Sets.PARTS
    limit = None
    tunes = True
    is_bounded: bool  # whether the probability of a labeling alone can rule it out

    @abstractmethod
    def least(self, terms: Floats, *, tuned: Tuned) -> Floats:
        """Return the least score of a labeling that has such a term, whatever else it holds."""

    def describe(self, tasks: TaskRows, entities: EntityRows, *, tuned: Tuned) -> TaskRows:
        """Return the rows with T of their true labelings."""
        return tasks.with_worst(worst_parts(tasks, entities, tuned=tuned))

    def choices(self, part: TuningPart) -> list[Choice]:
        """Freeze the distribution functions of the parts; raises `InvalidScores` without entity rows."""
        rows = check_entities(part.tasks, part.entities)
        return [Choice(self._frozen(part.tasks, rows, Tuned(references=part_references(rows, part.classes))))]

    def _frozen(self, tasks: TaskRows, entities: EntityRows, parts: Tuned) -> Tuned:
        return parts

    def _worst(self, ranks: Ranks) -> Floats:
        if ranks.worst is None:
            raise InvalidScores(f"expected the strangest part of each labeling for {self.name}, got none")
        return np.where(ranks.log_probability > -np.inf, ranks.worst, np.inf)


class StrangestPart(Integrated):
    """T itself."""

    name = "integrated"
    is_bounded = False

    def values(self, ranks: Ranks, *, tuned: Tuned, limit: int | None) -> Floats:
        """Return T."""
        return self._worst(ranks)

    def least(self, terms: Floats, *, tuned: Tuned) -> Floats:
        """Return the terms: T is the largest."""
        return terms


class StrangestPartAndNc1(Integrated):
    """T and nc1, joined as joint scores are: nc1 bounds the set."""

    name = "integrated+nc1"
    is_bounded = True

    def values(self, ranks: Ranks, *, tuned: Tuned, limit: int | None) -> Floats:
        """Return `joint` of nc1 and T."""
        worst = self._worst(ranks)
        references = (tuned.reference("score"), tuned.reference("other"))
        return joint(NC1.of(ranks), worst, references=references, ties=NC1.of(ranks))

    def least(self, terms: Floats, *, tuned: Tuned) -> Floats:
        """Return the half steps of the terms, as if nc1 were none."""
        half_steps = tuned.reference("other").half_steps(terms).astype(np.float64)
        return np.where(np.isposinf(terms), np.inf, half_steps)

    def _frozen(self, tasks: TaskRows, entities: EntityRows, parts: Tuned) -> Tuned:
        worst = worst_parts(tasks, entities, tuned=parts)
        joined = (("other", Reference.of(worst)), ("score", Reference.of(NC1.of(tasks.ranks))))
        return Tuned(references=(*parts.references, *joined))


def part_references(entities: EntityRows, classes: Sequence[str]) -> tuple[tuple[str, Reference], ...]:
    """Return G_w for every class and G_O, from the tuning part's entity rows (METHODS 7.3).

    Each is the distribution function of -log P_ent: the same order as 1 - P_ent, without rounding near 1.
    """
    scores = NC1.of_spans(entities.scored)
    references: list[tuple[str, Reference]] = []
    for name in (*classes, OUTSIDE):
        at = entities.names.index(name) if name in entities.names else -1
        references.append((PART + name, Reference.of(scores[entities.codes == at])))
    return tuple(references)


def worst_parts(tasks: TaskRows, entities: EntityRows, *, tuned: Tuned) -> Floats:
    """Return T of each unit's true labeling: (units,), `+inf` where the model cannot express it.

    Needs every entity row of each unit: its true entities, and its candidate spans that are none (`score_unit` gives
    both). Rows of other tasks are ignored.
    """
    scores = NC1.of_spans(entities.scored)
    terms = np.zeros(len(entities))
    for code, name in enumerate(entities.names):
        here = entities.codes == code
        terms[here] = tuned.part(name)(scores[here])
    terms[np.isposinf(scores)] = np.inf
    numbers, wanted = tasks.numbers, entities.task
    if tasks.unit is not None:  # one number for task and unit
        several = int(max(tasks.unit.max(initial=0), entities.units.max(initial=0))) + 1
        known_tasks = np.unique(numbers)
        inside = np.isin(wanted, known_tasks)
        place = np.searchsorted(known_tasks, wanted)
        numbers = np.searchsorted(known_tasks, numbers) * several + tasks.unit
        wanted = np.where(inside, place * several + entities.units, -1)
    order = np.argsort(numbers, kind="stable")
    at = np.searchsorted(numbers[order], wanted)
    known = at < numbers.size
    known[known] = numbers[order][at[known]] == wanted[known]
    result = np.zeros(len(tasks))
    np.maximum.at(result, order[at[known]], terms[known])
    return np.where(np.isneginf(tasks.ranks.log_probability), np.inf, result)


def check_entities(tasks: TaskRows, entities: EntityRows | None) -> EntityRows:
    """Return entity rows that can score these tasks' labelings by their parts, or raise `InvalidScores`."""
    if entities is None or (len(tasks) and not len(entities)):
        raise InvalidScores("expected the entity rows of every task for integrated sets, got none")
    return entities
