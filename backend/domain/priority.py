"""What a look at a task is worth, and the priority that tasks are ordered by: one definition for all who order them."""

from __future__ import annotations

import math

from backend.domain.ranked import RankedText

FLAG = 0.1  # wrong spans that a flag stands for, beside those that the model itself expects
NOVELTY = 0.5  # the same for a text that is stranger than all that were labelled
FIRST = 0.01  # priorities below it belong to empty and open sets
REST = 0.01  # of errors expected where nothing is flagged: they only order tasks that are alike otherwise


def review_value(ranked: RankedText, *, flags: int = 0, novelty: float = 0.0) -> float:
    """Return what a look at a task is worth: `-log P` of its best labeling plus the spans expected to be wrong in it.

    A span of the best labeling is wrong with 1 - P_ent of its class, a candidate span that it leaves out with the
    summed P_ent of the classes (exact marginals). That is the model's word; `flags` (flagged spans) and `novelty` (1 -
    conformal p-value of the best labeling: how strange the text is beside those of its stratum) are that of the labels
    so far, and count as `FLAG` and `NOVELTY` wrong spans. The highest is looked at first: of the orders that were
    compared it finds most corrections early (docs/decisions/0014-review-queue.md). Of a document it is what all its
    sentences are worth. 0 without any list.

    >>> from backend.domain.ranked import Candidate, RankedList, one_unit
    >>> from backend.domain.records import TextSpan
    >>> span = TextSpan(0, 3, "PER")
    >>> spans = (Candidate(0, 3, (0.5,)), Candidate(5, 9, (0.25,)))
    >>> review_value(one_unit(RankedList(("PER",), (0.0,), ((span,),), exhausted=False, candidates=spans)))
    0.75
    """
    if not any(unit.ranked.labelings for unit in ranked.units):
        return 0.0
    best = {(span.start, span.end): ranked.classes.index(span.label) for span in ranked.best}
    wrong = FLAG * flags + NOVELTY * novelty
    for each in ranked.candidates:
        at = best.get((each.start, each.end))
        wrong += sum(each.probabilities) if at is None else 1.0 - each.probabilities[at]
    return wrong - min(0.0, ranked.log_probability)


def value_per_look(ranked: RankedText, *, level: float, places: int) -> float:
    """Return what a look is worth under flags that control risk: the errors expected at what is flagged, for each look.

    A task costs one look to open and one for each place. Errors expected elsewhere count little: nobody is sent there.
    Of the orders that were compared it finds most errors in the fewest looks (docs/decisions/0022-order-by-looks.md).

    >>> from backend.domain.ranked import Candidate, RankedList, one_unit
    >>> from backend.domain.records import TextSpan
    >>> span = TextSpan(0, 3, "PER")
    >>> spans = (Candidate(0, 3, (0.5,)), Candidate(5, 9, (0.25,)))
    >>> text = one_unit(RankedList(("PER",), (0.0,), ((span,),), exhausted=False, candidates=spans))
    >>> value_per_look(text, level=0.3, places=1)
    0.25125
    """
    if not any(unit.ranked.labelings for unit in ranked.units):
        return 0.0
    best = {(span.start, span.end): ranked.classes.index(span.label) for span in ranked.best}
    flagged = rest = 0.0
    for each in ranked.candidates:
        at = best.get((each.start, each.end))
        wrong = sum(each.probabilities) if at is None else 1.0 - each.probabilities[at]
        if wrong >= level:
            flagged += wrong
        else:
            rest += wrong
    return (flagged + REST * rest) / (1 + places)


def doubt_of(ranked: RankedText) -> float:
    """Return how doubtful the best labeling is: the probability that it has an error (METHODS 12.1).

    Of a text of several units, where that is nearly certain, the share of its entities that is expected to be wrong or
    missing instead.

    >>> from backend.domain.ranked import Candidate, RankedList, one_unit
    >>> from backend.domain.records import TextSpan
    >>> text = one_unit(RankedList(("PER",), (math.log(0.75),), ((TextSpan(0, 3, "PER"),),), exhausted=False))
    >>> round(doubt_of(text), 9)
    0.25
    """
    if len(ranked.units) <= 1:
        return -math.expm1(min(0.0, ranked.log_probability)) if ranked.units else 0.0
    best = {(span.start, span.end): ranked.classes.index(span.label) for span in ranked.best}
    missing = false = true = 0.0
    for each in ranked.candidates:
        entity = sum(each.probabilities)
        at = best.get((each.start, each.end))
        right = 0.0 if at is None else each.probabilities[at]
        true += entity
        missing += entity - right
        false += 0.0 if at is None else 1.0 - right
    return min(1.0, (missing + false) / max(1.0, true + false))


def goes_first(*, is_open: bool, set_size: int | None) -> bool:
    """Whether a task is looked at before all others: its set is empty or open, so thresholds say nothing about it."""
    return is_open or set_size == 0


def priority_of(value: float, *, first: bool) -> float:
    """Return the priority that tasks are ordered by, the lowest looked at first: within 0..1, falling in `value`.

    One definition for the predictions that Label Studio gets, for the review queue, and for what stands for blind
    tasks, so that all three are in one order. Tasks that go first get `FIRST` at most, all others at least that.
    1 / (1 + value) tells values of any size apart; exp(-value) would be 0 for every long text.

    >>> priority_of(0.0, first=False), priority_of(0.0, first=True), priority_of(float("inf"), first=False)
    (1.0, 0.01, 0.01)
    >>> priority_of(60.0, first=False) > priority_of(61.0, first=False) > priority_of(0.1, first=True) > 0
    True
    """
    certainty = 1.0 / (1.0 + max(0.0, value))
    return FIRST * certainty if first else FIRST + (1.0 - FIRST) * certainty


def value_of(priority: float) -> float:
    """Return the value that `priority_of` made this priority of.

    >>> round(value_of(priority_of(2.5, first=True)), 9), round(value_of(priority_of(0.3, first=False)), 9)
    (2.5, 0.3)
    """
    certainty = priority / FIRST if priority <= FIRST else (priority - FIRST) / (1.0 - FIRST)
    return 1.0 / certainty - 1.0 if certainty > 0.0 else math.inf
