"""The sets of spans' labels, and which spans are shown and flagged: for many units in one pass (METHODS 6, 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from conformal.errors import InvalidArgument
from conformal.flags import flag_spans
from conformal.labels import LabelSpace, Span
from conformal.quantile import Bools, Floats, Level
from conformal.risk.doubts import span_doubts
from conformal.risk.places import shown_marks
from conformal.subsequence import Candidates, EntityMethod, Ints, label_members, score_spans, span_labels
from conformal.thresholds import LabelPool


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


class UnitSpans(NamedTuple):
    """The candidate spans of a unit, those of its best labeling among them, and from which doubt on they are flagged.

    Without a level spans with several labels are flagged.
    """

    candidates: Candidates
    best: tuple[Span, ...]
    flag_level: float | None


class _Kept(NamedTuple):
    """The candidates of a unit that are judged, the class that y(1) gives each, and their doubts under such flags."""

    candidates: Candidates
    classes: list[int | None]
    doubts: Floats | None


def span_sets(
    units: Sequence[UnitSpans],
    space: LabelSpace,
    *,
    method: EntityMethod,
    answering: Mapping[str, LabelPool],
    alpha: Level,
) -> list[tuple[SpanSet, ...]]:
    """Return the sets of each unit's spans at level alpha.

    Raises:
        InvalidArgument: when a span of a best labeling is not among the candidates.
    """
    names = span_labels(space)
    kept = _kept(units, space, method)
    sets, p_values = _label_sets([each.candidates for each in kept], method, [answering[name] for name in names], alpha)
    result: list[tuple[SpanSet, ...]] = []
    first = 0
    for unit, each in zip(units, kept, strict=True):
        last = first + each.candidates.starts.size
        result.append(_of_unit(each, names, sets[first:last], p_values[first:last], unit.flag_level))
        first = last
    return result


def _kept(units: Sequence[UnitSpans], space: LabelSpace, method: EntityMethod) -> list[_Kept]:
    chosen = [_chosen(unit, space) for unit in units]
    classes = [[of.get(key) for key in unit.candidates.keys] for unit, of in zip(units, chosen, strict=True)]
    every = _stacked([unit.candidates.probabilities for unit in units], len(space.classes) + 1)
    doubts = span_doubts(every, [each for own in classes for each in own])
    kept: list[_Kept] = []
    first = 0
    for unit, of, own in zip(units, chosen, classes, strict=True):
        candidates, level = unit.candidates, unit.flag_level
        last = first + candidates.starts.size
        if level is None:
            above = candidates.above(method.p_min, extra=of)
            kept.append(_Kept(above, [of.get(key) for key in above.keys], None))
        else:
            mine = doubts[first:last]
            shown = _risk_spans(candidates, mine, own, level or method.p_min)  # level 0: all the text, few marks
            rows = np.flatnonzero(shown)
            kept.append(_Kept(candidates.take(rows), [own[i] for i in rows.tolist()], mine[rows]))
        first = last
    return kept


def _chosen(unit: UnitSpans, space: LabelSpace) -> dict[tuple[int, int], int]:
    """Return the class that the best labeling gives to each of its spans."""
    chosen = {(span.start, span.end): space.classes.index(span.label) for span in unit.best}
    missing = sorted(set(chosen) - set(unit.candidates.keys))
    if missing:
        raise InvalidArgument(f"expected the best labeling's spans among the candidates, got none for {missing[0]}")
    return chosen


def _of_unit(
    kept: _Kept, names: Sequence[str], sets: Bools, p_values: Floats, level: float | None
) -> tuple[SpanSet, ...]:
    spans, doubts = kept.candidates, kept.doubts
    rows: Sequence[int]
    if doubts is None or level is None:
        reported, flagged = flag_spans(spans.starts, spans.ends, sets=sets, best=kept.classes)
        said: Sequence[float | None] = [None] * reported.size
        rows = np.flatnonzero(reported).tolist()
    else:
        flagged, said, rows = doubts >= level, doubts.tolist(), range(doubts.size)
        if flagged.any():
            sets = sets | (flagged[:, None] & _rivals(spans.probabilities, kept.classes))
    result: list[SpanSet] = []
    inside, values, shares, marked = sets.tolist(), p_values.tolist(), spans.probabilities.tolist(), flagged.tolist()
    for i in rows:
        held = [SpanLabel(name, values[i][c], shares[i][c]) for c, name in enumerate(names) if inside[i][c]]
        held.sort(key=lambda label: (-label.p_value, -label.probability))
        start, end = spans.keys[i]
        result.append(SpanSet(start, end, tuple(held), marked[i], said[i]))
    return tuple(result)


def _label_sets(
    candidates: Sequence[Candidates], method: EntityMethod, pools: Sequence[LabelPool], alpha: Level
) -> tuple[Bools, Floats]:
    """Return which labels are in the set of each span of all units, and their p-values: (S, W + 1) both."""
    probabilities = _stacked([each.probabilities for each in candidates], len(pools))
    outside = np.arange(len(pools)) == len(pools) - 1
    known: list[Ints] = [each.ranks for each in candidates if each.ranks is not None]
    ranks = np.concatenate(known) if known and len(known) == len(candidates) else None
    scores = method.scores(score_spans(probabilities), rank=ranks, outside=outside)  # (S, W + 1[, 2])
    inside = [pool.table.contains(scores[:, i], alpha) if pool.calibrated else None for i, pool in enumerate(pools)]
    p_values = np.empty(probabilities.shape)
    for i, pool in enumerate(pools):
        p_values[:, i] = pool.table.p_values(scores[:, i])
    return label_members(probabilities, inside), p_values


def _stacked(rows: Sequence[Floats], width: int) -> Floats:
    return np.concatenate([np.zeros((0, width)), *rows])


def _risk_spans(candidates: Candidates, doubts: Floats, classes: Sequence[int | None], level: float) -> Bools:
    """Say what is reported under flags that control risk: the spans of y(1), and those that a person must see."""
    in_best = np.array([each is not None for each in classes], dtype=np.bool_)
    flagged = np.flatnonzero(doubts >= level)
    if not flagged.size:
        return in_best
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
    result[rows, np.argmax(others, axis=1)] = True
    return result
