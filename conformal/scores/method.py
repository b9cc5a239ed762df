"""A full-sequence method: a score, a boundary rule and a convention; the one interface to all of them (METHODS 4)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument, InvalidScores
from conformal.quantile import (
    Bools,
    CalibrationScores,
    Floats,
    Level,
    ScoreTable,
    StackedTable,
    checked_scores,
    checked_u,
)
from conformal.scores.boundary import Boundary
from conformal.scores.ranks import Ranks
from conformal.scores.score import Score, Sets
from conformal.scores.table import SCORES, split_name
from conformal.scores.tuned import Choice, Tuned

if TYPE_CHECKING:
    from conformal.rows import EntityRows, TaskRows


@dataclass(frozen=True)
class Method:
    """Which score, which boundary rule, which convention; part of the thresholds it was calibrated with.

    `limit`: labelings of a higher rank have score `+inf`, in calibration and in prediction (METHODS 3.3);
    None (nc1 and the integrated sets only) means that no rank is needed. `top_k` renormalises probabilities over the
    K best (METHODS 2.4) and limits ranks to K. `tuned` is None until the method has seen a tuning part: `calibrate`
    sets one aside by itself for methods that need it (`needs_tuning`), or see `conformal.tuning.tune`. `spans` names
    the span method that goes with it (empty: nc1, or what one of the paper's integrated sets is made of); so does
    "method/spans" in `name`.

    >>> Method("nc2").limit, Method("nc1").limit, Method("nc1", top_k=100).limit
    (1000, None, 100)
    >>> Method("raps+nc1").needs_tuning, Method("conditional_paper+nc1").worth
    (True, 'approximate')
    >>> Method("nc1/raps+nc1").spans
    'raps+nc1'
    """

    name: str = "nc1"
    boundary: Boundary = Boundary.INCLUDE
    limit: int | None = None
    top_k: int | None = None
    tuned: Tuned | None = None
    spans: str = ""

    def __post_init__(self) -> None:
        name, spans = split_name(f"{self.name}/{self.spans}" if self.spans else self.name)
        object.__setattr__(self, "spans", spans if self.spans or "/" in self.name else "")
        object.__setattr__(self, "name", name)
        try:
            object.__setattr__(self, "boundary", Boundary(self.boundary))
        except ValueError:
            known = [rule.value for rule in Boundary]
            raise InvalidArgument(f"expected a boundary rule among {known}, got {self.boundary!r}") from None
        self._check_boundary()
        for given, what in ((self.limit, "limit"), (self.top_k, "top_k")):
            if given is not None and given < 1:
                raise InvalidArgument(f"expected {what} of at least 1, got {given}")
        if self.top_k is not None:
            object.__setattr__(self, "limit", min(self.limit or self.top_k, self.top_k))
        elif self.limit is None and self.needs_rank:
            object.__setattr__(self, "limit", self.score.limit)

    def _check_boundary(self) -> None:
        known = self.score.boundaries
        if self.boundary not in known:
            if known == (Boundary.INCLUDE,):
                raise InvalidArgument(
                    f"expected the boundary rule 'include' for {self.name}, got {self.boundary.value!r}"
                )
            *most, last = (name for name, score in SCORES.items() if score.boundaries == tuple(Boundary))
            raise InvalidArgument(
                f"expected 'include' or 'smoothed' for {self.name}, got {self.boundary.value!r}: "
                f"the other rules exist for {', '.join(most)} and {last}"
            )
        if self.top_k is not None and not self.makes_heads:
            raise InvalidArgument(f"expected no top_k for {self.name}: its sets are exact, got {self.top_k}")

    @property
    def score(self) -> Score:
        """The score, with all its facts."""
        return SCORES[self.name]

    @property
    def worth(self) -> str:
        """Return "exact", "approximate" or "heuristic": the last two have no finite-sample guarantee."""
        return self.score.worth

    @property
    def is_pair(self) -> bool:
        """Whether a labeling has two scores with a threshold each: (..., 2) instead of (...)."""
        return self.score.is_pair

    @property
    def makes_heads(self) -> bool:
        """Whether sets are heads of the ranked list, so that a labeling's rank says whether it belongs."""
        return self.score.sets is Sets.HEADS

    @property
    def is_integrated(self) -> bool:
        """Whether labelings are scored by their parts; such sets are not heads of the ranked list."""
        return self.score.sets is Sets.PARTS

    @property
    def is_heuristic(self) -> bool:
        """Whether it is one of the paper's integrated sets: made of span sets, without a score of its own."""
        return self.score.sets is Sets.SPANS

    @property
    def span_name(self) -> str:
        """The span method that goes with it."""
        return self.spans or self.score.spans

    @property
    def goes_on(self) -> bool:
        """Whether a labeling beyond the rank limit, or of unknown rank, is judged by its probability."""
        return self.limit is None or (self.score.goes_on and self.top_k is None)

    @property
    def needs_rank(self) -> bool:
        """Whether the score is a function of the rank too."""
        return self.score.needs_rank

    @property
    def needs_tuning(self) -> bool:
        """Whether something must be frozen on a tuning part before calibration."""
        return self.score.tunes and self.tuned is None

    @property
    def searches_lists(self) -> bool:
        """Whether tuning is better with ranked lists: it then compares the sizes of sets."""
        return self.score.searches_lists

    @property
    def needs_u(self) -> bool:
        """Whether sets depend on the task's boundary draw."""
        return self.boundary in (Boundary.SMOOTHED, Boundary.PAPER)

    @property
    def smooths_scores(self) -> bool:
        """Whether the draw enters the score itself, also in calibration, not the p-value."""
        return self.boundary is Boundary.SMOOTHED and self.score.smooths

    def freeze(self, choice: Choice) -> Method:
        """Return the method with these values."""
        return replace(self, tuned=choice.tuned, limit=self.limit if choice.limit is None else choice.limit)

    def describe(self, tasks: TaskRows, entities: EntityRows) -> TaskRows:
        """Return the rows with all that the score is a function of: T where labelings are scored by their parts."""
        return tasks if self.tuned is None else self.score.describe(tasks, entities, tuned=self.tuned)

    def scores(self, ranks: Ranks, *, u: npt.ArrayLike | None = None) -> Floats:
        """Score labelings; `u` (same shape) is needed when `smooths_scores`. NaN is refused.

        Pair methods give (..., 2): the rank, then the probability score.
        """
        described = self._conventional(ranks)
        if self.needs_tuning:
            raise InvalidArgument(f"expected {self.name} with its tuned values, got none; see conformal.tuning.tune")
        values = self.score.values(described, tuned=self.tuned or Tuned(), limit=self.limit)
        if self.smooths_scores:
            if u is None:
                raise InvalidArgument(f"expected u for smoothed {self.name}, got none; see boundary_u")
            values = values - checked_u(u) * self.score.step(described)
        return checked_scores(values)

    def _conventional(self, ranks: Ranks) -> Ranks:
        """Apply the rank limit and, for the top-K convention, the renormalisation."""
        log_probability, cumulative = ranks.log_probability, ranks.cumulative
        if self.top_k is not None:
            if ranks.mass is None:
                raise InvalidScores(f"expected the mass of the {self.top_k} best labelings, got none")
            log_probability = log_probability - np.log(ranks.mass)
            cumulative = cumulative / ranks.mass
        if self.limit is None or self.goes_on:
            return Ranks(log_probability, ranks.rank, cumulative, None, ranks.worst)
        within = (ranks.rank >= 1) & (ranks.rank <= self.limit)
        logs = np.where(within, log_probability, -np.inf)
        return Ranks(logs, np.where(within, ranks.rank, 0), cumulative, None, ranks.worst)

    def table(
        self,
        scores: npt.ArrayLike,
        *,
        weights: npt.ArrayLike | None = None,
        test_weight: float = 1.0,
        sizes: npt.ArrayLike | None = None,
    ) -> ScoreTable:
        """Make the calibration table of these scores: (m,), or (m, 2) for pair methods.

        `weights` as METHODS 3.7; `sizes` are the numbers of units that the row's task has here (METHODS 10.2).
        """
        rows = CalibrationScores.of(scores, weights=weights, test_weight=test_weight, sizes=sizes, pair=self.is_pair)
        return self.score.table(rows, tuned=self.tuned or Tuned())

    def members(
        self,
        scores: npt.ArrayLike,
        table: ScoreTable | StackedTable,
        alpha: Level,
        *,
        previous: npt.ArrayLike | None = None,
        u: npt.ArrayLike | None = None,
    ) -> Bools:
        """Decide membership of labelings with these scores at level alpha.

        `previous`: the score of the labeling one rank above (-inf for rank 1), for FULL and PAPER; `u`: the
        task's draw, for SMOOTHED nc1 and for PAPER. Elementwise, so one call serves a ranked list or a test
        set.
        """
        given = checked_scores(scores)
        if self.boundary is Boundary.INCLUDE or self.smooths_scores:
            return table.contains(given, alpha)
        if self.needs_u and u is None:
            raise InvalidArgument(f"expected u for the boundary rule {self.boundary.value}, got none; see boundary_u")
        if self.boundary is Boundary.SMOOTHED:
            return table.contains(given, alpha, u=u)
        tau = np.asarray(table.threshold(alpha))
        below = (given < tau) | np.isposinf(tau)
        if self.boundary is Boundary.EARLY:
            return np.asarray(below)
        if previous is None:
            raise InvalidArgument(f"expected previous scores for the boundary rule {self.boundary.value}, got none")
        before = np.asarray(previous, dtype=np.float64)
        first_past = (before < tau) & ~below
        if self.boundary is Boundary.FULL:
            return np.asarray(below | first_past)
        share = self._paper_share(before, given, table, alpha, tau)
        return np.asarray(below | (first_past & (checked_u(0.0 if u is None else u) <= share)))

    def _paper_share(
        self, before: Floats, given: Floats, table: ScoreTable | StackedTable, alpha: Level, tau: Floats
    ) -> Floats:
        """Return V, the chance of keeping the first labeling past tau; what precedes rank 1 has score 0."""
        low = np.maximum(before, 0.0)
        least, most, target = self.score.paper_points(low, given, tau, table=table, alpha=alpha)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (target - least) / (most - least)
        return np.where(most > least, share, 1.0)
