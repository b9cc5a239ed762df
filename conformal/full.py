"""Full-sequence sets: which labelings of a text are in the conformal set (METHODS 3.2 to 3.6, 4).

Every score of these sets rises with the rank, so a set is a head y(1), ..., y(m) of the ranked labelings. Integrated
sets, which are not, are made by `conformal.integrated`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument, RankedListTooShort
from conformal.quantile import Floats, Level, ScoreTable
from conformal.scores import Boundary, Method, Ranks, cumulate, previous_scores
from conformal.trellis import KBest, Potentials, kbest

_MOST_LABELS = 8_000_000  # labelings times tokens of one list
_FIRST_STEP = 64
_GROWTH = 4


@dataclass(frozen=True, eq=False)
class Ranked:
    """The best labelings of a text, and what is known of the rest: none has a log-probability above `rest`.

    Kept with a served set, it answers later at another threshold, without a forward pass.
    """

    log_probabilities: Floats  # (K,) falling
    labels: npt.NDArray[np.int16]  # (K, N)
    rest: float  # -inf: no other labeling exists

    @classmethod
    def of(cls, best: KBest, *, above: float | None = None) -> Ranked:
        """Wrap a decoder's list; `above` is the limit it was given."""
        if not best.exhausted:
            rest = float(best.log_probabilities[-1])
        elif above is None or above == -np.inf:
            rest = -np.inf
        else:
            rest = float(np.nextafter(above, -np.inf))
        return cls(best.log_probabilities, best.labels, rest)

    @property
    def count(self) -> int:
        """Number of labelings listed."""
        return int(self.log_probabilities.size)

    def head(self, count: int) -> Ranked:
        """Return the first `count` labelings."""
        if count >= self.count:
            return self
        return Ranked(self.log_probabilities[:count], self.labels[:count], float(self.log_probabilities[count]))


@dataclass(frozen=True, eq=False)
class FullSet:
    """A conformal set of labelings: `size` of them (None when open), of which the listed ones are scored.

    `open`: the threshold is infinite, or enumeration stopped at its limit (METHODS 3.4). `members` says which
    of the listed labelings belong to the set; what is shown is `C ∪ {y(1)}` (METHODS 3.5).
    """

    threshold: float
    open: bool
    size: int | None
    members: npt.NDArray[np.bool_]  # (K,)
    scores: Floats  # (K,)
    p_values: Floats  # (K,)

    @property
    def empty(self) -> bool:
        """Whether no labeling belongs to the set; y(1) is shown all the same."""
        return self.size == 0


def threshold_list(
    ranked: Ranked,
    table: ScoreTable,
    alpha: Level,
    *,
    method: Method | None = None,
    u: float | None = None,
    max_sequences: int = 10_000,
) -> FullSet:
    """Return the set at level alpha, from a ranked list that reaches at least to its end.

    Raises `RankedListTooShort` when labelings that are not listed might belong to the set, unless the list
    has `max_sequences` (then the set is open).

    The paper's example, "Sarah is from New York City", with its cutoff 0.6 on the scale of 1 - P: y(1) has
    0.52, y(2) has 0.72. METHODS' rule keeps y(1); the paper's may add y(2), with probability (0.48 - 0.4) /
    (0.48 - 0.28).

    >>> logs = np.log([0.48, 0.28, 0.02])
    >>> sarah = Ranked(logs, np.zeros((3, 6), np.int16), -np.inf)
    >>> table = ScoreTable.of(-np.log1p(-np.array([0.1, 0.3, 0.6, 0.9])))  # third smallest: nc1 = 0.6
    >>> [threshold_list(sarah, table, "0.4", method=Method("nc1", rule), u=0.5).size for rule in Boundary]
    [1, 1, 1, 2, 1]
    >>> threshold_list(sarah, table, "0.4", method=Method("nc1", Boundary.PAPER), u=0.39).size
    2
    """
    chosen = method or Method()
    if max_sequences < 1:
        raise InvalidArgument(f"expected max_sequences of at least 1, got {max_sequences}")
    listed = ranked.head(max(max_sequences, chosen.top_k or 0))
    # A top-K list is its own universe: the mass of the K best, all of which must be listed.
    mass = None
    if chosen.top_k is not None:
        if listed.count < chosen.top_k and listed.rest > -np.inf:
            raise RankedListTooShort(f"expected the {chosen.top_k} best labelings, got {listed.count}")
        mass = np.full(listed.count, np.exp(listed.log_probabilities[: chosen.top_k]).cumsum()[-1])
    described = Ranks.of_list(listed.log_probabilities)
    described = Ranks(described.log_probability, described.rank, described.cumulative, mass)
    draws = None if u is None else np.full(listed.count, u)
    scores = chosen.scores(described, u=draws)
    before = None if chosen.is_pair else previous_scores(scores)
    members = chosen.members(scores, table, alpha, previous=before, u=draws)
    p_draws = draws if _cuts_by_draw(chosen) else None
    p_values = table.p_values(scores, u=p_draws)
    tau = _last_score(table, alpha, chosen, u)
    if tau == np.inf:
        return FullSet(tau, True, None, members, scores, p_values)
    if _may_continue(listed, scores, members, table, alpha, method=chosen, u=u):
        if listed.count < max_sequences:
            raise RankedListTooShort(
                f"expected a list that reaches past the threshold, got {listed.count} labelings all inside it"
            )
        return FullSet(tau, True, None, members, scores, p_values)
    return FullSet(tau, False, int(members.sum()), members, scores, p_values)


def _last_score(table: ScoreTable, alpha: Level, method: Method, u: float | None) -> float:
    """Return the threshold; for smoothed nc1, whose sets are cut by p-values, the last score that can be inside."""
    return table.threshold(alpha, u=u if _cuts_by_draw(method) else None)


def _cuts_by_draw(method: Method) -> bool:
    """Whether the boundary draw enters the p-value and not the score."""
    return method.boundary is Boundary.SMOOTHED and not method.smooths_scores


def _may_continue(
    listed: Ranked,
    scores: Floats,
    members: npt.NDArray[np.bool_],
    table: ScoreTable,
    alpha: Level,
    *,
    method: Method,
    u: float | None,
) -> bool:
    """Whether a labeling beyond the list might belong to the set, the threshold being finite."""
    if listed.rest == -np.inf or (members.size and not members[-1]):
        return False
    if method.limit is not None and not method.goes_on and listed.count >= method.limit:
        return False  # further ones score +inf
    if method.boundary in (Boundary.FULL, Boundary.PAPER):
        return not scores.size or bool(scores[-1] < table.threshold(alpha))
    if not method.score.bounds_rest or method.top_k is not None:
        return True
    # No labeling beyond the list scores less than one of its last probability, one rank further.
    so_far = float(cumulate(listed.log_probabilities)[-1]) if listed.count else 0.0
    least = Ranks(np.array([listed.rest]), np.array([listed.count + 1]), np.array([so_far]))
    including = method if method.boundary is Boundary.INCLUDE else replace(method, boundary=Boundary.INCLUDE)
    score = including.scores(least)
    if method.smooths_scores:
        score = score - method.score.largest_step
    # p-values fall with the score, so if this one is outside, all beyond it are.
    return bool(np.asarray(table.contains(score, alpha, u=u if _cuts_by_draw(method) else None))[0])


def decode_set(
    potentials: Potentials,
    table: ScoreTable,
    alpha: Level,
    *,
    method: Method | None = None,
    u: float | None = None,
    max_sequences: int = 10_000,
    max_shown: int = 5,
) -> tuple[FullSet, Ranked]:
    """Decode exactly as far as the set at level alpha reaches; nc1 sets are enumerated completely (METHODS 4.1).

    The list returned holds every member (the best `max_shown` of an open set with an infinite threshold), and
    always y(1). Of a text of more than 800 tokens fewer than `max_sequences` are listed before the set is called open,
    so that no list takes longer or more memory than 10,000 labelings of 800 tokens.
    """
    chosen = method or Method()
    max_sequences = min(max_sequences, max(max_shown, _MOST_LABELS // max(1, potentials.length)))
    tau = _last_score(table, alpha, chosen, u)
    if tau == np.inf:
        k = max(max_shown, chosen.top_k or 1)
        ranked = Ranked.of(kbest(potentials, k))
        return threshold_list(ranked, table, alpha, method=chosen, u=u, max_sequences=max_sequences), ranked
    k = chosen.top_k or min(_FIRST_STEP, max_sequences)
    stops_at_tau = chosen.boundary not in (Boundary.FULL, Boundary.PAPER)
    if chosen.score.is_enumerable and chosen.top_k is None and stops_at_tau:
        if tau > -np.inf:
            ranked = Ranked.of(kbest(potentials, max_sequences, above=-tau), above=-tau)
            if ranked.count:
                return threshold_list(ranked, table, alpha, method=chosen, u=u, max_sequences=max_sequences), ranked
        k = 1  # empty: only y(1) is wanted
    while True:
        ranked = Ranked.of(kbest(potentials, k))
        try:
            return threshold_list(ranked, table, alpha, method=chosen, u=u, max_sequences=max_sequences), ranked
        except RankedListTooShort:
            k = min(k * _GROWTH, max_sequences)
