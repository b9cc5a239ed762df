"""Full-sequence methods and boundary rules by name: the one interface to all of them (METHODS 4, 7.3, 2.4).

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
from conformal.joint import Reference, joint
from conformal.logrank import RANK_LIMIT, log_rank
from conformal.naive import PairTable
from conformal.names import METHODS, PAPER_SPANS, split_name
from conformal.quantile import Bools, Floats, Level, ScoreTable, StackedTable, checked_scores, checked_u, exact_level
from conformal.ranks import Ranks, cumulate, nc1, nc2, nc3
from conformal.raps import raps

__all__ = [
    "DEFAULT_LIMIT",
    "FULL_SCORES",
    "METHODS",
    "PART",
    "Boundary",
    "Method",
    "Ranks",
    "Tuned",
    "boundary_step",
    "boundary_u",
    "cumulate",
    "hash_u",
    "nc1",
    "nc2",
    "nc3",
    "previous_scores",
]

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


def boundary_step(name: str, ranks: Ranks) -> Floats | None:
    """Return what a smoothed score subtracts u times: P(y(r)) for nc2, 1 for nc3, None where p_U does it."""
    if name == "nc2" or name in ("raps+nc2", "conditional+nc2"):
        return np.asarray(np.exp(np.where(ranks.expressible, ranks.log_probability, -np.inf)), dtype=np.float64)
    if name == "nc3":
        return np.ones(ranks.rank.shape)
    return None


FULL_SCORES: dict[str, Callable[[Ranks], Floats]] = {"nc1": nc1, "nc2": nc2, "nc3": nc3}

_PLAIN = tuple(FULL_SCORES)
PART = "part "  # before the name of a class, which may be any text


@dataclass(frozen=True)
class Tuned:
    """What a method froze on the tuning part, disjoint from calibration (METHODS 4.4, 4.5, 4.7, 7.3).

    `lam` and `r0` belong to RAPS; `share` is the part of alpha that goes to the rank (naive, conditional_paper);
    `references` are distribution functions by name: "score" and "other" for joint scores, "part " and a class or "O"
    for the parts of a labeling. The rank cap of `conditional` is the method's `limit`.
    """

    lam: float = 0.0
    r0: int = 1
    share: str = "0.5"
    references: tuple[tuple[str, Reference], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "references", tuple(sorted(self.references, key=lambda item: item[0])))

    def reference(self, name: str) -> Reference:
        """Return a distribution function by name; one without any row says 1/2 of everything."""
        return dict(self.references).get(name, _NOTHING)

    def part(self, label: str) -> Reference:
        """Return G of a class or "O" (METHODS 7.3)."""
        return self.reference(PART + label)


_NOTHING = Reference(np.zeros(0))


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
            object.__setattr__(self, "limit", RANK_LIMIT if self.family == "logrank" else DEFAULT_LIMIT)

    def _check_boundary(self) -> None:
        if self.is_pair and self.boundary is not Boundary.INCLUDE:
            raise InvalidArgument(f"expected the boundary rule 'include' for {self.name}, got {self.boundary.value!r}")
        if self.name not in _PLAIN and self.boundary not in (Boundary.INCLUDE, Boundary.SMOOTHED):
            raise InvalidArgument(
                f"expected 'include' or 'smoothed' for {self.name}, got {self.boundary.value!r}: "
                "the other rules exist for nc1, nc2 and nc3"
            )
        if self.is_heuristic and self.boundary is not Boundary.INCLUDE:
            raise InvalidArgument(f"expected the boundary rule 'include' for {self.name}, got {self.boundary.value!r}")
        if (self.is_integrated or self.is_heuristic) and self.top_k is not None:
            raise InvalidArgument(f"expected no top_k for {self.name}: its sets are exact, got {self.top_k}")

    @property
    def family(self) -> str:
        """The name before "+": nc1, raps, naive, conditional, conditional_paper, joint, integrated and so on."""
        return self.name.split("+")[0]

    @property
    def base(self) -> str:
        """The probability score it builds on."""
        return self.name.split("+")[-1]

    @property
    def worth(self) -> str:
        """Return "exact", "approximate" or "heuristic": the last two have no finite-sample guarantee."""
        return METHODS[self.name]

    @property
    def is_pair(self) -> bool:
        """Whether a labeling has two scores with a threshold each: (..., 2) instead of (...)."""
        return self.family in ("naive", "conditional_paper")

    @property
    def is_integrated(self) -> bool:
        """Whether labelings are scored by their parts; such sets are not heads of the ranked list."""
        return self.family == "integrated"

    @property
    def is_heuristic(self) -> bool:
        """Whether it is one of the paper's integrated sets: made of span sets, without a score of its own."""
        return self.name in PAPER_SPANS

    @property
    def span_name(self) -> str:
        """The span method that goes with it."""
        return self.spans or PAPER_SPANS.get(self.name, "nc1")

    @property
    def goes_on(self) -> bool:
        """Whether labelings beyond the rank limit may belong too: by their probability."""
        return self.limit is None or (self.family == "logrank" and self.top_k is None)

    @property
    def needs_rank(self) -> bool:
        """Whether the score is a function of the rank too."""
        return self.name != "nc1" and not self.is_integrated and not self.is_heuristic

    @property
    def needs_tuning(self) -> bool:
        """Whether something must be frozen on a tuning part before calibration."""
        given = self.name in _PLAIN or self.is_heuristic or self.family == "logrank"
        return not given and self.tuned is None

    @property
    def needs_u(self) -> bool:
        """Whether sets depend on the task's boundary draw."""
        return self.boundary in (Boundary.SMOOTHED, Boundary.PAPER)

    @property
    def smooths_scores(self) -> bool:
        """Whether the draw enters the score itself (nc2, nc3), also in calibration, not the p-value."""
        return self.boundary is Boundary.SMOOTHED and self.name in ("nc2", "nc3", "raps+nc2", "conditional+nc2")

    def scores(self, ranks: Ranks, *, u: npt.ArrayLike | None = None) -> Floats:
        """Score labelings; `u` (same shape) is needed when `smooths_scores`. NaN is refused.

        Pair methods give (..., 2): the rank, then the probability score.
        """
        described = self._conventional(ranks)
        values = self._values(described)
        if self.smooths_scores:
            step = boundary_step(self.name, described)
            if u is None:
                raise InvalidArgument(f"expected u for smoothed {self.name}, got none; see boundary_u")
            if step is not None:
                values = values - checked_u(u) * step
        return checked_scores(values)

    def _values(self, ranks: Ranks) -> Floats:
        family = self.family
        if family in FULL_SCORES:
            return FULL_SCORES[family](ranks)
        if self.is_heuristic:  # for reports: sets are not cut by it
            return nc1(ranks)
        if family == "logrank":
            return log_rank(ranks.log_probability, ranks.rank, limit=self.limit or RANK_LIMIT)
        if self.tuned is None:
            raise InvalidArgument(f"expected {self.name} with its tuned values, got none; see conformal.tuning.tune")
        if family == "integrated":
            return self._integrated(ranks)
        own = np.where(ranks.expressible, FULL_SCORES[self.base](ranks), np.inf)
        if family == "raps":
            scale = -np.expm1(-own) if self.base == "nc1" else own  # 1 - P: the penalty is on that scale
            return np.where(ranks.expressible, raps(scale, ranks.rank, lam=self.tuned.lam, r0=self.tuned.r0), np.inf)
        if family == "conditional":  # the cap is the limit, applied already
            return own
        if family == "joint":
            references = (self.tuned.reference("score"), self.tuned.reference("other"))
            return joint(own, nc3(ranks), references=references, ties=nc1(ranks))
        return np.stack([nc3(ranks), own], axis=-1)

    def _integrated(self, ranks: Ranks) -> Floats:
        if ranks.worst is None or self.tuned is None:
            raise InvalidScores(f"expected the strangest part of each labeling for {self.name}, got none")
        worst = np.where(ranks.log_probability > -np.inf, ranks.worst, np.inf)
        if self.name == "integrated":
            return worst
        references = (self.tuned.reference("score"), self.tuned.reference("other"))
        return joint(nc1(ranks), worst, references=references, ties=nc1(ranks))

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
        self, scores: npt.ArrayLike, *, weights: npt.ArrayLike | None = None, test_weight: float = 1.0
    ) -> ScoreTable:
        """Make the calibration table of these scores: (m,), or (m, 2) for pair methods; weights as METHODS 3.7."""
        if not self.is_pair:
            if weights is None:
                return ScoreTable.of(scores)
            return ScoreTable.weighted(scores, weights, test_weight=test_weight)
        share = self.tuned.share if self.tuned is not None else Tuned().share
        pairs = np.asarray(scores, dtype=np.float64).reshape(-1, 2)
        conditional = self.family == "conditional_paper"
        return PairTable.of_pairs(pairs, share=share, conditional=conditional, weights=weights, test_weight=test_weight)

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
