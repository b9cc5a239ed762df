"""Calibrated integrated sets: the labelings whose every part is allowed (METHODS 7.3).

`conformal.scores.integrated` says how strange a part is. These sets are not heads of the ranked list: they are the
paths of a lattice, counted exactly and listed from a chain that holds them (docs/decisions/0009-methods.md).
"""

from __future__ import annotations

import numpy as np

from conformal.errors import InvalidArgument
from conformal.full import FullSet, Ranked
from conformal.labels import OUTSIDE, LabelSpace
from conformal.lattice import SpanValues, lattice_of
from conformal.quantile import Bools, Floats, Level, ScoreTable
from conformal.scores import Boundary, Method, Ranks, Tuned
from conformal.scores.integrated import Integrated
from conformal.subsequence import candidate_spans, listing_floor
from conformal.trellis import EntityMarginals, Potentials, entity_marginals, kbest

_FIRST_STEP = 64
_GROWTH = 4
# Where even the least likely entity of a class is allowed, texts up to this length are counted with every span.
_EVERY_SPAN = 64


def span_values(
    potentials: Potentials, space: LabelSpace, *, tuned: Tuned, p_min: float, floor: float
) -> tuple[SpanValues, EntityMarginals]:
    """Return the terms of a text: of every entity with P_ent >= floor, and of every candidate span left out."""
    marginals = entity_marginals(potentials, space, floor=floor)
    with np.errstate(divide="ignore"):
        scores = -np.log(marginals.probabilities)
    classes = marginals.classes.astype(np.int64)
    terms = np.zeros(scores.size)
    for w, name in enumerate(space.classes):
        here = classes == w
        terms[here] = tuned.part(name)(scores[here])
    terms[np.isposinf(scores)] = np.inf
    keys = zip(marginals.starts.tolist(), marginals.ends.tolist(), classes.tolist(), strict=True)
    candidates = candidate_spans(marginals, space, p_min=p_min)
    with np.errstate(divide="ignore"):
        outside = -np.log(candidates.probabilities[:, -1])
    left_out = np.where(np.isposinf(outside), np.inf, tuned.part(OUTSIDE)(outside))
    return (
        SpanValues(
            dict(zip(keys, terms.tolist(), strict=True)), dict(zip(candidates.keys, left_out.tolist(), strict=True))
        ),
        marginals,
    )


def decode_integrated(
    potentials: Potentials,
    space: LabelSpace,
    *,
    table: ScoreTable,
    alpha: Level,
    method: Method,
    p_min: float = 0.01,
    u: float | None = None,
    max_sequences: int = 10_000,
    max_shown: int = 5,
) -> tuple[FullSet, Ranked]:
    """Return the calibrated integrated set of a text: its exact size, and its best members.

    Contains the true labeling with probability at least 1-alpha if calibration and test tasks are exchangeable and
    `method.tuned` was frozen on other tasks. The list holds y(1) first, a member or not, then the best `max_shown`
    members, or all members where nc1 bounds the set. Open: the threshold is infinite, or more than `max_sequences`
    labelings belong to the set.
    """
    score = method.score
    if method.tuned is None or not isinstance(score, Integrated):
        raise InvalidArgument(f"expected a tuned integrated method, got {method.name}")
    if method.boundary is Boundary.SMOOTHED and u is None:
        raise InvalidArgument("expected u for the boundary rule smoothed, got none; see boundary_u")
    drawn = u if method.boundary is Boundary.SMOOTHED else None
    judge = _Judge(method, score, method.tuned, table=table, alpha=alpha, u=drawn)
    tau = table.threshold(alpha, u=drawn)
    best = kbest(potentials, max(max_shown, 1) if tau == np.inf else 1)
    if tau == np.inf:
        values, _ = span_values(
            potentials, space, tuned=method.tuned, p_min=p_min, floor=0.0 if potentials.length <= _EVERY_SPAN else 1e-12
        )
        ranked = Ranked.of(best)
        return judge.full_set(ranked, values, tau, None), ranked
    floor = min(listing_floor(space, p_min), *(judge.least_probability(name) for name in space.classes))
    # Any token may be such an entity or not: more labelings than anyone lists, whatever else is allowed.
    boundless = floor == 0.0 and potentials.length > _EVERY_SPAN
    floor = 1e-12 if boundless else floor
    values, _ = span_values(potentials, space, tuned=method.tuned, p_min=p_min, floor=floor)
    allowed = judge.allows(np.array(list(values.inside.values())))
    spans = list(values.left_out)
    must = ~judge.allows(np.array(list(values.left_out.values())))
    lattice = lattice_of(
        values, allowed, mandatory=[span for span, needed in zip(spans, must.tolist(), strict=True) if needed]
    )
    size = None if score.is_bounded else lattice.count(potentials)
    wanted = max_sequences + 1 if size is None else min(size, max_shown)
    relaxed = lattice.relax(potentials, space) if size != 0 else None
    listed = (
        judge.list_members(relaxed, values, wanted, best.log_partition, max_sequences) if relaxed is not None else None
    )
    ranked, complete = _joined(Ranked.of(best), listed)
    if size is None:
        size = int(listed[0].log_probabilities.size) if listed is not None else 0
        if listed is not None and not listed[1]:
            complete = False
    closed = not boundless and size <= max_sequences and (complete or not score.is_bounded)
    return judge.full_set(ranked, values, tau, size if closed else None), ranked


class _Judge:
    """Membership of terms and labelings under one table and level."""

    def __init__(
        self, method: Method, score: Integrated, tuned: Tuned, *, table: ScoreTable, alpha: Level, u: float | None
    ) -> None:
        self.method, self.score, self.tuned = method, score, tuned
        self.table, self.alpha, self.u = table, alpha, u

    def _contains(self, scores: Floats) -> Bools:
        draws = None if self.u is None else np.full(np.shape(scores), self.u)
        return self.table.contains(scores, self.alpha, u=draws)

    def allows(self, terms: Floats) -> Bools:
        """Whether a labeling may have such a term: its score would be at least this, whatever else it holds."""
        return self._contains(self.score.least(terms, tuned=self.tuned))

    def least_probability(self, name: str) -> float:
        """Return a P_ent below which no entity of the class is allowed; 0 when every one is."""
        steps = self.tuned.part(name).scores
        steps = steps[np.isfinite(steps)]
        points = np.concatenate([steps, [np.finfo(np.float64).max]])
        inside = self.allows(self.tuned.part(name)(points))
        if inside[-1]:
            return 0.0
        if not steps.size:
            return 1.0  # one term for every entity, and it is too strange
        first_out = int(np.argmin(inside))  # the term rises: all before this are allowed
        # The last point stands for everything beyond the last step, and is reached nowhere before it.
        return float(np.exp(-steps[min(first_out, steps.size - 1)]) * (1 - 1e-9))

    def scores(self, ranked: Ranked, values: SpanValues) -> Floats:
        logs = ranked.log_probabilities
        nothing = np.zeros(logs.size, np.int64)
        return self.method.scores(Ranks(logs, nothing, np.zeros(logs.size), None, values.worst(ranked.labels)))

    def full_set(self, ranked: Ranked, values: SpanValues, tau: float, size: int | None) -> FullSet:
        scores = self.scores(ranked, values)
        draws = None if self.u is None else np.full(scores.size, self.u)
        members = self._contains(scores)
        return FullSet(tau, size is None, size, members, scores, self.table.p_values(scores, u=draws))

    def list_members(
        self, relaxed: Potentials, values: SpanValues, wanted: int, log_partition: float, most: int
    ) -> tuple[Ranked, bool]:
        """Return the best `wanted` members, and whether these are all there are (as far as nc1 bounds them)."""
        k = min(_FIRST_STEP, most)
        while True:
            best = kbest(relaxed, k)
            logs = best.scores - log_partition  # of the text's own chain, not conditional on the lattice
            ranked = Ranked(logs, best.labels, -np.inf if best.exhausted else float(logs[-1]))
            members = self._contains(self.scores(ranked, values))
            done = best.exhausted or self._none_beyond(float(logs[-1]))
            if done or int(members.sum()) >= wanted or k >= most:
                kept = np.flatnonzero(members)[:wanted]
                return Ranked(logs[kept], best.labels[kept], ranked.rest), done
            k = min(k * _GROWTH, most)

    def _none_beyond(self, log_probability: float) -> bool:
        """Whether no labeling less likely than this can belong: nc1 alone makes it too strange."""
        if not self.score.is_bounded:
            return False
        at = np.array([log_probability])
        least = self.method.scores(Ranks(at, np.zeros(1, np.int64), np.zeros(1), None, np.zeros(1)))
        return not bool(self._contains(least)[0])


def _joined(best: Ranked, listed: tuple[Ranked, bool] | None) -> tuple[Ranked, bool]:
    """Put y(1) first, then the members; whether all of them are listed."""
    if listed is None:
        return best.head(1), True
    members, complete = listed
    if not members.count:
        return best.head(1), complete
    if np.array_equal(members.labels[0], best.labels[0]):
        return members, complete
    logs: Floats = np.concatenate([best.log_probabilities[:1], members.log_probabilities])
    return Ranked(logs, np.concatenate([best.labels[:1], members.labels]), members.rest), complete
