"""Exact ranks, thresholds and p-values: the only place where a quantile is taken (METHODS 3).

Every comparison with alpha is made in integers, so `y in C <=> p(y) > alpha` holds exactly, at every level.
Scores are "higher = stranger"; `+inf` is a legal score (a label the model cannot express), NaN is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from math import ceil, floor, lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument, InvalidScores

Level = str | Decimal | Fraction | float
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
# int64, or Python integers in an object array where the common denominator of the weights is too large.
Integers = npt.NDArray[Any]

_INT64_ROOM = 2**62
_WIDEST_RATIO = 1e12


def exact_level(alpha: Level) -> Fraction:
    """Return alpha as the fraction its digits spell; floats through their shortest repr (METHODS 3.1).

    `Fraction(0.18)` is not 18/100, and the rank that follows from it can be one too high. Raises
    `InvalidArgument` outside (0, 1).

    >>> exact_level("0.18"), exact_level(0.18) == exact_level("0.18")
    (Fraction(9, 50), True)
    """
    if isinstance(alpha, bool) or not isinstance(alpha, (str, int, float, Decimal, Fraction, np.floating)):
        raise InvalidArgument(f"expected alpha as a decimal such as '0.05', got {type(alpha).__name__}")
    return _exact_level(str(alpha))


@lru_cache(maxsize=4096)
def _exact_level(text: str) -> Fraction:
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise InvalidArgument(f"expected alpha as a decimal such as '0.05', got {text!r}") from None
    if not 0 < value < 1:
        raise InvalidArgument(f"expected alpha strictly between 0 and 1, got {text}")
    return value


def rank(n: int, alpha: Level) -> int:
    """Return `ceil((1 - alpha)(n + 1))`; a rank above n means that the threshold is `+inf` (METHODS 3.1).

    >>> rank(149, "0.18"), rank(18, "0.05")
    (123, 19)
    """
    if n < 0:
        raise InvalidArgument(f"expected a number of scores of at least 0, got {n}")
    return ceil((1 - exact_level(alpha)) * (n + 1))


def least_n(alpha: Level) -> int:
    """Return the smallest number of calibration scores with a finite threshold: `ceil(1/alpha) - 1`.

    >>> least_n("0.05"), least_n("0.01")
    (19, 99)
    """
    return ceil(1 / exact_level(alpha)) - 1


def checked_scores(scores: npt.ArrayLike, name: str = "scores") -> Floats:
    """Return scores as float64 with -0.0 made 0.0; raises `InvalidScores` on NaN."""
    try:
        array = np.asarray(scores, dtype=np.float64) + 0.0  # -0.0 and 0.0 are one score and one byte string
    except (TypeError, ValueError) as error:
        raise InvalidScores(f"expected {name} to be numbers, got {type(scores).__name__}: {error}") from None
    if np.isnan(array).any():
        raise InvalidScores(f"expected {name} without NaN (use +inf for labels out of reach), got NaN")
    return array


def _per_count(counts: npt.NDArray[np.int64], value: Callable[[int], int]) -> Integers:
    """Apply an exact integer function to each of few distinct counts."""
    distinct, inverse = np.unique(counts, return_inverse=True)
    each = np.array([value(int(n)) for n in distinct], dtype=object)
    return _narrow(np.asarray(each[inverse.ravel()], dtype=object).reshape(np.shape(counts)))


def _narrow(values: Integers) -> Integers:
    """Use int64 where every value fits."""
    if values.dtype == object and (values.size == 0 or max(abs(int(v)) for v in values.flat) < _INT64_ROOM):
        return values.astype(np.int64)
    return values


def threshold(scores: npt.ArrayLike, alpha: Level, *, where: npt.ArrayLike | None = None) -> Floats:
    """Return the k-th smallest score along the last axis, `k = ceil((1-alpha)(n+1))`, `+inf` when k > n.

    scores (..., n); `where` (..., n) says which entries count, so that calibration sets of different size can
    be stacked. The set `{y : score <= threshold}` covers with probability at least 1-alpha, and below
    1-alpha + 1/(n+1) for continuous scores, when test and calibration scores are exchangeable (METHODS 3.2).

    >>> float(threshold([3.0, 1.0, 2.0, 4.0], "0.4"))
    3.0
    >>> float(threshold([3.0, 1.0, 2.0, 4.0], "0.1"))
    inf
    """
    array = np.atleast_1d(checked_scores(scores))  # (..., n)
    if where is None:
        k = rank(array.shape[-1], alpha)
        if k > array.shape[-1]:
            return np.full(array.shape[:-1], np.inf)
        return np.asarray(np.partition(array, k - 1, axis=-1)[..., k - 1])
    counted = np.broadcast_to(np.asarray(where, dtype=np.bool_), array.shape)
    ordered = np.sort(np.where(counted, array, np.inf), axis=-1)
    n = counted.sum(axis=-1, dtype=np.int64)  # (...)
    k_all = _per_count(n, lambda count: rank(count, alpha))
    index = np.minimum(k_all, array.shape[-1]) - 1
    if array.shape[-1] == 0:
        return np.full(n.shape, np.inf)
    score = np.take_along_axis(ordered, index[..., None], axis=-1)[..., 0]
    return np.where(k_all > n, np.inf, score)


def hierarchical_threshold(scores: npt.ArrayLike, sizes: npt.ArrayLike, alpha: Level) -> Floats:
    """Return the least t whose scores <= t weigh at least `(1-alpha)(n+1)`, 1/size each (METHODS 6.2).

    scores, sizes (..., m): an entity of a task with M entities of its class has size M, 0 leaves an entry
    out; n, the total weight, is the number of tasks. Exact for a random entity of a random task that has one.
    Raises `InvalidArgument` when the sizes cannot come from whole tasks.

    >>> float(hierarchical_threshold([1.0, 2.0, 3.0, 9.0], [2, 2, 1, 1], "0.5"))
    3.0
    """
    array = np.atleast_1d(checked_scores(scores))  # (..., m)
    weights, unit = _unit_weights(np.broadcast_to(np.asarray(sizes), array.shape))
    order = np.argsort(array, axis=-1, kind="stable")
    mass = np.cumsum(np.take_along_axis(weights, order, axis=-1), axis=-1)  # (..., m) integers, in units
    if array.shape[-1] == 0:
        return np.full(array.shape[:-1], np.inf)
    n = _task_count(mass[..., -1], unit)
    level = exact_level(alpha)
    need = _per_count(n, lambda count: ceil((1 - level) * (count + 1) * unit))
    reached = mass >= need[..., None]
    first = np.argmax(reached, axis=-1)
    score = np.take_along_axis(np.take_along_axis(array, order, axis=-1), first[..., None], axis=-1)[..., 0]
    return np.where(reached.any(axis=-1), score, np.inf)


def _unit_weights(sizes: npt.NDArray[Any]) -> tuple[Integers, int]:
    """Weights 1/size as integers over their least common denominator: (weights, denominator)."""
    if sizes.size and not np.issubdtype(sizes.dtype, np.integer):
        raise InvalidArgument(f"expected whole group sizes, got {sizes.dtype}")
    distinct = np.unique(sizes)
    if distinct.size and distinct[0] < 0:
        raise InvalidArgument(f"expected group sizes of at least 0, got {distinct[0]}")
    unit = lcm(*(int(size) for size in distinct if size))
    safe = np.maximum(sizes, 1).astype(np.int64)
    tasks = int(np.where(sizes > 0, 1.0 / safe, 0.0).sum()) + 3  # what the weights add up to, and the test point
    if unit * tasks < _INT64_ROOM:
        return np.where(sizes > 0, unit // safe, 0), unit
    by_size = {int(size): unit // int(size) if size else 0 for size in distinct}
    weights = np.array([by_size[int(size)] for size in sizes.flat], dtype=object).reshape(sizes.shape)
    return weights, unit


def _task_count(total: Integers, unit: int) -> npt.NDArray[np.int64]:
    if np.any(total % unit):
        raise InvalidArgument("expected every entity of each task beside its size, got weights that add up to no whole")
    return np.asarray(total // unit, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """One calibration set, ready to answer at any level: thresholds, p-values, membership.

    `above[i]` is the weight of `scores[i:]` and `unit` that of the test point, all in whole numbers of one
    common unit, which is what makes every answer exact. Make one with `of`, `hierarchical` or `weighted`.

    >>> table = ScoreTable.of([0.2, 0.7, 0.7, 1.5])
    >>> table.threshold("0.4"), table.p_values([0.7, 1.0]).tolist()
    (0.7, [0.8, 0.4])
    >>> table.contains([0.7, 1.0], "0.4").tolist()
    [True, False]
    """

    scores: Floats  # (m,) ascending
    above: Integers  # (m + 1,)
    unit: int
    _known: dict[str, tuple[int, float]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, scores: npt.ArrayLike) -> ScoreTable:
        """Equal weights: METHODS 3.1 and 3.6."""
        ordered = np.sort(checked_scores(scores).ravel())
        return cls(ordered, np.arange(ordered.size, -1, -1, dtype=np.int64), 1)

    @classmethod
    def hierarchical(cls, scores: npt.ArrayLike, sizes: npt.ArrayLike) -> ScoreTable:
        """Weight 1/M for each of a task's M entities, 1 for the candidate: METHODS 6.2."""
        array = checked_scores(scores).ravel()
        weights, unit = _unit_weights(np.broadcast_to(np.asarray(sizes, dtype=np.int64), array.shape))
        table = cls._build(array, weights, unit)
        _task_count(table.above[:1], unit)
        return table

    @classmethod
    def weighted(cls, scores: npt.ArrayLike, weights: npt.ArrayLike, *, test_weight: float = 1.0) -> ScoreTable:
        """Any positive weights, the test point's mass at `+inf`: METHODS 3.7.

        Valid when weights are proportional to 1/(known selection probability), bounded away from 0; floats
        are taken at face value, as the exact binary fractions they are. Raises `InvalidArgument` otherwise.
        """
        array = checked_scores(scores).ravel()
        given = np.append(np.broadcast_to(np.asarray(weights, dtype=np.float64), array.shape), test_weight)
        if not np.all(np.isfinite(given) & (given > 0)):
            raise InvalidArgument("expected finite weights above 0 (test weight too), got others")
        if given.max() > _WIDEST_RATIO * given.min():
            raise InvalidArgument(
                f"expected weights within a factor {_WIDEST_RATIO:.0e} of each other (probabilities bounded "
                f"away from 0), got {given.min():g} and {given.max():g}"
            )
        # Probabilities take few values, so the whole numbers are made once for each of them.
        distinct, inverse = np.unique(given, return_inverse=True)
        parts = [value.as_integer_ratio() for value in distinct.tolist()]
        common = max(below for _, below in parts)  # powers of two: the largest is the common denominator
        whole = np.array([over * (common // below) for over, below in parts], dtype=object)[inverse]
        return cls._build(array, whole[:-1], int(whole[-1]))

    @classmethod
    def _build(cls, scores: Floats, weights: Integers, unit: int) -> ScoreTable:
        order = np.argsort(scores, kind="stable")
        mass = np.zeros(scores.size + 1, dtype=weights.dtype)
        mass[:-1] = np.cumsum(weights[order][::-1])[::-1]
        room = mass.size and int(mass[0]) + unit < _INT64_ROOM
        return cls(scores[order], mass.astype(np.int64) if room else mass.astype(object), unit)

    @cached_property
    def total(self) -> int:
        """Weight of all calibration scores, in the common unit."""
        return int(self.above[0])

    @property
    def n(self) -> int:
        """Number of calibration points, in test points' worth of weight: rows, or tasks when hierarchical."""
        return self.total // self.unit

    def threshold(self, alpha: Level, *, u: float | None = None) -> float:
        """Return the least t with enough mass at or below it, `+inf` when there is none.

        With `u`, the least calibration score that no member of the smoothed set exceeds: `+inf` when even a
        label out of reach belongs to it, -inf when nothing does.
        """
        return self._of_level(alpha)[1] if u is None else self._threshold(alpha, Fraction(float(checked_u(u))))

    def _threshold(self, alpha: Level, share: Fraction) -> float:
        limit = floor(exact_level(alpha) * (self.total + self.unit) - share * self.unit)
        # above[] falls; a score just above scores[j - 1] is a member iff above[j] > limit.
        j = self.above.size - 1 - int(np.searchsorted(self.above[::-1], limit, side="right"))
        if j < 0:
            return float("-inf")
        return float(self.scores[j]) if j < self.scores.size else float("inf")

    def contains(self, scores: npt.ArrayLike, alpha: Level, *, u: npt.ArrayLike | None = None) -> Bools:
        """Whether each score belongs to the set at level alpha: `p > alpha`, exactly (METHODS 3.6).

        With `u` uniform on [0, 1), the smoothed set, which covers exactly 1-alpha for any score.
        """
        given = checked_scores(scores)
        at_least = self.above[np.searchsorted(self.scores, given, side="left")]
        if u is None:
            return np.asarray(self.unit + at_least >= self._of_level(alpha)[0], dtype=np.bool_)
        greater = self.above[np.searchsorted(self.scores, given, side="right")]
        return _exceeds(greater, self.unit + at_least - greater, u, exact_level(alpha) * (self.total + self.unit))

    def p_values(self, scores: npt.ArrayLike, *, u: npt.ArrayLike | None = None) -> Floats:
        """Return `(1 + #{>=}) / (n + 1)`, or with `u` the smoothed `(#{>} + u (1 + #{=})) / (n + 1)`."""
        given = checked_scores(scores)
        at_least = self.above[np.searchsorted(self.scores, given, side="left")]
        if u is None:
            return np.asarray((self.unit + at_least) / (self.total + self.unit), dtype=np.float64)
        greater = self.above[np.searchsorted(self.scores, given, side="right")]
        mass = greater + checked_u(u) * (self.unit + at_least - greater)
        return np.asarray(mass / (self.total + self.unit), dtype=np.float64)

    def share_at_most(self, scores: npt.ArrayLike) -> Floats:
        """Return the empirical distribution function at each score (0 for an empty table)."""
        given = np.asarray(scores, dtype=np.float64)
        mass = self.total - self.above[np.searchsorted(self.scores, given, side="right")]
        return np.asarray(mass / max(self.total, 1), dtype=np.float64)

    def _of_level(self, alpha: Level) -> tuple[int, float]:
        """Return what a level alone decides, computed once.

        The least whole weight (candidate included) that exceeds `alpha * (total + unit)`, and the threshold.
        """
        known = self._known.get(str(alpha))
        if known is None:
            need = floor(exact_level(alpha) * (self.total + self.unit)) + 1
            known = self._known[str(alpha)] = need, self._threshold(alpha, Fraction(1))
        return known


@dataclass(frozen=True, eq=False)
class CalibrationScores:
    """Calibration scores with all that decides how much each of them weighs.

    `weights` are 1 over the probability with which the row's task was selected (METHODS 3.7). `sizes` are how many rows
    of the same task are here: each weighs 1/size (METHODS 6.2, 10.2). None: all alike.
    """

    scores: Floats  # (m,), or (m, 2) for pairs
    weights: Floats | None = None  # (m,)
    test_weight: float = 1.0
    sizes: npt.NDArray[np.int64] | None = None  # (m,)

    @classmethod
    def of(
        cls,
        scores: npt.ArrayLike,
        *,
        weights: npt.ArrayLike | None = None,
        test_weight: float = 1.0,
        sizes: npt.ArrayLike | None = None,
        pair: bool = False,
    ) -> CalibrationScores:
        """Check and join the columns."""
        given = checked_scores(scores)
        each = None if sizes is None else np.asarray(sizes, dtype=np.int64)
        if each is not None and np.all(each == 1):
            each = None
        own = None if weights is None else np.asarray(weights, dtype=np.float64)
        return cls(given.reshape(-1, 2) if pair else given, own, test_weight, each)

    def column(self, number: int) -> CalibrationScores:
        """Return one score of each pair."""
        return CalibrationScores(self.scores[:, number], self.weights, self.test_weight, self.sizes)

    def take(self, inside: Bools) -> CalibrationScores:
        """Return some of the rows; what a task has left weighs as much as before."""
        weights = None if self.weights is None else self.weights[inside]
        if self.sizes is not None:
            ones = np.ones(int(inside.sum())) if weights is None else weights
            weights = ones / self.sizes[inside]
        return CalibrationScores(self.scores[inside], weights, self.test_weight)

    def table(self) -> ScoreTable:
        """Make the table of single scores."""
        if self.weights is not None:
            shares = self.weights if self.sizes is None else self.weights / self.sizes
            return ScoreTable.weighted(self.scores, shares, test_weight=self.test_weight)
        return ScoreTable.of(self.scores) if self.sizes is None else ScoreTable.hierarchical(self.scores, self.sizes)


@dataclass(frozen=True, eq=False)
class StackedTable:
    """Many calibration sets of one size, each answering for one score: the batch form of `ScoreTable.of`.

    calibration (..., n); every method takes and gives arrays of shape (...).

    >>> stack = StackedTable([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    >>> stack.contains([3.0, 4.0], "0.25").tolist(), stack.threshold("0.25").tolist()
    ([True, False], [3.0, 3.0])
    """

    calibration: Floats

    def __init__(self, calibration: npt.ArrayLike) -> None:
        object.__setattr__(self, "calibration", np.atleast_1d(checked_scores(calibration, "calibration")))

    @property
    def n(self) -> int:
        """Number of scores in each set."""
        return int(self.calibration.shape[-1])

    def threshold(self, alpha: Level) -> Floats:
        """Return the threshold of each set."""
        return threshold(self.calibration, alpha)

    def contains(self, scores: npt.ArrayLike, alpha: Level, *, u: npt.ArrayLike | None = None) -> Bools:
        """Decide `p > alpha`, with `u` for the smoothed p-value, exactly."""
        given = checked_scores(scores)[..., None]
        mass = exact_level(alpha) * (self.n + 1)
        at_least = (self.calibration >= given).sum(axis=-1, dtype=np.int64)
        if u is None:
            return np.asarray(1 + at_least >= floor(mass) + 1, dtype=np.bool_)
        greater = (self.calibration > given).sum(axis=-1, dtype=np.int64)
        return _exceeds(greater, 1 + at_least - greater, u, mass)

    def share_at_most(self, scores: npt.ArrayLike) -> Floats:
        """Return the empirical distribution function of each set at its score."""
        given = np.asarray(scores, dtype=np.float64)[..., None]
        return np.asarray((self.calibration <= given).mean(axis=-1)) if self.n else np.zeros(given.shape[:-1])


def checked_u(u: npt.ArrayLike) -> Floats:
    """Return boundary draws as float64; raises `InvalidArgument` outside [0, 1)."""
    draws = np.asarray(u, dtype=np.float64)
    if not np.all((draws >= 0) & (draws < 1)):
        raise InvalidArgument("expected u in [0, 1), got a value outside")
    return draws


def _exceeds(greater: Integers, equal: Integers, u: npt.ArrayLike, mass: Fraction) -> Bools:
    """Decide `greater + u * equal > mass`: in floats, and in fractions where rounding could matter."""
    draws = checked_u(u)
    difference = np.asarray(greater + draws * equal - float(mass), dtype=np.float64)
    result = np.asarray(difference > 0)
    doubtful = np.abs(difference) <= 1e-9 * max(float(mass), 1.0)
    if np.any(doubtful):
        shape = result.shape
        flat = result.ravel().copy()
        wide = [np.broadcast_to(part, shape).ravel() for part in (greater, equal, draws)]
        for i in np.flatnonzero(doubtful.ravel()):
            flat[i] = int(wide[0][i]) + Fraction(float(wide[2][i])) * int(wide[1][i]) > mass
        result = flat.reshape(shape)
    return result


def effective_sample_size(weights: npt.ArrayLike) -> float:
    """Return `(sum w)^2 / sum w^2`: how many equally weighted rows the weights are worth (METHODS 3.7).

    >>> effective_sample_size([1.0, 1.0, 1.0, 1.0])
    4.0
    """
    given = np.asarray(weights, dtype=np.float64)
    if given.size == 0:
        return 0.0
    if not np.all(np.isfinite(given) & (given > 0)):
        raise InvalidArgument("expected finite weights above 0, got others")
    scaled = given / given.max()  # no overflow, and the result does not depend on scale
    return float(scaled.sum() ** 2 / (scaled**2).sum())
