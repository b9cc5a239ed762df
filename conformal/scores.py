"""Full-sequence nonconformity scores and boundary rules (METHODS 4.1, 4.6, 2.4).

A score is a plain function of arrays that describe labelings of a text: the log-probability of each, its rank
among all labelings and the cumulative probability up to it. The same functions score calibration rows (one
true labeling per task) and ranked lists (all labelings of one task), so that both always agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument, InvalidScores
from conformal.quantile import Bools, Floats, Level, ScoreTable, StackedTable, checked_scores, checked_u, exact_level

# How far ranks are searched for scores that need one, when nothing else is said.
DEFAULT_LIMIT = 1000


class Boundary(Enum):
    """What happens where the score crosses the threshold (METHODS 4.6).

    INCLUDE and SMOOTHED are exact; the others exist for the ablation only. EARLY keeps `score < threshold`,
    FULL adds the labeling one past the threshold, PAPER adds it with the paper's probability V.
    """

    INCLUDE = "include"
    SMOOTHED = "smoothed"
    EARLY = "early"
    FULL = "full"
    PAPER = "paper"


@dataclass(frozen=True, eq=False)
class Ranks:
    """Labelings as arrays of one shape: what every score is a function of.

    `log_probability` is -inf for a label the model cannot express; `rank` counts from 1 and is 0 where it was
    not found within the limit; `cumulative` is `P(y(1)) + ... + P(y(rank))`, anything where the rank is 0.
    `mass` is the summed probability of the K best labelings, needed by the top-K convention only.
    """

    log_probability: Floats
    rank: npt.NDArray[np.int64]
    cumulative: Floats
    mass: Floats | None = None

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


def nc1(ranks: Ranks) -> Floats:
    """Return `1 - P`, kept as `-log P`: the same sets, without `1 - 1e-17 == 1` (METHODS 4.1)."""
    return -ranks.log_probability


def nc2(ranks: Ranks) -> Floats:
    """Return the cumulative probability `P(y(1)) + ... + P(y(r))` (METHODS 4.1)."""
    return np.where(ranks.expressible, ranks.cumulative, np.inf)


def nc3(ranks: Ranks) -> Floats:
    """Return the rank r (METHODS 4.1)."""
    return np.where(ranks.expressible, ranks.rank.astype(np.float64), np.inf)


def boundary_step(name: str, ranks: Ranks) -> Floats | None:
    """Return what a smoothed score subtracts u times: P(y(r)) for nc2, 1 for nc3, None where p_U does it."""
    if name == "nc2":
        return np.asarray(np.exp(np.where(ranks.expressible, ranks.log_probability, -np.inf)), dtype=np.float64)
    if name == "nc3":
        return np.ones(ranks.rank.shape)
    return None


FULL_SCORES: dict[str, Callable[[Ranks], Floats]] = {"nc1": nc1, "nc2": nc2, "nc3": nc3}


@dataclass(frozen=True)
class Method:
    """Which score, which boundary rule, which convention; part of the thresholds it was calibrated with.

    `limit`: labelings of a higher rank have score `+inf`, in calibration and in prediction (METHODS 3.3);
    None (nc1 only) means that no rank is needed. `top_k` renormalises probabilities over the K best
    (METHODS 2.4) and limits ranks to K.

    >>> Method("nc2").limit, Method("nc1").limit, Method("nc1", top_k=100).limit
    (1000, None, 100)
    """

    name: str = "nc1"
    boundary: Boundary = Boundary.INCLUDE
    limit: int | None = None
    top_k: int | None = None

    def __post_init__(self) -> None:
        if self.name not in FULL_SCORES:
            raise InvalidArgument(f"expected a score among {sorted(FULL_SCORES)}, got {self.name!r}")
        try:
            object.__setattr__(self, "boundary", Boundary(self.boundary))
        except ValueError:
            known = [rule.value for rule in Boundary]
            raise InvalidArgument(f"expected a boundary rule among {known}, got {self.boundary!r}") from None
        for given, what in ((self.limit, "limit"), (self.top_k, "top_k")):
            if given is not None and given < 1:
                raise InvalidArgument(f"expected {what} of at least 1, got {given}")
        if self.top_k is not None:
            object.__setattr__(self, "limit", min(self.limit or self.top_k, self.top_k))
        elif self.limit is None and self.name != "nc1":
            object.__setattr__(self, "limit", DEFAULT_LIMIT)

    @property
    def needs_u(self) -> bool:
        """Whether sets depend on the task's boundary draw."""
        return self.boundary in (Boundary.SMOOTHED, Boundary.PAPER)

    @property
    def smooths_scores(self) -> bool:
        """Whether the draw enters the score itself (nc2, nc3), also in calibration, not the p-value."""
        return self.boundary is Boundary.SMOOTHED and self.name != "nc1"

    def scores(self, ranks: Ranks, *, u: npt.ArrayLike | None = None) -> Floats:
        """Score labelings; `u` (same shape) is needed when `smooths_scores`. NaN is refused."""
        described = self._conventional(ranks)
        values = FULL_SCORES[self.name](described)
        if self.smooths_scores:
            step = boundary_step(self.name, described)
            if u is None:
                raise InvalidArgument(f"expected u for smoothed {self.name}, got none; see boundary_u")
            if step is not None:
                values = values - checked_u(u) * step
        return checked_scores(values)

    def _conventional(self, ranks: Ranks) -> Ranks:
        """Apply the rank limit and, for the top-K convention, the renormalisation."""
        log_probability, cumulative = ranks.log_probability, ranks.cumulative
        if self.top_k is not None:
            if ranks.mass is None:
                raise InvalidScores(f"expected the mass of the {self.top_k} best labelings, got none")
            log_probability = log_probability - np.log(ranks.mass)
            cumulative = cumulative / ranks.mass
        if self.limit is None:
            return Ranks(log_probability, ranks.rank, cumulative)
        within = (ranks.rank >= 1) & (ranks.rank <= self.limit)
        return Ranks(np.where(within, log_probability, -np.inf), np.where(within, ranks.rank, 0), cumulative)

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
        target: Floats | float
        if self.name == "nc3":
            least, most = table.share_at_most(low), table.share_at_most(given)
            target = float(1 - exact_level(alpha))
        elif self.name == "nc1":  # on the probability scale, where the paper's formula lives
            least, most, target = -np.exp(-low), -np.exp(-given), -np.exp(-tau)
        else:
            least, most, target = low, given, tau
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (target - least) / (most - least)
        return np.where(most > least, share, 1.0)


def previous_scores(scores: npt.ArrayLike) -> Floats:
    """Return, for a ranked list's scores, that of the labeling one rank above: -inf first."""
    values = np.asarray(scores, dtype=np.float64)
    return np.concatenate([[-np.inf], values[:-1]]) if values.size else values.copy()


def hash_u(secret: str, *parts: str | int) -> float:
    """Return a uniform draw in [0, 1) fixed by its arguments: BLAKE2b of their lengths and texts, 53 bits.

    >>> hash_u("s", 7, 12, "boundary") == hash_u("s", 7, 12, "boundary") != hash_u("s", 71, 2, "boundary")
    True
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in (secret, *parts):
        text = str(part).encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return float((int.from_bytes(digest.digest(), "big") >> 11) / 2**53)


def boundary_u(secret: str, project: str | int, task: str | int) -> float:
    """Return a task's boundary draw: the same over all threshold versions (METHODS 4.6)."""
    return hash_u(secret, project, task, "boundary")
