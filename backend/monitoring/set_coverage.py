"""How the set that an annotator had in view did on the label that came back. Pure: no database, no model.

A full set holds the label if its score is at most the set's threshold (METHODS 3.4). Sets of all methods but the
integrated ones are the beginning of the ranked list, so where the label's rank is known that decides; a rank is the
same however often the text is scored, while the last bit of a probability need not be. A span's set is made again
from the candidates that were stored with the served set. Of a text of several units one in every pool, drawn by lot,
stands for the task there (METHODS 8.8, 10.5).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from backend.domain.ranked import EARLIER_FLOOR, RankedList, RankedText, RankedUnit
from backend.domain.records import EntityRow, ErrorRow, SequenceScores, Served, TextSpan
from backend.monitoring.flag_risk import judge_risk, language_of, risk_flags
from backend.prediction.calibration import Calibration, known_method
from backend.store.judgements import JudgedRisk, JudgedUnit
from backend.store.packed_lists import unpack_ranked
from conformal.class_answers import label_pools
from conformal.errors import RankedListTooShort
from conformal.flags import flag_spans
from conformal.full import Ranked, threshold_list
from conformal.labels import OUTSIDE
from conformal.prediction import answering_thresholds
from conformal.quantile import Floats
from conformal.risk import FLOOR
from conformal.scores import Method, Ranks
from conformal.subsequence import Candidates, SpanScores, label_members, score_spans, with_outside
from conformal.units import best_products

KEPT, RELABELLED, REMOVED, ADDED, LEFT = "kept", "relabelled", "removed", "added", "left"


@dataclass(frozen=True)
class LabelledUnit:
    """A unit of a label: its scores under the set's model, and its stratum."""

    stratum: str
    scores: SequenceScores


@dataclass(frozen=True)
class Finding:
    """What is known of one set and one label; see `store.judgements.Judged`. `drawn` is one unit of each pool."""

    drawn: tuple[JudgedUnit, ...]
    shown: bool | None
    accepted: bool
    classes: dict[str, tuple[int, int]]
    flags: dict[str, int]
    units: tuple[int, int] | None = None
    whole: bool | None = None
    risk: JudgedRisk | None = None


def judge_set(
    served: Served,
    units: Sequence[LabelledUnit],
    *,
    draw: Callable[[str], float],
    spans: Sequence[TextSpan],
    entities: Sequence[EntityRow],
    method: str,
    calibration: Calibration | None,
    alpha: str,
    errors: ErrorRow | None = None,
) -> Finding:
    """Judge a served set by the label `spans`, which has these units and entities under the set's model.

    Args:
        draw: gives the task's lot in [0, 1) for a pool, which decides the unit that stands for the task there.
        method: of the set's thresholds.
        calibration: what served; None where it is not at hand, then nothing is said about classes and flags.
        errors: of the best labeling, as the label was scored; None where they were not looked for.
    """
    listed = unpack_ranked(served.ranked)
    sets = _judge_sets(
        served,
        listed,
        units,
        draw=draw,
        spans=spans,
        entities=entities,
        method=method,
        calibration=calibration,
        alpha=alpha,
    )
    if calibration is None:
        return sets
    return replace(sets, risk=judge_risk(listed, errors, calibration=calibration, stratum=served.stratum))


def _judge_sets(
    served: Served,
    listed: RankedText,
    units: Sequence[LabelledUnit],
    *,
    draw: Callable[[str], float],
    spans: Sequence[TextSpan],
    entities: Sequence[EntityRow],
    method: str,
    calibration: Calibration | None,
    alpha: str,
) -> Finding:
    classes: dict[str, tuple[int, int]] = {}
    flags: dict[str, int] = {}
    if calibration is not None and not calibration.thresholds.entity_method.needs_rank:
        classes = judge_classes(entities, calibration, alpha=alpha)
        language = language_of(listed, served.stratum)
        promise = None if language is None else calibration.flags_for(language)
        doubtful = [
            each
            for unit in listed.units
            for each in (
                flagged(unit.ranked, calibration, alpha=alpha)
                if promise is None or listed.floor > FLOOR
                else risk_flags(unit.ranked, promise.level or EARLIER_FLOOR)
            )
        ]
        proposed, confirmed = _labels_at(listed.best), _labels_at(spans)
        flags = dict(Counter(_fate(proposed.get(at, set()), confirmed.get(at, set())) for at in doubtful))
    accepted = all(unit.scores.rank <= 1 for unit in units)
    about = (served.stratum, served.pool, served.n, served.guarantee)
    if len(units) == len(listed.units) == 1:
        covered, shown = judge_labelings(served, units[0].scores, method=method)
        only = JudgedUnit(*about, covered, served.is_open, served.set_size)
        return Finding((only,), shown, accepted, classes, flags)
    if calibration is None or len(units) != len(listed.units):
        # What served is not at hand, or cut the text otherwise.
        unknown = JudgedUnit(*about, None, served.is_open, served.set_size)
        return Finding((unknown,), None, accepted, classes, flags, units=(0, 0))
    strata = tuple(sorted({each.stratum for each in listed.units}))
    judged = [
        judge_unit(each, held, calibration, beside=strata, alpha=alpha)
        for each, held in zip(units, listed.units, strict=True)
    ]
    known = [each.covered for each in judged if each.covered is not None]
    pools: dict[str, list[JudgedUnit]] = {}
    for each in judged:
        pools.setdefault(each.pool, []).append(each)
    drawn = tuple(held[min(int(draw(pool) * len(held)), len(held) - 1)] for pool, held in pools.items())
    complete = len(known) == len(judged)
    return Finding(
        drawn,
        _is_shown(units, listed, [each.size for each in judged], most=served.shown) if complete else None,
        accepted,
        classes,
        flags,
        units=(len(known), sum(known)),
        whole=all(known) if complete else None,
    )


def _is_shown(units: Sequence[LabelledUnit], listed: RankedText, sizes: Sequence[int | None], *, most: int) -> bool:
    """Whether the label is one of the `most` labelings that were listed: the best members of the product."""
    if not all(math.isfinite(unit.scores.rank) for unit in units):
        return False
    lists = [
        list(held.ranked.log_probabilities[: None if size is None else max(1, size)])
        for held, size in zip(listed.units, sizes, strict=True)
    ]
    label = tuple((i, int(unit.scores.rank) - 1) for i, unit in enumerate(units) if unit.scores.rank > 1)
    return all(lists) and any(choice == label for _, choice in islice(best_products(lists), most))


def judge_unit(
    unit: LabelledUnit, held: RankedUnit, calibration: Calibration, *, beside: tuple[str, ...], alpha: str
) -> JudgedUnit:
    """Judge the set of one unit of several: it is cut again from the list that was stored with it.

    `beside` are the strata of all units of the text.
    """
    fallback = None if calibration.fallback is None else calibration.fallback.thresholds
    answering = answering_thresholds(calibration.thresholds, fallback, stratum=held.stratum, beside=beside)
    pool, method = answering.pool(held.stratum, beside=beside), answering.method
    word = calibration.guarantee_of(held.stratum, beside=beside).value
    about = (held.stratum, pool.pool.name, pool.n, word)
    if pool.table.threshold(alpha) == math.inf:
        return JudgedUnit(*about, True, True, None)
    if not method.makes_heads or method.top_k is not None:
        return JudgedUnit(*about, None, False, None)
    logs = np.array(held.ranked.log_probabilities)
    rest = -math.inf if held.ranked.exhausted or not logs.size else float(logs[-1])
    ranked = Ranked(logs, np.zeros((logs.size, 0), np.int16), rest)
    try:
        size = threshold_list(ranked, pool.table, alpha, method=method).size
    except RankedListTooShort:
        size = None
    if size is not None and math.isfinite(unit.scores.rank):
        return JudgedUnit(*about, unit.scores.rank <= size, False, size)
    known = math.isfinite(unit.scores.rank) or method.goes_on
    covered = known and bool(pool.table.contains(_values(unit.scores, method), alpha)[0])
    return JudgedUnit(*about, covered, size is None, size)


def judge_labelings(served: Served, scores: SequenceScores, *, method: str) -> tuple[bool | None, bool | None]:
    """Return whether the set holds the label, and whether one of the listed labelings is the label.

    None for integrated sets, which are no beginning of the ranked list, and for those of a method that only a later
    release knows, unless the threshold is infinite.
    """
    chosen = known_method(method)
    if chosen is None or not chosen.makes_heads:
        return (True if math.isinf(served.tau) and served.tau > 0 else None), None
    shown = scores.rank <= served.shown
    if math.isinf(served.tau) and served.tau > 0:
        return True, shown
    if served.set_size is not None and math.isfinite(scores.rank):
        return scores.rank <= served.set_size, shown
    # The set was too long to list, or the label too far down to have a rank: its own score decides, or nothing does.
    known = math.isfinite(scores.rank) or chosen.goes_on
    return (known and not chosen.needs_tuning and _score(scores, chosen) <= served.tau), shown


def _score(scores: SequenceScores, method: Method) -> float:
    """Return how strange the label is by a method with one score."""
    return math.inf if method.is_pair else float(_values(scores, method)[0])


def _values(scores: SequenceScores, method: Method) -> Floats:
    rank = int(scores.rank) if math.isfinite(scores.rank) else 0
    return method.scores(Ranks(np.array([-scores.nll]), np.array([rank]), np.array([scores.cumulative])))


def judge_classes(entities: Sequence[EntityRow], calibration: Calibration, *, alpha: str) -> dict[str, tuple[int, int]]:
    """Return, by class, how many entities the label has and how many of them were in their span's set (METHODS 6.5).

    Every true entity counts, also of spans that were not shown; classes without a threshold have no set.
    """
    thresholds = calibration.thresholds
    fallback = None if calibration.fallback is None else calibration.fallback.thresholds
    pools = label_pools(thresholds, fallback)
    counts: dict[str, tuple[int, int]] = {}
    for name, pool in pools.items():
        mine = [row for row in entities if row.label == name]
        if name == OUTSIDE or not mine or not pool.calibrated:
            continue
        scored = SpanScores(
            np.array([row.probability for row in mine]),
            np.array([row.cumulative for row in mine]),
            np.array([row.class_rank if math.isfinite(row.class_rank) else 0 for row in mine], dtype=np.int64),
        )
        covered = pool.table.contains(scored.scores(thresholds.entity_method.name), alpha)
        counts[name] = (len(mine), int(covered.sum()))
    return counts


def flagged(listed: RankedList, calibration: Calibration, *, alpha: str) -> list[tuple[int, int]]:
    """Return the spans that were marked as doubtful (METHODS 6.4), in characters."""
    if not listed.candidates or not listed.labelings:
        return []
    thresholds = calibration.thresholds
    if listed.classes != thresholds.classes:
        return []
    fallback = None if calibration.fallback is None else calibration.fallback.thresholds
    pools = label_pools(thresholds, fallback)
    best = {(span.start, span.end): listed.classes.index(span.label) for span in listed.labelings[0]}
    listed_all = with_outside(np.array([each.probabilities for each in listed.candidates], dtype=np.float64))
    starts = np.array([each.start for each in listed.candidates], dtype=np.int64)
    ends = np.array([each.end for each in listed.candidates], dtype=np.int64)
    kept = Candidates(starts, ends, listed_all).above(thresholds.entity_method.p_min, extra=best)
    probabilities = kept.probabilities
    scores = score_spans(probabilities).scores(thresholds.entity_method.name)
    names = (*listed.classes, OUTSIDE)
    members = [
        pools[name].table.contains(scores[:, i], alpha) if pools[name].calibrated else None
        for i, name in enumerate(names)
    ]
    _, doubtful = flag_spans(
        kept.starts, kept.ends, sets=label_members(scores, members), best=[best.get(each) for each in kept.keys]
    )
    return [kept.keys[i] for i in np.flatnonzero(doubtful).tolist()]


def _labels_at(spans: Iterable[TextSpan]) -> dict[tuple[int, int], set[str]]:
    """Return the labels of each place in a text."""
    labels: dict[tuple[int, int], set[str]] = {}
    for start, end, label in spans:
        labels.setdefault((start, end), set()).add(label)
    return labels


def _fate(proposed: AbstractSet[str], confirmed: AbstractSet[str]) -> str:
    """Say what became of a flagged span: `kept`, `relabelled`, `removed`, `added`, or `left` as no entity."""
    if proposed:
        return KEPT if proposed & confirmed else RELABELLED if confirmed else REMOVED
    return ADDED if confirmed else LEFT
