"""What the flags in view left behind, by the label that came back (METHODS 11.5). Pure: no database, no model."""

from __future__ import annotations

import numpy as np

from backend.domain.ranked import RankedList, RankedText
from backend.domain.records import ErrorRow
from backend.prediction.calibration import Calibration
from backend.store.judgements import JudgedRisk
from conformal.quantile import Floats
from conformal.risk import FLOOR, ErrorRows, TaskErrors, shown_marks, span_doubts
from conformal.strata import EMPTY, SEEN
from conformal.subsequence import with_outside


def language_of(listed: RankedText, stratum: str) -> str | None:
    """Return the language of a served text; None of those without words, and of training texts, which have no pool."""
    first = (listed.units[0].stratum if listed.units else "") or stratum
    return None if first in (EMPTY, SEEN) else first.split("/")[0]


def judge_risk(
    listed: RankedText, errors: ErrorRow | None, *, calibration: Calibration, stratum: str
) -> JudgedRisk | None:
    """Return the loss of a task at the level that was in use: the share of its entities left wrong or missing.

    `errors` are those of the same model's best labeling, as they were scored: watched is the number that levels are
    fitted on. None where flags controlled no risk, where nothing was said and nothing is true (METHODS 11.1), and where
    the list of an earlier release does not reach down to the floor of flags, so that others were shown.
    """
    language = language_of(listed, stratum)
    flags = None if language is None else calibration.flags_for(language)
    if flags is None or errors is None or listed.floor > FLOOR or not (errors.true_spans or errors.best_spans):
        return None
    task = TaskErrors(errors.true_spans, errors.best_spans, errors.missing, errors.false)
    (loss,) = ErrorRows.of([task]).losses(flags.level).tolist()
    return JudgedRisk(flags.pool, flags.n, flags.guarantee.value, flags.max_error, loss)


def list_doubts(listed: RankedList) -> tuple[Floats, list[int | None]]:
    """Return the doubt of each candidate of a unit, and the class that the best labeling gives it."""
    best = {(span.start, span.end): listed.classes.index(span.label) for span in listed.labelings[0]}
    said = [best.get((each.start, each.end)) for each in listed.candidates]
    probabilities = np.array([each.probabilities for each in listed.candidates], dtype=np.float64)
    return span_doubts(with_outside(probabilities.reshape(len(said), len(listed.classes))), said), said


def risk_flags(listed: RankedList, level: float) -> list[tuple[int, int]]:
    """Return the spans of a unit that were marked under flags of this level, in characters."""
    if not listed.candidates or not listed.labelings:
        return []
    doubts, said = list_doubts(listed)
    at = np.flatnonzero(doubts >= level)
    bounds = [(listed.candidates[i].start, listed.candidates[i].end) for i in at.tolist()]
    in_best = [said[i] is not None for i in at.tolist()]
    shown = shown_marks([start for start, _ in bounds], [end for _, end in bounds], doubts[at], in_best)
    return [each for each, kept in zip(bounds, shown.tolist(), strict=True) if kept]
