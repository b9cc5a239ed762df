"""What an evaluation says about sets: coverage, sizes, gaps (METHODS 9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidScores
from conformal.pairs import PairTable
from conformal.quantile import Bools, Floats, Level, ScoreTable
from conformal.subsequence import Ints

SIZE_BINS = ((0, 0), (1, 1), (2, 5), (6, 20), (21, 100), (101, None))


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Sets of test tasks: whether each covers its truth, its size, whether it is open, where the truth stands in it.

    `size` counts the members that were listed; an open set, or one that holds all of an unfinished list, has at least
    that size. `position` is that of the truth among the members (0: not among the listed ones).
    """

    covered: Bools  # (T,)
    size: Ints  # (T,)
    open: Bools  # (T,)
    position: Ints  # (T,)

    def __post_init__(self) -> None:
        if not self.covered.shape == self.size.shape == self.open.shape == self.position.shape:
            raise InvalidScores("expected columns of one length, got several")


@dataclass(frozen=True)
class Summary:
    """The figures of METHODS 9 for one method, level and set of test tasks.

    Sizes are of what is shown (at least y(1)); `mean` and `median` are over closed sets, the capped means count open
    sets as full. `worst_gap` is the lowest coverage of a group minus the target, over groups of at least `least` tasks.
    `by_size` is the coverage among sets of each size, NaN where there is none.
    """

    tasks: int
    coverage: float
    mean: float
    median: float
    mean_100: float
    mean_1000: float
    singletons: float
    empty: float
    open: float
    worst_gap: float
    worst_group: int
    shown_coverage: float
    by_size: tuple[float, ...]


def summarise(
    outcomes: Outcomes, *, target: float, groups: npt.ArrayLike | None = None, max_shown: int = 5, least: int = 100
) -> Summary:
    """Return the figures of these sets; `groups` (T,) numbers each task's stratum.

    >>> three = Outcomes(np.array([True, True, False]), np.array([1, 4, 0]), np.zeros(3, bool), np.array([1, 3, 0]))
    >>> summary = summarise(three, target=0.9)
    >>> round(summary.coverage, 3), summary.mean, summary.singletons, round(summary.empty, 3)
    (0.667, 2.0, 0.6666666666666666, 0.333)
    """
    count = outcomes.covered.size
    if not count:
        raise InvalidScores("expected at least one test task, got none")
    shown = np.maximum(outcomes.size, 1)
    closed = ~outcomes.open
    worst, worst_group = _worst(outcomes.covered, groups, target, least)
    bins: list[float] = []
    for low, high in SIZE_BINS:
        here = closed & (outcomes.size >= low) & (outcomes.size <= (high if high is not None else np.inf))
        bins.append(float(outcomes.covered[here].mean()) if here.any() else float("nan"))
    first = outcomes.covered & (outcomes.position > 0) & (outcomes.position <= max_shown)
    return Summary(
        tasks=count,
        coverage=float(outcomes.covered.mean()),
        mean=float(shown[closed].mean()) if closed.any() else float("nan"),
        median=float(np.median(shown[closed])) if closed.any() else float("nan"),
        mean_100=float(np.where(outcomes.open, 100, np.minimum(shown, 100)).mean()),
        mean_1000=float(np.where(outcomes.open, 1000, np.minimum(shown, 1000)).mean()),
        singletons=float((closed & (shown == 1)).mean()),
        empty=float((closed & (outcomes.size == 0)).mean()),
        open=float(outcomes.open.mean()),
        worst_gap=worst,
        worst_group=worst_group,
        shown_coverage=float(first.mean()),
        by_size=tuple(bins),
    )


def _worst(covered: Bools, groups: npt.ArrayLike | None, target: float, least: int) -> tuple[float, int]:
    if groups is None:
        return float(covered.mean() - target), -1
    codes = np.asarray(groups, dtype=np.int64)
    total = np.bincount(codes)
    hits = np.bincount(codes[covered], minlength=total.size)
    known = np.flatnonzero(total >= least)
    if not known.size:
        return float("nan"), -1
    shares = hits[known] / total[known]
    return float(shares.min() - target), int(known[np.argmin(shares)])


def head_sizes(inside: Callable[[Ints, Ints], Bools], counts: npt.ArrayLike) -> Ints:
    """Return how many labelings of each ranked list belong to its set, by doubling steps and bisection.

    `inside(tasks, r)` says of some tasks whether their labelings of ranks r >= 1 belong; members must come before
    non-members. counts (T,) are the lists' lengths. Most sets are small, so most tasks are asked about twice.

    >>> tau = np.array([2, 0, 9])
    >>> head_sizes(lambda tasks, r: r <= tau[tasks], [5, 5, 5]).tolist()
    [2, 0, 5]
    """
    most = np.asarray(counts, dtype=np.int64)
    low: Ints = np.zeros(most.shape, dtype=np.int64)  # known to be inside
    high = most + 1  # known to be outside
    active = np.flatnonzero(most > 0)
    probe = 1
    while active.size:
        rank = np.minimum(probe, most[active])
        held = inside(active, rank)
        low[active[held]] = rank[held]
        high[active[~held]] = rank[~held]
        active = active[held & (rank < most[active])]
        probe *= 2
    active = np.flatnonzero(high - low > 1)
    while active.size:
        rank = (low[active] + high[active]) // 2
        held = inside(active, rank)
        low[active[held]] = rank[held]
        high[active[~held]] = rank[~held]
        active = active[high[active] - low[active] > 1]
    return low


def cut_points(table: ScoreTable, alpha: Level) -> Floats:
    """Return the threshold of a table, or both of a table of pairs: (1,) or (2,); see `within`."""
    if isinstance(table, PairTable):
        return np.array(table.thresholds(alpha))
    return np.array([table.threshold(alpha)])


def within(scores: Floats, cuts: Floats) -> Bools:
    """Whether scores (T,), or pairs (T, 2), are at most their cut points (T, 1 or 2): the sets of METHODS 3.2.

    >>> table = ScoreTable.of([1.0, 2.0, 3.0])
    >>> within(np.array([2.0, 2.5]), cut_points(table, "0.5")).tolist(), table.contains([2.0, 2.5], "0.5").tolist()
    ([True, False], [True, False])
    """
    given = scores if cuts.shape[-1] == 2 else scores[..., None]
    return np.asarray((given <= cuts).all(axis=-1))


def edf_distance(first: Floats, second: Floats) -> float:
    """Return the Kolmogorov-Smirnov distance of two samples: the largest gap of their distribution functions.

    >>> edf_distance(np.array([1.0, 2.0]), np.array([1.5, 3.0]))
    0.5
    """
    points = np.concatenate([first, second])
    below = np.searchsorted(np.sort(first), points, side="right") / first.size
    other = np.searchsorted(np.sort(second), points, side="right") / second.size
    return float(np.abs(below - other).max())
