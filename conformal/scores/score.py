"""What a score is: a formula, and every fact that calibration, tuning and prediction ask about it.

Nothing outside this package looks at the name of a score. A new one is a subclass in a file of its own and a line in
`conformal.scores.table`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from conformal.quantile import CalibrationScores, Floats, Level, ScoreTable, StackedTable
from conformal.scores.boundary import Boundary
from conformal.scores.ranks import DEFAULT_LIMIT, Ranks
from conformal.scores.tuned import Choice, Grid, Tuned

if TYPE_CHECKING:
    from conformal.rows import EntityRows, TaskRows
    from conformal.subsequence import SpanScores

Ints = npt.NDArray[np.int64]


class Sets(Enum):
    """What the sets of a score are, which decides how they are found."""

    HEADS = "the first labelings of the ranked list"
    PARTS = "the labelings whose every part is allowed"
    SPANS = "the labelings whose every entity is in its span's set"


@dataclass(frozen=True, eq=False)
class TuningPart:
    """The rows that something is frozen on, at which level, and the limit of the method."""

    tasks: TaskRows
    level: Fraction
    limit: int | None = None
    entities: EntityRows | None = None
    classes: Sequence[str] = ()


class Score(ABC):
    """How strange a labeling is, higher being stranger and `+inf` out of reach; with its facts.

    Where `sets` is HEADS, which is the rule, scores must rise with the rank along every ranked list. The same function
    scores calibration rows (one true labeling per task) and ranked lists (all labelings of one task), so that both
    always agree.
    """

    name: str
    worth: str = "exact"  # or "approximate", "heuristic": no finite-sample guarantee
    sets: Sets = Sets.HEADS
    limit: int | None = DEFAULT_LIMIT  # how far ranks are searched if nothing is said; None: no rank is needed
    goes_on: bool = False  # labelings beyond the limit are judged by their probability, instead of scoring +inf
    boundaries: tuple[Boundary, ...] = (Boundary.INCLUDE, Boundary.SMOOTHED)
    smooths: bool = False  # a draw enters the score itself (see `step`), not the p-value
    is_pair: bool = False  # two scores with a threshold each: values are (..., 2)
    tunes: bool = False  # something must be frozen on a tuning part before calibration
    searches_lists: bool = False  # tuning compares the sets of ranked lists, where these are at hand
    is_enumerable: bool = False  # the score is -log P itself, so the decoder can stop at the threshold
    bounds_rest: bool = True  # the end of a list bounds the scores of what is not listed
    largest_step: float = 0.0  # what a draw can take off that bound
    spans: str = "nc1"  # the span method that goes with it where none is named

    @property
    def needs_rank(self) -> bool:
        """Whether the score is a function of the rank too."""
        return self.limit is not None

    @abstractmethod
    def values(self, ranks: Ranks, *, tuned: Tuned, limit: int | None) -> Floats:
        """Score labelings; `limit` is the method's, already applied to the ranks unless the score goes on."""

    def step(self, ranks: Ranks) -> Floats:
        """Return what a smoothed score subtracts u times, for scores that smooth."""
        raise NotImplementedError(f"{self.name} is smoothed in its p-value")

    def paper_points(
        self, before: Floats, given: Floats, tau: Floats, *, table: ScoreTable | StackedTable, alpha: Level
    ) -> tuple[Floats, Floats, Floats | float]:
        """Return the scores before and at a labeling, and the threshold, on the scale of the paper's V."""
        return before, given, tau

    def table(self, rows: CalibrationScores, *, tuned: Tuned) -> ScoreTable:
        """Make the calibration table of these scores."""
        return rows.table()

    def choices(self, part: TuningPart) -> list[Choice]:
        """Return what may be frozen on the tuning part; the first is the choice where no lists are at hand."""
        raise NotImplementedError(f"{self.name} freezes nothing")

    def describe(self, tasks: TaskRows, entities: EntityRows, *, tuned: Tuned) -> TaskRows:
        """Return the rows with all that the score is a function of; `entities` are the tasks' own."""
        return tasks


class SpanScore(Score):
    """A score that has a form for the labels of a span too (METHODS 6.1, 6.5)."""

    base: PlainScore
    spans_need_rank: bool = True  # nc_idx is needed: the smallest rank whose labeling holds the entity

    @abstractmethod
    def span_values(self, scored: SpanScores, rank: Ints, *, tuned: Tuned | None) -> Floats:
        """Score labels of spans; `rank` is nc_idx of each, 0 where it is beyond the limit."""

    def span_choice(self, ranks: Ranks, *, level: Fraction, limit: int) -> Choice:
        """Return what is frozen, by the ranks at which the tuning part's true entities are first found."""
        raise NotImplementedError(f"{self.name} freezes nothing for spans")

    def variants(self, grid: Grid) -> list[Choice]:
        """Return all the ways to freeze it that a grid has."""
        raise NotImplementedError(f"{self.name} freezes nothing")


class PlainScore(SpanScore):
    """One of the scores that the others build on (METHODS 4.1): nothing is frozen, every boundary rule exists."""

    boundaries = tuple(Boundary)
    spans_need_rank = False
    compares_labels: bool = True  # for spans: a function of the probabilities of a span's other labels too

    def __init__(self) -> None:
        self.base = self

    @abstractmethod
    def of(self, ranks: Ranks) -> Floats:
        """Score labelings."""

    @abstractmethod
    def of_spans(self, scored: SpanScores) -> Floats:
        """Score labels of spans."""

    def values(self, ranks: Ranks, *, tuned: Tuned, limit: int | None) -> Floats:
        """Score labelings."""
        return self.of(ranks)

    def span_values(self, scored: SpanScores, rank: Ints, *, tuned: Tuned | None) -> Floats:
        """Score labels of spans."""
        return self.of_spans(scored)

    def of_expressible(self, ranks: Ranks) -> Floats:
        """Score labelings; `+inf` for those without a rank, also where the score needs none."""
        return np.where(ranks.expressible, self.of(ranks), np.inf)

    def on_probability_scale(self, values: Floats) -> Floats:
        """Return scores on the scale of a probability, where a penalty on the rank is added."""
        return values
