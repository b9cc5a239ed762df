"""How the set that an annotator had in view did on the label that came back. Pure: no database, no model.

A full set holds the label if its score is at most the set's threshold (METHODS 3.4). Sets of all methods but the
integrated ones are the beginning of the ranked list, so where the label's rank is known that decides; a rank is the
same however often the text is scored, while the last bit of a probability need not be. A span's set is made again
from the candidates that were stored with the served set.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backend.predictor import Calibration
from backend.store.ranked import RankedList, unpack_ranked
from backend.store.types import EntityRow, SequenceScores, Served, TextSpan
from conformal.flags import flag_spans
from conformal.labels import OUTSIDE
from conformal.prediction import label_pools
from conformal.subsequence import SpanScores, label_members, score_spans, with_outside

KEPT, RELABELLED, REMOVED, ADDED, LEFT = "kept", "relabelled", "removed", "added", "left"


@dataclass(frozen=True)
class Finding:
    """What is known of one set and one label; see `store.judgements.Judged`."""

    covered: bool | None
    shown: bool | None
    accepted: bool
    classes: dict[str, tuple[int, int]]
    flags: dict[str, int]


def judge_set(
    served: Served,
    scores: SequenceScores,
    *,
    spans: Sequence[TextSpan],
    entities: Sequence[EntityRow],
    method: str,
    calibration: Calibration | None,
    alpha: str,
) -> Finding:
    """Judge a served set by the label `spans`, whose scores under the set's model are `scores` and `entities`.

    Args:
        method: of the set's thresholds.
        calibration: what served; None where it is not at hand, then nothing is said about classes and flags.
    """
    covered, shown = judge_labelings(served, scores, method=method)
    listed = unpack_ranked(served.ranked)
    best = set(listed.labelings[0]) if listed.labelings else set()
    classes: dict[str, tuple[int, int]] = {}
    flags: dict[str, int] = {}
    if calibration is not None and not calibration.thresholds.entity_method.needs_rank:
        classes = judge_classes(entities, calibration, alpha=alpha)
        flags = dict(Counter(_fate(span, best, set(spans)) for span in flagged(listed, calibration, alpha=alpha)))
    return Finding(covered, shown, scores.rank <= 1, classes, flags)


def judge_labelings(served: Served, scores: SequenceScores, *, method: str) -> tuple[bool | None, bool | None]:
    """Return whether the set holds the label, and whether one of the listed labelings is the label.

    None for integrated sets, which are no beginning of the ranked list, unless the threshold is infinite.
    """
    if method.startswith("integrated"):
        return (True if math.isinf(served.tau) and served.tau > 0 else None), None
    shown = scores.rank <= served.shown
    if math.isinf(served.tau) and served.tau > 0:
        return True, shown
    if served.set_size is not None and math.isfinite(scores.rank):
        return scores.rank <= served.set_size, shown
    # The set was too long to list, or the label too far down to have a rank: only nc1 can tell.
    return (scores.nll <= served.tau if method == "nc1" else False), shown


def judge_classes(entities: Sequence[EntityRow], calibration: Calibration, *, alpha: str) -> dict[str, tuple[int, int]]:
    """Return, by class, how many entities the label has and how many of them were in their span's set (METHODS 6.5).

    Every true entity counts, also of spans that were not shown; classes without a threshold have no set.
    """
    thresholds = calibration.thresholds
    fallback = None if calibration.fallback is None else calibration.fallback.thresholds
    pools = label_pools(thresholds, fallback)
    found: dict[str, tuple[int, int]] = {}
    for name, pool in pools.items():
        mine = [row for row in entities if row.label == name]
        if name == OUTSIDE or not mine or not pool.calibrated:
            continue
        scored = SpanScores(
            np.array([row.probability for row in mine]),
            np.array([row.cumulative for row in mine]),
            np.array([row.place if math.isfinite(row.place) else 0 for row in mine], dtype=np.int64),
        )
        held = pool.table.contains(scored.scores(thresholds.entity_method.name), alpha)
        found[name] = (len(mine), int(held.sum()))
    return found


def flagged(listed: RankedList, calibration: Calibration, *, alpha: str) -> list[tuple[int, int]]:
    """Return the spans that were marked as doubtful (METHODS 6.4), in characters."""
    if not listed.candidates or not listed.labelings:
        return []
    thresholds = calibration.thresholds
    if listed.classes != thresholds.classes:
        return []
    fallback = None if calibration.fallback is None else calibration.fallback.thresholds
    pools = label_pools(thresholds, fallback)
    probabilities = with_outside(np.array([each.probabilities for each in listed.candidates], dtype=np.float64))
    scores = score_spans(probabilities).scores(thresholds.entity_method.name)
    names = (*listed.classes, OUTSIDE)
    members = [
        pools[name].table.contains(scores[:, i], alpha) if pools[name].calibrated else None
        for i, name in enumerate(names)
    ]
    best = {(span.start, span.end): listed.classes.index(span.label) for span in listed.labelings[0]}
    places = [(each.start, each.end) for each in listed.candidates]
    _, doubtful = flag_spans(
        [start for start, _ in places],
        [end for _, end in places],
        sets=label_members(scores, members),
        best=[best.get(place) for place in places],
    )
    return [places[i] for i in np.flatnonzero(doubtful).tolist()]


def _fate(place: tuple[int, int], best: set[TextSpan], label: set[TextSpan]) -> str:
    """Say what became of a flagged span: `kept`, `relabelled`, `removed`, `added`, or `left` as no entity."""
    proposed = {span.label for span in best if (span.start, span.end) == place}
    confirmed = {span.label for span in label if (span.start, span.end) == place}
    if proposed:
        return KEPT if proposed & confirmed else RELABELLED if confirmed else REMOVED
    return ADDED if confirmed else LEFT
