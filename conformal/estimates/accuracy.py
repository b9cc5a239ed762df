"""Precision, recall and F1 of the best labelings over a collection, from few blind labels (METHODS 14.1).

Labels say how many of a task's spans are right; the model's own probabilities say how many it expects to be, for every
task. The labels are corrected by how far the expectations of the labelled tasks differ from those of all tasks
(prediction-powered inference). A model that is wrong about itself costs width, never honesty: what the correction is
worth is measured on the labels.

How many spans were predicted is known for every task, so it corrects too. The weights of both corrections minimise the
variance of the linearised ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidScores
from conformal.quantile import Floats

LEAST_LABELS = 200  # below it the intervals cover less than they say
NORMAL_95 = 1.959963984540054

Index = npt.NDArray[np.bool_] | npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Counts:
    """Spans of tasks in columns, each (n,): right ones, predicted ones, true ones.

    Of labelled tasks these are counts. Of any task they are expectations: `predicted` is known, `right` is the sum of
    the probabilities of the predicted spans and `true` that of all spans.

    Raises:
        InvalidScores: when a number is negative or not finite, or more spans are right than were predicted or are true.
    """

    right: Floats
    predicted: Floats
    true: Floats

    def __post_init__(self) -> None:
        for name in ("right", "predicted", "true"):
            given = np.asarray(getattr(self, name), dtype=np.float64)
            if given.ndim != 1 or not np.all(np.isfinite(given) & (given >= 0)):
                raise InvalidScores(f"expected finite numbers of at least 0 as {name} spans, got others")
            object.__setattr__(self, name, given)
        if not self.right.shape == self.predicted.shape == self.true.shape:
            raise InvalidScores("expected right, predicted and true spans of each task, got columns of unequal length")
        # Probabilities are summed in another order than they were made: leave room for rounding.
        if np.any(self.right > np.minimum(self.predicted, self.true) + 1e-6):
            raise InvalidScores("expected no more right spans than predicted and true ones, got a task with more")

    def __len__(self) -> int:
        return int(self.right.size)

    def take(self, index: Index) -> Counts:
        """Return the tasks at `index`: whole numbers, or a mark for each."""
        return Counts(self.right[index], self.predicted[index], self.true[index])

    @property
    def errors(self) -> Floats:
        """Missing and false spans of each task (n,)."""
        return np.asarray(self.predicted + self.true - 2 * self.right)


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Rates:
    """Precision, recall and F1, each None where its denominator is 0; `labels` tasks were labelled."""

    precision: Estimate | None
    recall: Estimate | None
    f1: Estimate | None
    labels: int


# Numerator and denominator of each rate as weights of (right, predicted, true).
_PRECISION = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
_RECALL = ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0))
_F1 = ((2.0, 0.0, 0.0), (0.0, 1.0, 1.0))


def estimate_rates(
    labelled: Counts,
    expected: Counts,
    *,
    collection: Counts,
    chance: npt.ArrayLike | None = None,
    tasks: int | None = None,
) -> Rates:
    """Return precision, recall and F1 of the best labelings over the collection.

    labelled, expected (n,): what labels found in blind tasks, and what the model expected there. collection (M,): what
    it expects of all tasks, or of a random sample of `tasks` of them. chance (n,): the chance that a labelled task had
    to be drawn, up to a factor; all alike without it. The intervals are asymptotic: show them from `LEAST_LABELS` on.

    Raises:
        InvalidScores: when columns do not fit each other or a chance is not positive.

    >>> found = Counts([1, 1, 0, 2], [1, 1, 1, 2], [1, 2, 0, 2])
    >>> guess = Counts([0.9, 0.8, 0.4, 1.7], [1, 1, 1, 2], [1.1, 1.6, 0.5, 2.0])
    >>> estimate = estimate_rates(found, guess, collection=guess).precision
    >>> round(estimate.value, 3), estimate.low <= estimate.value <= estimate.high
    (0.8, True)
    """
    weight = _weights(labelled, expected, chance)
    of = _share_unseen(collection, tasks)
    rates = [_ratio(rate, labelled, expected, collection, weight, of) for rate in (_PRECISION, _RECALL, _F1)]
    return Rates(rates[0], rates[1], rates[2], len(labelled))


def plain_rates(labelled: Counts, chance: npt.ArrayLike | None = None) -> Rates:
    """Return the same from labels alone: what the intervals of `estimate_rates` are measured against."""
    none = Counts(np.zeros(len(labelled)), np.zeros(len(labelled)), np.zeros(len(labelled)))
    weight = _weights(labelled, none, chance)
    rates = [_ratio(rate, labelled, none, none, weight, 0.0) for rate in (_PRECISION, _RECALL, _F1)]
    return Rates(rates[0], rates[1], rates[2], len(labelled))


def estimate_errors(
    labelled: Counts,
    expected: Counts,
    *,
    collection: Counts,
    chance: npt.ArrayLike | None = None,
    tasks: int | None = None,
) -> Estimate | None:
    """Return how many missing and false spans a task has on average; see `estimate_rates`. None without any label.

    `collection` may be a part of all tasks that no label speaks of (those nobody opened) if that part is one by chance.
    """
    if not len(labelled) or not len(collection):
        return None
    weight = _weights(labelled, expected, chance)
    value = labelled.errors
    controls = np.stack([expected.errors, expected.predicted], axis=1)
    beta = _coefficients(value, controls, weight)
    means = np.stack([collection.errors, collection.predicted], axis=1)
    centre = _mean(weight, value) + float((means.mean(axis=0) - _means(weight, controls)) @ beta)
    spread = _spread(value - controls @ beta, weight, lost=2) + _of_sample(
        means @ beta, _share_unseen(collection, tasks)
    )
    half = NORMAL_95 * float(np.sqrt(spread))
    return Estimate(max(0.0, centre), max(0.0, centre - half), max(0.0, centre + half))


def _ratio(
    rate: tuple[tuple[float, float, float], tuple[float, float, float]],
    labelled: Counts,
    expected: Counts,
    collection: Counts,
    weight: Floats,
    unseen: float,
) -> Estimate | None:
    """Return one ratio of means, corrected so that the variance of its linearised residual is least."""
    above, below = np.array(rate[0]), np.array(rate[1])
    found, guess, every = _matrix(labelled), _matrix(expected), _matrix(collection)  # (n, 3), (n, 3), (M, 3)
    if not len(labelled) or not _mean(weight, found @ below) > 0:
        return None
    gap = every.mean(axis=0) - _means(weight, guess) if len(every) else np.zeros(3)
    value = _mean(weight, found @ above) / _mean(weight, found @ below)
    for _ in range(2):  # the weights depend on the ratio, the ratio hardly on the weights
        line = above - value * below
        controls = np.stack([guess @ line, guess[:, 1]], axis=1)
        beta = _coefficients(found @ line, controls, weight)
        bottom = _mean(weight, found @ below) + float(beta[0] * (gap @ below))
        if not bottom > 0:
            return None
        top = _mean(weight, found @ above) + float(beta[0] * (gap @ above)) + float(beta[1] * gap[1])
        value = top / bottom
    line = above - value * below
    rest = found @ line - beta[0] * (guess @ line) - beta[1] * guess[:, 1]
    spread = _spread(rest, weight, lost=2)
    if len(every):
        spread += _of_sample(beta[0] * (every @ line) + beta[1] * every[:, 1], unseen)
    half = NORMAL_95 * float(np.sqrt(spread)) / bottom
    inside = min(1.0, max(0.0, value))
    return Estimate(inside, min(1.0, max(0.0, value - half)), max(0.0, min(1.0, value + half)))


def _matrix(counts: Counts) -> Floats:
    return np.stack([counts.right, counts.predicted, counts.true], axis=1)


def _weights(labelled: Counts, expected: Counts, chance: npt.ArrayLike | None) -> Floats:
    if len(labelled) != len(expected):
        raise InvalidScores(f"expected an expectation for each of {len(labelled)} labels, got {len(expected)}")
    given = np.ones(len(labelled)) if chance is None else np.asarray(chance, dtype=np.float64)
    if given.shape != (len(labelled),) or not np.all(np.isfinite(given) & (given > 0)):
        raise InvalidScores(f"expected a positive chance for each of {len(labelled)} labels, got others")
    return np.asarray(1.0 / given)


def _mean(weight: Floats, values: Floats) -> float:
    return float(np.average(values, weights=weight))


def _means(weight: Floats, values: Floats) -> Floats:
    return np.asarray(np.average(values, axis=0, weights=weight))


def _coefficients(value: Floats, controls: Floats, weight: Floats) -> Floats:
    """Return the weights of the controls (n, C) that leave the least variance, 0 for what does not vary."""
    # The variance of a weighted mean has the square of the weights.
    square = weight**2
    away = controls - np.average(controls, axis=0, weights=weight)
    left = (away * square[:, None]).T @ away
    right = (away * square[:, None]).T @ (value - np.average(value, weights=weight))
    return np.asarray(np.linalg.lstsq(left, right, rcond=1e-9)[0])


def _spread(rest: Floats, weight: Floats, *, lost: int) -> float:
    """Return the variance of a weighted mean; `lost` numbers were fitted to the same labels."""
    away = rest - np.average(rest, weights=weight)
    free = max(1, rest.size - 1 - lost)
    return float(np.sum((weight * away) ** 2) / np.sum(weight) ** 2 * rest.size / free)


def _share_unseen(collection: Counts, tasks: int | None) -> float:
    if tasks is None:
        return 0.0
    if tasks < len(collection):
        raise InvalidScores(f"expected a sample of at most {tasks} tasks, got {len(collection)}")
    return 1.0 - len(collection) / tasks if tasks else 0.0


def _of_sample(values: Floats, unseen: float) -> float:
    """Return what the mean of a sample adds: nothing once all tasks were read."""
    return float(np.var(values) / max(1, values.size) * unseen)
