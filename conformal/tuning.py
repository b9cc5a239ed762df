"""Tuning on a part of the rows that calibration never sees (METHODS 4.5).

Whatever is frozen here may depend on the tuning rows in any way: calibration conditions on it, so sets stay exact.
What a score freezes, and the values it chooses among, stand in its own file of `conformal.scores`. With ranked lists of
the tuning tasks the values are searched for the smallest mean set; without them (a database keeps scores, not lists)
they are set from the true labelings' ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument
from conformal.evaluation import cut_points, head_sizes, within
from conformal.labels import OUTSIDE
from conformal.quantile import Bools, Floats, Level, exact_level
from conformal.rows import EntityRows, TaskRows
from conformal.scores import Boundary, EntityMethod, Method, Ranks, TuningPart, hash_u
from conformal.scores.entity_method import SPAN_LIMIT
from conformal.strata import NO_STRATA, WHOLE, Strata
from conformal.subsequence import Ints

TUNING_SHARE = "0.2"


@dataclass(frozen=True, eq=False)
class RankedLists:
    """The best labelings of several tasks, side by side: log-probabilities (tasks, K), -inf where there is none.

    `complete`: every labeling of the task is listed. Sizes beyond K are not known.
    """

    log_probabilities: Floats  # (tasks, K) falling along each row
    complete: Bools  # (tasks,)

    @property
    def most(self) -> int:
        """How many labelings are listed at most."""
        return int(self.log_probabilities.shape[1])

    @cached_property
    def sums(self) -> Floats:
        """Cumulative probabilities: (tasks, K)."""
        return np.cumsum(np.exp(self.log_probabilities, dtype=np.float64), axis=1)

    @cached_property
    def listed(self) -> npt.NDArray[np.int64]:
        """How many labelings each task's list has."""
        return np.asarray((self.log_probabilities > -np.inf).sum(axis=1), dtype=np.int64)


def tuning_part(tasks: TaskRows, *, share: Level = TUNING_SHARE) -> Bools:
    """Draw the tuning part by a hash of each task's number: the same in any order of the rows."""
    return drawn_for_tuning(tasks.numbers, share=share)


def drawn_for_tuning(numbers: npt.ArrayLike, *, share: Level = TUNING_SHARE) -> Bools:
    """Say of each task number whether the tuning part has it."""
    part = float(exact_level(share))
    given, inverse = np.unique(np.asarray(numbers, dtype=np.int64), return_inverse=True)
    drawn = np.array([hash_u("tuning", number) < part for number in given.tolist()], dtype=np.bool_)
    return drawn[inverse.ravel()]


def tune_spans(method: EntityMethod, rows: EntityRows, *, alpha: Level = "0.05") -> EntityMethod:
    """Freeze a span method on these (tuning) rows, by the ranks at which their true entities are first found.

    RAPS charges from the rank that half of alpha lies beyond; conditional caps where a fifth of alpha does, and naive
    gives that fifth to the rank. Valid at every level.

    >>> rows = EntityRows.of(range(9), ["PER"] * 9, probability=[0.9] * 9, rank=[1, 1, 1, 1, 1, 1, 2, 4, 7])
    >>> tune_spans(EntityMethod("conditional+nc1"), rows, alpha="0.5").limit
    7
    """
    level = exact_level(alpha)
    if not method.needs_rank:
        return method
    most = method.limit or SPAN_LIMIT
    code = rows.names.index(OUTSIDE) if OUTSIDE in rows.names else -1
    first = rows.rank[rows.codes != code]
    ranks = Ranks(np.where(first > 0, 0.0, -np.inf), first, np.zeros(first.size))
    return method.freeze(method.score.span_choice(ranks, level=level, limit=most))


def tune_apart(
    method: Method, tasks: TaskRows, entities: EntityRows, *, classes: Sequence[str], alpha: Level = "0.05"
) -> tuple[Method, TaskRows]:
    """Freeze a method on a drawn part of the rows; return it with the rows that are left for calibration."""
    part = tuning_part(tasks)
    tuning = tasks.take(part)
    own = entities.take(np.isin(entities.task, tuning.numbers))
    return tune(method, tuning, entities=own, classes=classes, alpha=alpha), tasks.take(~part)


def tune(
    method: Method,
    tasks: TaskRows,
    *,
    classes: Sequence[str] = (),
    entities: EntityRows | None = None,
    lists: RankedLists | None = None,
    strata: Strata | None = None,
    alpha: Level = "0.05",
) -> Method:
    """Return the method with its values frozen on these rows, for sets that are small at level alpha.

    `lists` are the tasks' ranked lists, for the grid search, which thresholds per pool of `strata` if these are given;
    integrated methods need `entities` and `classes`. The result is valid at every level, whatever it was tuned for.

    >>> rows = TaskRows.of(["en/1-10"] * 9, [-0.1] * 9, rank=[1, 1, 1, 1, 1, 1, 2, 4, 7], cumulative=[0.9] * 9)
    >>> tune(Method("conditional+nc1"), rows, alpha="0.5").limit  # a fifth of alpha goes to the rank
    7
    """
    level = exact_level(alpha)
    if lists is not None and len(lists.complete) != len(tasks):
        raise InvalidArgument(f"expected one ranked list per task ({len(tasks)}), got {len(lists.complete)}")
    if not method.score.tunes:
        return method
    choices = method.score.choices(TuningPart(tasks, level, method.limit, entities, classes))
    if lists is None or len(choices) == 1 or not len(tasks):
        return method.freeze(choices[0])
    options = [method.freeze(choice) for choice in choices]
    return min(options, key=lambda option: mean_size(option, tasks, lists, alpha, strata=strata))


def mean_size(
    method: Method, tasks: TaskRows, lists: RankedLists, alpha: Level, *, strata: Strata | None = None, n_min: int = 100
) -> float:
    """Return the mean size of the tuning tasks' own sets, with thresholds from these tasks.

    Sizes are cut at the lists' length K, and an open set counts as K. With `strata`, thresholds are per pool.
    """
    plain = replace(method, boundary=Boundary.INCLUDE)
    layout = NO_STRATA if strata is None else strata
    cells = np.array(tasks.cells if strata is not None else (WHOLE,) * len(tasks))
    counts = dict(zip(*(column.tolist() for column in np.unique(cells, return_counts=True)), strict=True))
    scores = plain.scores(tasks.ranks)
    cuts = np.full((len(tasks), 2 if plain.is_pair else 1), np.inf)
    closed = np.zeros(len(tasks), dtype=np.bool_)
    for pool in layout.partition(counts, n_min=n_min):
        here = np.isin(cells, pool.cells)
        table = plain.table(scores[here])
        if pool.calibrated and not np.isposinf(table.threshold(alpha)):
            cuts[here], closed[here] = cut_points(table, alpha), True
    logs, sums = lists.log_probabilities, lists.sums

    def inside(rows: Ints, rank: Ints) -> Bools:
        ranks = Ranks(logs[rows, rank - 1].astype(np.float64), rank, sums[rows, rank - 1])
        return within(plain.scores(ranks), cuts[rows])

    sizes = head_sizes(inside, np.where(closed, lists.listed, 0))
    return float(np.where(closed, np.maximum(sizes, 1), lists.most).mean())
