"""`predict_set`: the conformal set of a unit's labelings, and of its spans' labels, in one answer.

A unit is a text, or one of its sentences; `conformal.units` cuts texts and joins the sets of their units.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from conformal.class_answers import class_answers
from conformal.errors import InvalidArgument, RankedListTooShort
from conformal.full import FullSet, Ranked, decode_set, threshold_list
from conformal.integrated import decode_integrated
from conformal.integrated_paper import decode_paper
from conformal.labels import LabelSpace, Span
from conformal.quantile import Level, ScoreTable, exact_level
from conformal.risk.doubts import FLOOR
from conformal.span_sets import SpanSet, UnitSpans, span_sets
from conformal.subsequence import (
    Candidates,
    EntityMethod,
    Marginals,
    TopMarginals,
    candidate_ranks,
    candidate_spans,
    listing_floor,
)
from conformal.thresholds import CellPool, Thresholds
from conformal.trellis import Potentials, entity_marginals, kbest


@dataclass(frozen=True)
class RankedLabeling:
    """One labeling of a unit or a text, `rank` 1 the likeliest, then the set's members in order of probability.

    `member` is False only for y(1) where it is shown though the set leaves it out: an empty set, or an integrated one.
    """

    rank: int
    labels: tuple[str, ...]
    spans: tuple[Span, ...]
    log_probability: float
    p_value: float
    member: bool

    @property
    def probability(self) -> float:
        """P(y | x)."""
        return float(np.exp(self.log_probability))


@dataclass(frozen=True)
class PredictionSet:
    """Everything said about one unit at one level, with what it rests on (METHODS 5.4).

    `set_size` is the full size, None when open and 0 when empty; `labelings` holds the best members, best
    first, and always y(1). `unreachable` is the share of the pool's labels that the model cannot express
    (METHODS 3.3). `uncalibrated` names classes (or "O") with too few labels; `open_labels` classes so
    uncertain that spans which are no candidates could carry them too. `borrowed` says that the set of labelings rests
    on the fallback's rows, `borrowed_labels` which classes (or "O") do: for those nothing is promised.
    """

    stratum: str
    pool: str
    n: int
    alpha: str
    threshold: float
    open: bool
    set_size: int | None
    unreachable: float
    labelings: tuple[RankedLabeling, ...]
    spans: tuple[SpanSet, ...]
    uncalibrated: tuple[str, ...]
    open_labels: tuple[str, ...]
    borrowed: bool = False
    borrowed_labels: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether the set itself is empty; y(1) is listed all the same (METHODS 3.5)."""
        return self.set_size == 0


class Unit(NamedTuple):
    """What the sets of a unit are made from; the fields are described at `predict_set`."""

    potentials: Potentials | None
    stratum: str
    beside: tuple[str, ...] = ()
    ranked: Ranked | None = None
    candidates: Candidates | None = None
    flag_level: float | None = None
    u: float | None = None


def predict_set(
    potentials: Potentials | None,
    space: LabelSpace,
    *,
    stratum: str,
    beside: Iterable[str] = (),
    thresholds: Thresholds,
    alpha: Level,
    u: float | None = None,
    max_shown: int = 5,
    max_sequences: int = 10_000,
    ranked: Ranked | None = None,
    candidates: Candidates | None = None,
    fallback: Thresholds | None = None,
    flag_level: float | None = None,
) -> PredictionSet:
    """Return the sets of one unit at level alpha.

    The full-sequence set contains the true labeling with probability at least 1-alpha, per pool, if the
    task is exchangeable with the calibration tasks (for a random unit of it: METHODS 10.2). `beside` are the strata of
    the text's other units. `ranked` and `candidates` (as `text_candidates` gives
    them) take the place of potentials, or save decoding; `u` is the task's draw for randomised boundaries.
    `fallback` are thresholds from other data: they answer where these have too few rows, by counts alone.
    `flag_level` flags spans whose doubt reaches it (METHODS 11) instead of those with several labels (METHODS 6.4);
    candidates must then reach down to `conformal.risk.FLOOR`.
    Raises `InvalidArgument`, `InvalidLabels` (another label space), `UnknownStratum`, `RankedListTooShort`.

    >>> from conformal.rows import TaskRows
    >>> from conformal.thresholds import calibrate
    >>> space = LabelSpace(["PER"])
    >>> p = Potentials(
    ...     emissions=[[0, 1.5, 0], [2.0, 0, 1.0]], transitions=np.where(space.allowed, 0.0, -np.inf),
    ...     start=np.where(space.allowed_start, 0.0, -np.inf), end=np.zeros(3))
    >>> rows = TaskRows.of(["en/1-10"] * 99, np.log(np.linspace(0.3, 1.0, 99)))
    >>> sets = predict_set(p, space, stratum="en/1-10", thresholds=calibrate(rows, classes=["PER"]), alpha="0.1")
    >>> sets.open, sets.set_size, sets.labelings[0].spans, sets.uncalibrated
    (False, 1, (Span(start=0, end=1, label='PER'),), ('PER', 'O'))
    """
    unit = Unit(potentials, stratum, tuple(beside), ranked, candidates, flag_level, u)
    return predict_sets(
        [unit],
        space,
        thresholds=thresholds,
        alpha=alpha,
        max_shown=max_shown,
        max_sequences=max_sequences,
        fallback=fallback,
    )[0]


def predict_sets(
    units: Iterable[Unit],
    space: LabelSpace,
    *,
    thresholds: Thresholds,
    alpha: Level,
    max_shown: int = 5,
    max_sequences: int = 10_000,
    fallback: Thresholds | None = None,
) -> list[PredictionSet]:
    """Return the sets of many units, each as `predict_set` gives it."""
    exact_level(alpha)
    if max_shown < 1:
        raise InvalidArgument(f"expected max_shown of at least 1, got {max_shown}")
    thresholds.check_space(space)
    answers = class_answers(thresholds, fallback, alpha)
    found = [
        _find(
            unit,
            space,
            thresholds=thresholds,
            alpha=alpha,
            max_shown=max_shown,
            max_sequences=max_sequences,
            fallback=fallback,
        )
        for unit in units
    ]
    spans = span_sets(
        [each.spans for each in found], space, method=thresholds.entity_method, answering=answers.pools, alpha=alpha
    )
    return [
        PredictionSet(
            stratum=each.unit.stratum,
            pool=each.pool.pool.name,
            n=each.pool.n,
            alpha=str(alpha),
            threshold=each.full.threshold,
            open=each.full.open,
            set_size=each.full.size,
            unreachable=each.pool.unreachable,
            labelings=each.labelings,
            spans=own,
            uncalibrated=answers.uncalibrated,
            open_labels=answers.open_labels,
            borrowed=each.borrowed,
            borrowed_labels=answers.borrowed,
        )
        for each, own in zip(found, spans, strict=True)
    ]


class _Found(NamedTuple):
    """The set of labelings of a unit, and what the sets of its spans are made from."""

    unit: Unit
    pool: CellPool
    full: FullSet
    labelings: tuple[RankedLabeling, ...]
    spans: UnitSpans
    borrowed: bool


def _find(
    unit: Unit,
    space: LabelSpace,
    *,
    thresholds: Thresholds,
    alpha: Level,
    max_shown: int,
    max_sequences: int,
    fallback: Thresholds | None,
) -> _Found:
    answering = answering_thresholds(thresholds, fallback, stratum=unit.stratum, beside=unit.beside)
    pool, potentials = answering.pool(unit.stratum, beside=unit.beside), unit.potentials
    limits = (alpha, unit.u, max_shown, max_sequences)
    if answering.method.is_heuristic:
        full, listed = _paper_set(potentials, space, answering, alpha)
    elif answering.method.is_integrated:
        full, listed = _integrated_set(potentials, space, answering, pool.table, *limits)
    else:
        full, listed = _full_set(potentials, answering, pool.table, *limits, unit.ranked)
    best, candidates = tuple(space.spans(listed.labels[0])), unit.candidates
    if candidates is None:
        if potentials is None:
            raise InvalidArgument("expected potentials or candidates, got neither")
        candidates = text_candidates(potentials, space, thresholds=thresholds, best=best)
    return _Found(
        unit,
        pool,
        full,
        _labelings(full, listed, space, max_shown),
        UnitSpans(candidates, best, unit.flag_level),
        answering is not thresholds,
    )


def answering_thresholds(
    thresholds: Thresholds, fallback: Thresholds | None, *, stratum: str, beside: Sequence[str] = ()
) -> Thresholds:
    """Return the thresholds that answer for a unit of this stratum: the fallback where only it has enough rows."""
    if fallback is None or fallback.classes != thresholds.classes:
        return thresholds
    if thresholds.pool(stratum, beside=beside).pool.calibrated:
        return thresholds
    return fallback if fallback.pool(stratum, beside=beside).pool.calibrated else thresholds


def _full_set(
    potentials: Potentials | None,
    thresholds: Thresholds,
    table: ScoreTable,
    alpha: Level,
    u: float | None,
    max_shown: int,
    max_sequences: int,
    ranked: Ranked | None,
) -> tuple[FullSet, Ranked]:
    method = thresholds.method
    if ranked is not None and ranked.count:
        try:
            return threshold_list(ranked, table, alpha, method=method, u=u, max_sequences=max_sequences), ranked
        except RankedListTooShort:
            if potentials is None:
                raise
    if potentials is None:
        raise InvalidArgument("expected potentials or a ranked list, got neither")
    return decode_set(potentials, table, alpha, method=method, u=u, max_sequences=max_sequences, max_shown=max_shown)


def _integrated_set(
    potentials: Potentials | None,
    space: LabelSpace,
    thresholds: Thresholds,
    table: ScoreTable,
    alpha: Level,
    u: float | None,
    max_shown: int,
    max_sequences: int,
) -> tuple[FullSet, Ranked]:
    if potentials is None:
        raise RankedListTooShort(
            f"expected potentials for {thresholds.method.name}: its sets are no heads of a ranked list, got none"
        )
    return decode_integrated(
        potentials,
        space,
        table=table,
        alpha=alpha,
        method=thresholds.method,
        p_min=thresholds.entity_method.p_min,
        u=u,
        max_sequences=max_sequences,
        max_shown=max_shown,
    )


def _paper_set(
    potentials: Potentials | None, space: LabelSpace, thresholds: Thresholds, alpha: Level
) -> tuple[FullSet, Ranked]:
    method = thresholds.method
    if potentials is None:
        raise RankedListTooShort(f"expected potentials for {method.name}: its sets are made of span sets, got none")
    scores = {name: thresholds.labels[name].scores for name in space.classes}
    return decode_paper(
        potentials,
        space,
        scores=scores,
        alpha=alpha,
        method=method,
        entity_method=thresholds.entity_method,
    )


def _labelings(full: FullSet, listed: Ranked, space: LabelSpace, max_shown: int) -> tuple[RankedLabeling, ...]:
    # y(1) always, then the best members: for heads of the ranked list simply its first ones.
    chosen = [0, *(r for r in np.flatnonzero(full.members).tolist() if r)][:max_shown]
    return tuple(
        RankedLabeling(
            rank=rank,
            labels=tuple(space.decode(listed.labels[r])),
            spans=tuple(space.spans(listed.labels[r])),
            log_probability=float(listed.log_probabilities[r]),
            p_value=float(full.p_values[r]),
            member=bool(full.members[r]),
        )
        for rank, r in enumerate(chosen, start=1)
    )


def text_candidates(
    potentials: Potentials, space: LabelSpace, *, thresholds: Thresholds, best: Sequence[Span]
) -> Candidates:
    """Return the candidate spans of a text down to the floor of flags, and those of its best labeling."""
    method = thresholds.entity_method
    marginals: Marginals
    if method.top_k is None:
        marginals = entity_marginals(potentials, space, floor=listing_floor(space, method.p_min))
    else:
        top = kbest(potentials, method.top_k)
        marginals = TopMarginals.of(top.labels, top.log_probabilities, space=space)
    candidates = candidate_spans(marginals, space, p_min=method.p_min, extra=best, floor=FLOOR)
    return with_ranks(candidates, potentials, method)


def with_ranks(candidates: Candidates, potentials: Potentials, method: EntityMethod) -> Candidates:
    """Return the candidates with the first rank of each class, where the method needs it."""
    if not method.needs_rank or method.limit is None:
        return candidates
    return replace(candidates, ranks=candidate_ranks(kbest(potentials, method.limit).labels, candidates))
