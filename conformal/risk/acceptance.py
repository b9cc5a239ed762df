"""Acceptance: up to which doubt the best labeling may be taken without a look, and with what promise (METHODS 12).

Tasks with `doubt <= level` are accepted. The level is chosen on labels that people made without seeing a prediction,
by a sequence of tests that is fixed before any of those labels is seen: quantiles of the doubt over all tasks, from the
smallest upwards, until one fails. Each decision has its share of the error that all of them together may make.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument
from conformal.monitor.beta import beta_quantile, bisect
from conformal.monitor.coverage import confidence_sequence
from conformal.quantile import Bools, Floats, Level, exact_level

DELTA = 0.05
FIRST_COUNT = 125
_ROOM = 1.2  # promise B starts where a few more labels are expected below the level than a perfect model needs
_BETS = np.linspace(0.05, 0.95, 19)  # shares of what may be staked


class Promise(StrEnum):
    """Of what at most the share eps is accepted and wrong."""

    ALL = "all"  # of all tasks of the collection
    ACCEPTED = "accepted"  # of the collection's tasks whose doubt is at most the level


LEVELS = {Promise.ALL: 1_000, Promise.ACCEPTED: 100}


def checked_share(value: Level) -> float:
    """Return a share of errors as a number above 0 and below 1.

    Raises:
        InvalidArgument: when it is none.

    >>> checked_share("0.02")
    0.02
    """
    try:
        return float(exact_level(value))
    except InvalidArgument:
        raise InvalidArgument(f"expected a share of errors between 0 and 1, for example 0.02, got {value!r}") from None


def spend(decision: int, *, delta: float = DELTA) -> float:
    """Return the chance of error that the j-th decision has: `delta / (j (j + 1))`, together at most delta.

    >>> spend(1), round(spend(2), 6)
    (0.025, 0.008333)
    """
    if decision < 1:
        raise InvalidArgument(f"expected the number of a decision, at least 1, got {decision}")
    return delta / (decision * (decision + 1))


def labels_needed(max_error: float, *, delta: float, promise: Promise = Promise.ALL) -> int:
    """Return the least number of labels with which anything can be accepted: all of them right, and it suffices.

    >>> [labels_needed(share, delta=0.025) for share in (0.05, 0.02, 0.01)]
    [72, 183, 368]
    """
    room = _ROOM if promise is Promise.ACCEPTED else 1.0
    return math.ceil(room * math.log(delta) / math.log1p(-max_error))


def next_count(after: int, *, needed: int) -> int:
    """Return the next number of labels at which a decision is made: 125, 250, 500, ..., the first that can suffice.

    >>> next_count(0, needed=72), next_count(0, needed=183), next_count(310, needed=183)
    (125, 250, 500)
    """
    count = FIRST_COUNT
    while count <= after or count < needed:
        count *= 2
    return count


def count_due(labels: int, *, after: int, needed: int) -> int | None:
    """Return the number of labels that a decision is to use now, None while the next one is not reached.

    It is one of 125, 250, 500, ... and not how many there are: when somebody happens to ask changes nothing.

    >>> count_due(310, after=0, needed=72), count_due(310, after=250, needed=72)
    (250, None)
    """
    count = next_count(after, needed=needed)
    if labels < count:
        return None
    while labels >= 2 * count:
        count *= 2
    return count


def equal_chance(uniforms: npt.ArrayLike, passed_over: npt.ArrayLike) -> Bools:
    """Return which rows are kept so that every task had the same chance to be one.

    A task is drawn where its own uniform number lies below the share in force at that moment. `uniforms` are those of
    the rows, `passed_over` those of tasks that were not drawn: every task below the least of these was drawn, whatever
    the share was, so the rows below it are a sample of equal chance. It depends on no label (METHODS 12.2).

    >>> equal_chance([0.01, 0.08, 0.15], [0.1, 0.6]).tolist()
    [True, True, False]
    """
    rows, others = np.asarray(uniforms, dtype=np.float64), np.asarray(passed_over, dtype=np.float64)
    return rows < (others.min() if others.size else 1.0)


@dataclass(frozen=True)
class Grid:
    """The levels to test, rising, and the share of all tasks whose doubt is at most each."""

    levels: Floats
    shares: Floats


def level_grid(doubts: npt.ArrayLike, *, levels: int) -> Grid:
    """Return quantiles of the doubt over all tasks, labelled or not: fixed before any label is looked at.

    >>> grid = level_grid([0.4, 0.1, 0.2, 0.3], levels=2)
    >>> grid.levels.tolist(), grid.shares.tolist()
    ([0.2, 0.4], [0.5, 1.0])
    """
    ordered = np.sort(_finite(doubts, "doubts"))
    if not ordered.size:
        return Grid(ordered, ordered)
    # The i-th level is the smallest doubt that at least the share i/levels of the tasks does not exceed.
    places = np.ceil(np.arange(1, levels + 1) * ordered.size / levels).astype(np.int64) - 1
    values = np.unique(ordered[np.maximum(places, 0)])
    return Grid(values, np.searchsorted(ordered, values, side="right") / ordered.size)


@dataclass(frozen=True)
class Choice:
    """What a decision came to. `level` is None where nothing may be accepted; `why` then says what it failed at.

    `below` of the `labels` have a doubt up to the level, and these lost `lost`, with what earlier decisions lost; the
    true share is at most `bound` with probability 1 - delta. `share` of all tasks have a doubt up to the level.
    """

    level: float | None
    share: float
    labels: int
    below: int
    lost: float
    bound: float
    needed: int
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return vars(self).copy()


def choose_level(
    doubts: npt.ArrayLike,
    losses: npt.ArrayLike,
    *,
    grid: Grid,
    max_error: float,
    delta: float,
    promise: Promise = Promise.ALL,
    earlier: npt.ArrayLike | None = None,
    shares: bool = False,
) -> Choice:
    """Return the greatest level that the labels allow, tested from the smallest upwards until one fails.

    Promise A: with probability at least 1 - delta over the labels, the expected loss of "accept up to the level", with
    what earlier decisions lost, is at most `max_error` of all tasks. Promise B: of the tasks up to the level. Assumes
    that the labelled tasks are drawn from all tasks with equal chance, and that grid, `max_error`, promise and delta
    were fixed before their labels were seen.

    Args:
        doubts: (n,) the model's probability that its best labeling is wrong, of each labelled task.
        losses: (n,) 1 where it is wrong and 0 where it is right, or for documents the share that is wrong.
        earlier: (n,) what earlier decisions, would they have accepted the task, have lost on it (promise A).
        shares: losses may lie between 0 and 1, said before they are seen: the exact bound is for 0 and 1 only.

    Raises:
        InvalidArgument: when the arrays differ in length, or a loss is not in [0, 1], or neither 0 nor 1 without
            `shares`.

    >>> doubts, losses = np.linspace(0, 1, 400), np.linspace(0, 1, 400) > 0.9
    >>> grid = level_grid(doubts, levels=10)
    >>> round(choose_level(doubts, losses, grid=grid, max_error=0.05, delta=0.025).share, 2)
    0.9
    """
    found, lost = _finite(doubts, "doubts"), _shares(losses, "losses")
    before = np.zeros(found.size) if earlier is None else _shares(earlier, "earlier losses")
    if not found.size == lost.size == before.size:
        raise InvalidArgument(f"expected as many losses as doubts, got {lost.size} and {before.size} for {found.size}")
    if not shares and not all(np.all((each == 0.0) | (each == 1.0)) for each in (lost, before)):
        raise InvalidArgument("expected losses of 0 or 1, got one between: say `shares` where tasks are documents")
    if promise is Promise.ACCEPTED:
        before = np.zeros(found.size)
    n = found.size
    needed = labels_needed(max_error, delta=delta, promise=promise)
    nothing = Choice(None, 0.0, n, 0, float(before.sum()), 1.0, needed)
    if n < needed:
        return _because(nothing, f"needs {needed:,} labels, has {n:,}")
    if not grid.levels.size:
        return _because(nothing, "no task of the collection has been predicted")
    order = np.argsort(found, kind="stable")
    below = np.searchsorted(found[order], grid.levels, side="right")  # (levels,) labels up to each
    more = np.concatenate([[0.0], np.cumsum(np.maximum(lost[order] - before[order], 0.0))])
    sums = before.sum() + more[below]  # (levels,)
    totals = np.full(below.size, n) if promise is Promise.ALL else below
    start = 0
    if promise is Promise.ACCEPTED:
        # From the smallest level on nothing would ever be accepted: too few labels lie below it.
        start = int(np.searchsorted(grid.shares * n, _ROOM * math.log(delta) / math.log1p(-max_error)))
    passed = within_bound(sums[start:], totals[start:], max_error=max_error, delta=delta, binary=not shares)
    count = int(passed.size if passed.all() else np.argmin(passed))
    if not count:
        return _because(nothing, "too many of the labels are wrong where the model is surest")
    last = start + count - 1
    bound = upper_bound(float(sums[last]), int(totals[last]), delta=delta, binary=not shares)
    level, share = float(grid.levels[last]), float(grid.shares[last])
    return Choice(level, share, n, int(below[last]), float(sums[last]), bound, needed)


def upper_bound(lost: float, total: int, *, delta: float, binary: bool = True) -> float:
    """Return a bound on the expected loss that holds with probability 1 - delta, from a sum of losses over tasks.

    Clopper and Pearson's where every loss is 0 or 1, else Hoeffding's and Bentkus's. Holds at one time fixed before.

    >>> round(upper_bound(0, 72, delta=0.025), 4), round(upper_bound(0.0, 72, delta=0.025, binary=False), 4)
    (0.0499, 0.0499)
    """
    if total <= 0:
        return 1.0
    if binary:
        wrong = round(lost)
        return 1.0 if wrong >= total else beta_quantile(1.0 - delta, wrong + 1, total - wrong)

    def refuted(mean: float) -> bool:
        return bool(_refuted(np.array([lost]), np.array([total]), max_error=mean, delta=delta)[0])

    return bisect(refuted, lost / total, 1.0) if lost < total else 1.0


def lower_sequence(losses: npt.ArrayLike, *, error: float = DELTA) -> float:
    """Return a bound that lies below the expected loss at all times at once with probability at least 1 - error.

    For losses of 0 and 1 the confidence sequence of `monitor.coverage`. For shares a mixture of bets: were the mean m,
    `mean over c of prod (1 + c/m (x_i - m))` would be a martingale of mean 1, so it reaches 1/error with probability
    error at most (Ville); every m at which it has is refuted, with all that are smaller.

    >>> lower_sequence(np.zeros(100)), round(lower_sequence(np.tile([0.0, 1.0], 50)), 2)
    (0.0, 0.34)
    """
    values = _shares(losses, "losses")
    if not values.size or not values.any():
        return 0.0
    if np.all((values == 0.0) | (values == 1.0)):
        return confidence_sequence(int(values.sum()), values.size, error=error)[0]

    def possible(mean: float) -> bool:
        stakes = _BETS[:, None] / mean * (values - mean)  # (bets, n)
        logs = np.log1p(stakes).sum(axis=1)
        return bool(np.logaddexp.reduce(logs) - math.log(_BETS.size) < -math.log(error))

    centre = float(values.mean())
    return bisect(possible, 1e-12, centre) if possible(centre) else centre


def _because(choice: Choice, why: str) -> Choice:
    return Choice(**(choice.as_dict() | {"why": why}))


def within_bound(sums: Floats, totals: npt.NDArray[Any], *, max_error: float, delta: float, binary: bool) -> Bools:
    """Return where `upper_bound` of a sum of losses over so many tasks is at most `max_error`.

    >>> within_bound(np.array([0.0, 1.0]), np.array([72, 72]), max_error=0.05, delta=0.025, binary=True).tolist()
    [True, False]
    """
    if binary:
        different, which = np.unique(totals, return_inverse=True)
        most = np.array([most_wrong(int(total), max_error=max_error, delta=delta) for total in different])
        found: Bools = np.rint(sums) <= most[which]
        return found
    return _refuted(sums, totals, max_error=max_error, delta=delta)


@lru_cache(maxsize=65_536)
def most_wrong(total: int, *, max_error: float, delta: float) -> int:
    """Return how many of `total` may be wrong for the Clopper-Pearson bound to be at most `max_error`; -1: none.

    The bound is at most eps exactly where `P(Binomial(total, eps) <= wrong) <= delta`.

    >>> most_wrong(71, max_error=0.05, delta=0.025), most_wrong(72, max_error=0.05, delta=0.025)
    (-1, 0)
    """
    below = binomial_cdf(total, max_error)
    return int(np.searchsorted(below, delta, side="right")) - 1


@lru_cache(maxsize=256)
def binomial_cdf(total: int, chance: float) -> Floats:
    """Return P(Binomial(total, chance) <= k) for k = 0 .. total."""
    k = np.arange(total, dtype=np.float64)
    steps = np.log((total - k) / (k + 1)) + (math.log(chance) - math.log1p(-chance))
    logs = total * math.log1p(-chance) + np.concatenate([[0.0], np.cumsum(steps)])
    found: Floats = np.minimum(np.cumsum(np.exp(logs)), 1.0)
    return found


def _refuted(sums: Floats, totals: npt.NDArray[Any], *, max_error: float, delta: float) -> Bools:
    """Return where "the mean is at least `max_error`" is refuted at delta (Hoeffding and Bentkus)."""
    means = np.divide(sums, totals, out=np.ones(sums.size), where=totals > 0)
    low = np.minimum(means, max_error)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = np.where(low > 0, low * np.log(low / max_error), 0.0)
        entropy += (1 - low) * np.log((1 - low) / (1 - max_error))
    hoeffding = np.exp(-totals * entropy)
    # A sum of shares that rounding has lifted above a whole number is that number.
    whole = np.ceil(sums - 1e-9).astype(np.int64)
    bentkus = np.array(
        [
            math.e * binomial_cdf(int(total), max_error)[min(int(k), int(total))]
            for k, total in zip(whole, totals, strict=True)
        ]
    )
    found: Bools = (np.minimum(hoeffding, bentkus) <= delta) & (means < max_error)
    return found


def _finite(values: npt.ArrayLike, name: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not np.all(np.isfinite(array)):
        raise InvalidArgument(f"expected {name} as one finite number a task, got something else")
    return array


def _shares(values: npt.ArrayLike, name: str) -> Floats:
    array = _finite(values, name)
    if array.size and (array.min() < 0 or array.max() > 1):
        raise InvalidArgument(f"expected {name} between 0 and 1, got {array.min():g} to {array.max():g}")
    return array
