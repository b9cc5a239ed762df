"""`predict_set`: the conformal set of a unit's labelings, and of its spans' labels, in one answer.

A unit is a text, or one of its sentences; `conformal.units` cuts texts and joins the sets of their units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformal.class_answers import class_answers
from conformal.errors import InvalidArgument, RankedListTooShort
from conformal.flags import flag_spans
from conformal.full import FullSet, Ranked, decode_set, threshold_list
from conformal.integrated import decode_integrated
from conformal.integrated_paper import decode_paper
from conformal.labels import LabelSpace, Span
from conformal.quantile import Bools, Floats, Level, ScoreTable, exact_level
from conformal.risk.doubts import FLOOR, span_doubts
from conformal.risk.places import shown_marks
from conformal.subsequence import (
    Candidates,
    EntityMethod,
    Marginals,
    TopMarginals,
    candidate_ranks,
    candidate_spans,
    label_members,
    listing_floor,
    score_spans,
    span_labels,
)
from conformal.thresholds import LabelPool, Thresholds
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
class SpanLabel:
    """A label a span could carry."""

    label: str
    p_value: float
    probability: float


@dataclass(frozen=True)
class SpanSet:
    """A span with the labels in its set; flagged unless that leaves no doubt (METHODS 6.4), or by risk (METHODS 11).

    `doubt` is how likely the best labeling is to be wrong here; only under flags that control risk.
    """

    start: int
    end: int
    labels: tuple[SpanLabel, ...]
    flagged: bool
    doubt: float | None = None


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
    exact_level(alpha)
    if max_shown < 1:
        raise InvalidArgument(f"expected max_shown of at least 1, got {max_shown}")
    thresholds.check_space(space)
    touched = tuple(beside)
    answering = answering_thresholds(thresholds, fallback, stratum=stratum, beside=touched)
    pool = answering.pool(stratum, beside=touched)
    if answering.method.is_heuristic:
        full, listed = _paper_set(potentials, space, answering, alpha)
    elif answering.method.is_integrated:
        full, listed = _integrated_set(potentials, space, answering, pool.table, alpha, u, max_shown, max_sequences)
    else:
        full, listed = _full_set(potentials, answering, pool.table, alpha, u, max_shown, max_sequences, ranked)
    best = tuple(space.spans(listed.labels[0]))
    if candidates is None:
        if potentials is None:
            raise InvalidArgument("expected potentials or candidates, got neither")
        candidates = text_candidates(potentials, space, thresholds=thresholds, best=best)
    answers = class_answers(thresholds, fallback, alpha)
    spans = _span_sets(candidates, space, best, thresholds.entity_method, answers.pools, alpha, flag_level)
    return PredictionSet(
        stratum=stratum,
        pool=pool.pool.name,
        n=pool.n,
        alpha=str(alpha),
        threshold=full.threshold,
        open=full.open,
        set_size=full.size,
        unreachable=pool.unreachable,
        labelings=_labelings(full, listed, space, max_shown),
        spans=spans,
        uncalibrated=answers.uncalibrated,
        open_labels=answers.open_labels,
        borrowed=answering is not thresholds,
        borrowed_labels=answers.borrowed,
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


def _span_sets(
    candidates: Candidates,
    space: LabelSpace,
    best: Sequence[Span],
    method: EntityMethod,
    answering: Mapping[str, LabelPool],
    alpha: Level,
    flag_level: float | None,
) -> tuple[SpanSet, ...]:
    names = span_labels(space)
    pools = [answering[name] for name in names]
    chosen = {(span.start, span.end): space.classes.index(span.label) for span in best}
    missing = sorted(set(chosen) - set(candidates.keys))
    if missing:
        raise InvalidArgument(f"expected the best labeling's spans among the candidates, got none for {missing[0]}")
    if flag_level is None:
        kept = candidates.above(method.p_min, extra=chosen)
        sets, p_values = _label_sets(kept, method, pools, alpha)
        reported, flagged = flag_spans(kept.starts, kept.ends, sets=sets, best=[chosen.get(key) for key in kept.keys])
        doubts: Sequence[float | None] = [None] * len(kept.keys)
        rows = np.flatnonzero(reported)
    else:
        classes = [chosen.get(key) for key in candidates.keys]
        each = span_doubts(candidates.probabilities, classes)
        shown = _risk_spans(candidates, each, classes, flag_level or method.p_min)  # level 0: all the text, few marks
        kept, each = candidates.take(shown), each[shown]
        classes = [classes[i] for i in np.flatnonzero(shown).tolist()]
        flagged, doubts, rows = each >= flag_level, each.tolist(), np.arange(each.size)
        sets, p_values = _label_sets(kept, method, pools, alpha)
        sets |= flagged[:, None] & _rivals(kept.probabilities, classes)
    result: list[SpanSet] = []
    inside, values, shares, marked = sets.tolist(), p_values.tolist(), kept.probabilities.tolist(), flagged.tolist()
    for i in rows.tolist():
        held = [SpanLabel(name, values[i][c], shares[i][c]) for c, name in enumerate(names) if inside[i][c]]
        held.sort(key=lambda label: (-label.p_value, -label.probability))
        start, end = kept.keys[i]
        result.append(SpanSet(start, end, tuple(held), marked[i], doubts[i]))
    return tuple(result)


def _label_sets(
    candidates: Candidates, method: EntityMethod, pools: Sequence[LabelPool], alpha: Level
) -> tuple[Bools, Floats]:
    """Return which labels are in the set of each span, and their p-values: (S, W + 1) both."""
    probabilities = candidates.probabilities.reshape(-1, len(pools))
    outside = np.arange(len(pools)) == len(pools) - 1
    scores = method.scores(score_spans(probabilities), rank=candidates.ranks, outside=outside)  # (S, W + 1[, 2])
    inside = [pool.table.contains(scores[:, i], alpha) if pool.calibrated else None for i, pool in enumerate(pools)]
    p_values = np.empty(probabilities.shape)
    for i, pool in enumerate(pools):
        p_values[:, i] = pool.table.p_values(scores[:, i])
    return label_members(probabilities, inside), p_values


def _risk_spans(candidates: Candidates, doubts: Floats, classes: Sequence[int | None], level: float) -> Bools:
    """Say what is reported under flags that control risk: the spans of y(1), and those that a person must see."""
    in_best = np.array([each is not None for each in classes], dtype=np.bool_)
    flagged = np.flatnonzero(doubts >= level)
    reported = in_best.copy()
    reported[flagged] |= shown_marks(
        candidates.starts[flagged], candidates.ends[flagged], doubts[flagged], in_best[flagged]
    )
    return reported


def _rivals(probabilities: Floats, classes: Sequence[int | None]) -> Bools:
    """Return, for each span, what y(1) says there and the likeliest other label: what a flag asks to decide between."""
    said = np.array([probabilities.shape[1] - 1 if each is None else each for each in classes], dtype=np.int64)
    rows = np.arange(said.size)
    others = probabilities.copy()
    others[rows, said] = -1.0
    result = np.zeros(probabilities.shape, dtype=np.bool_)
    result[rows, said] = True
    result[rows, np.argmax(others, axis=1) if said.size else said] = True
    return result
