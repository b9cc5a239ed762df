"""Labelings described by arrays: what every full-sequence score is a function of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidScores
from conformal.quantile import Bools, Floats

# How far ranks are searched for scores that need one, when nothing else is said.
DEFAULT_LIMIT = 1000


@dataclass(frozen=True, eq=False)
class Ranks:
    """Labelings as arrays of one shape: what every score is a function of.

    `log_probability` is -inf for a label the model cannot express; `rank` counts from 1 and is 0 where it was
    not found within the limit; `cumulative` is `P(y(1)) + ... + P(y(rank))`, anything where the rank is 0.
    `mass` is the summed probability of the K best labelings, needed by the top-K convention only. `worst` is T of
    METHODS 7.3, the strangest part of the labeling, needed by the calibrated integrated sets only.
    """

    log_probability: Floats
    rank: npt.NDArray[np.int64]
    cumulative: Floats
    mass: Floats | None = None
    worst: Floats | None = None

    @classmethod
    def of_list(cls, log_probabilities: npt.ArrayLike) -> Ranks:
        """Describe a ranked list y(1), y(2), ... by its log-probabilities, best first."""
        values = np.asarray(log_probabilities, dtype=np.float64)
        if values.ndim != 1 or np.isnan(values).any() or np.any(np.diff(values) > 0):
            raise InvalidScores("expected the log-probabilities of a ranked list, best first, got others")
        return cls(values, np.arange(1, values.size + 1, dtype=np.int64), cumulate(values))

    @property
    def expressible(self) -> Bools:
        """Whether the labeling has a rank and a positive probability."""
        return np.asarray((self.rank > 0) & (self.log_probability > -np.inf))


def cumulate(log_probabilities: npt.ArrayLike) -> Floats:
    """Return `P(y(1)) + ... + P(y(r))` for each r; a longer list leaves earlier sums as they are."""
    return np.cumsum(np.exp(np.asarray(log_probabilities, dtype=np.float64)))
