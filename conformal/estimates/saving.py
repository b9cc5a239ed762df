"""What a prelabel does to the time that a task takes: a randomised trial inside every project (METHODS 14.2).

Blind tasks are drawn by lot, so within an annotator and a model version the blind and the assisted tasks differ in
nothing but the prelabel. The ratio of times is compared on the log scale. Its interval inverts the permutation test:
it holds every effect that the lot cannot tell from the true one, however the times are distributed, if the effect
multiplies them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument, InvalidScores
from conformal.estimates.accuracy import Index
from conformal.quantile import Floats

IDLE_CAP = 600.0  # seconds; somebody who left the task open counts as this, fixed before any time is seen
LEAST_TIME = 0.5  # seconds; nobody submits faster, and a logarithm needs something
SHUFFLES = 1_999
_AT_ONCE = 2_000_000  # numbers drawn at a time


@dataclass(frozen=True, eq=False)
class Trial:
    """First submissions in columns, each (n,): seconds, whether the task was blind, its block, entities submitted.

    A block is what tasks are compared within: one annotator under one model version.

    Raises:
        InvalidScores: when columns do not fit each other, or a time is negative or not finite.
    """

    seconds: Floats
    blind: npt.NDArray[np.bool_]
    block: npt.NDArray[np.int64]
    entities: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        for name, kind in (("seconds", np.float64), ("blind", np.bool_), ("block", np.int64), ("entities", np.int64)):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=kind))
        if self.seconds.ndim != 1 or not np.all(np.isfinite(self.seconds) & (self.seconds >= 0)):
            raise InvalidScores("expected finite seconds of at least 0, got others")
        if not self.seconds.shape == self.blind.shape == self.block.shape == self.entities.shape:
            raise InvalidScores("expected seconds, arm, block and entities of each task, got columns of unequal length")

    def __len__(self) -> int:
        return int(self.seconds.size)

    def take(self, index: Index) -> Trial:
        """Return the tasks at `index`."""
        return Trial(self.seconds[index], self.blind[index], self.block[index], self.entities[index])


@dataclass(frozen=True)
class Saving:
    """How long tasks take with a prelabel, as a share of the time without: `ratio` 0.8 saves 20 %.

    low, high: its 95 % interval. Means are of capped seconds; those an entity are None without any entity.
    """

    blind: int
    assisted: int
    ratio: float
    low: float
    high: float
    blind_seconds: float
    assisted_seconds: float
    blind_seconds_an_entity: float | None
    assisted_seconds_an_entity: float | None

    @property
    def significant(self) -> bool:
        """Whether the lot alone would rarely make such a difference."""
        return not self.low <= 1.0 <= self.high

    @property
    def verdict(self) -> str:
        """`saves`, `slower` or `not significant`."""
        if not self.significant:
            return "not significant"
        return "saves" if self.high < 1.0 else "slower"


def estimate_saving(
    trial: Trial, *, rng: np.random.Generator, cap: float = IDLE_CAP, shuffles: int = SHUFFLES
) -> Saving | None:
    """Return the effect of a prelabel on the time of a task; None while no block has tasks of both kinds.

    The difference of mean log times within each block, blocks weighted by what they tell. Times above `cap` seconds
    count as `cap`.

    Raises:
        InvalidArgument: when `cap` or `shuffles` is too small to say anything.

    >>> blind = np.arange(60) % 3 == 0
    >>> seconds = np.where(blind, 30.0, 24.0) * np.exp(np.random.default_rng(1).normal(0, 0.1, 60))
    >>> found = estimate_saving(Trial(seconds, blind, np.zeros(60), np.ones(60)), rng=np.random.default_rng(2))
    >>> round(found.ratio, 1), found.verdict
    (0.8, 'saves')
    """
    if not cap > LEAST_TIME:
        raise InvalidArgument(f"expected a cap above {LEAST_TIME} seconds, got {cap}")
    if shuffles < 39:
        raise InvalidArgument(f"expected at least 39 shuffles for a 95 % interval, got {shuffles}")
    used = trial.take(_mixed(trial))
    if not len(used):
        return None
    seconds = np.minimum(used.seconds, cap)
    logs = np.log(np.maximum(seconds, LEAST_TIME))
    order = np.argsort(used.block, kind="stable")
    edges = np.flatnonzero(np.diff(used.block[order])) + 1
    blocks = np.split(order, edges)
    weights = _block_weights(used, blocks)
    # d log time, assisted less blind: an additive effect on the log scale.
    observed = _difference(logs, ~used.blind, blocks, weights)
    moved = _inversion(logs, ~used.blind, blocks, weights, observed=observed, rng=rng, shuffles=shuffles)
    k = int(0.025 * (shuffles + 1))
    moved.sort()
    return Saving(
        blind=int(used.blind.sum()),
        assisted=int((~used.blind).sum()),
        ratio=float(np.exp(observed)),
        low=float(np.exp(moved[k - 1])),
        high=float(np.exp(moved[shuffles - k])),
        blind_seconds=float(seconds[used.blind].mean()),
        assisted_seconds=float(seconds[~used.blind].mean()),
        blind_seconds_an_entity=_each(seconds, used.entities, used.blind),
        assisted_seconds_an_entity=_each(seconds, used.entities, ~used.blind),
    )


def _mixed(trial: Trial) -> npt.NDArray[np.bool_]:
    """Return which tasks are in a block that has blind and assisted ones (n,)."""
    _, place = np.unique(trial.block, return_inverse=True)
    blind = np.bincount(place, trial.blind, minlength=1)
    assisted = np.bincount(place, ~trial.blind, minlength=1)
    return np.asarray(((blind > 0) & (assisted > 0))[place])


def _block_weights(trial: Trial, blocks: list[npt.NDArray[np.int64]]) -> Floats:
    """Return what each block tells: the inverse variance of its difference, up to a factor."""
    blind = np.array([trial.blind[block].sum() for block in blocks], dtype=np.float64)
    size = np.array([block.size for block in blocks], dtype=np.float64)
    told = blind * (size - blind) / size
    return np.asarray(told / told.sum())


def _difference(
    values: Floats, treated: npt.NDArray[np.bool_], blocks: list[npt.NDArray[np.int64]], weights: Floats
) -> float:
    parts = [
        weight * (values[block][treated[block]].mean() - values[block][~treated[block]].mean())
        for block, weight in zip(blocks, weights, strict=True)
    ]
    return float(np.sum(parts))


def _inversion(
    logs: Floats,
    treated: npt.NDArray[np.bool_],
    blocks: list[npt.NDArray[np.int64]],
    weights: Floats,
    *,
    observed: float,
    rng: np.random.Generator,
    shuffles: int,
) -> Floats:
    """Return for each shuffle the effect at which it ties with what was observed (shuffles,).

    Take effect d off the treated times: the observed difference is `observed - d` and a shuffle's `D - d c`, where D
    is its difference of the times and c that of the true arms (c <= 1). It is the greater one iff
    `d >= (observed - D) / (1 - c)`: so the order of these numbers is the permutation test at every d at once.
    """
    times, arms = np.zeros(shuffles), np.zeros(shuffles)
    for block, weight in zip(blocks, weights, strict=True):
        values, true = logs[block], treated[block].astype(np.float64)
        size, many = block.size, int(true.sum())
        factor = weight * size / (many * (size - many))  # difference of means = factor * (sum - many * mean)
        step = max(1, _AT_ONCE // size)
        for begin in range(0, shuffles, step):
            end = min(shuffles, begin + step)
            drawn = np.argpartition(rng.random((end - begin, size)), many - 1, axis=1)[:, :many]  # (K, many)
            times[begin:end] += factor * (values[drawn].sum(axis=1) - many * values.mean())
            arms[begin:end] += factor * (true[drawn].sum(axis=1) - many * true.mean())
    free = 1.0 - arms
    # A shuffle that is the true draw ties at every effect: half of them widen either side.
    same = free < 1e-12
    tied = np.where(np.cumsum(same) % 2 == 0, np.inf, -np.inf)
    return np.where(same, tied, (observed - times) / np.where(same, 1.0, free))


def _each(seconds: Floats, entities: npt.NDArray[np.int64], arm: npt.NDArray[np.bool_]) -> float | None:
    total = int(entities[arm].sum())
    return float(seconds[arm].sum() / total) if total else None
