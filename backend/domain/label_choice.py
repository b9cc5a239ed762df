"""Which of a task's annotations is its label: a pure function of the set of annotations (METHODS 8.3, 8.4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from backend.domain.records import AnnotationRecord, TextSpan

MAJORITY = "majority"

SKIPPED = "skipped"
BULK = "bulk"
ACCEPTED = "accepted"  # by `surespan accept`: nobody looked (METHODS 12.4)
WITHDRAWN = "withdrawn"


@dataclass(frozen=True)
class Choice:
    """The annotation that counts, how many of the eligible ones agree with it, and why it is not evidence."""

    annotation: AnnotationRecord | None
    spans: tuple[TextSpan, ...] | None
    exclusion: str | None
    votes: int
    voters: int


def choose_label(annotations: Iterable[AnnotationRecord]) -> Choice:
    """Choose the label of a task: ground truth, else the most frequent span set, ties to the lowest annotation id.

    The order of the annotations does not matter. Skips, bulk copies of predictions and what acceptance made do not
    vote, the latter also when somebody edited it (METHODS 12.4); where there is nothing else, the label is not evidence
    and says so. Nothing is dropped for its content (METHODS 8.3).

    >>> from datetime import UTC, datetime
    >>> when = datetime(2026, 1, 1, tzinfo=UTC)
    >>> per, loc = (TextSpan(0, 3, "PER"),), (TextSpan(0, 3, "LOC"),)
    >>> votes = [AnnotationRecord(i, when, spans) for i, spans in enumerate([loc, per, per])]
    >>> choose_label(votes).annotation.annotation_id, choose_label(votes).votes
    (1, 2)
    """
    everything = list(annotations)
    people = [each for each in everything if not (each.was_cancelled or each.bulk or each.accepted)]
    if people:
        truths = [each for each in people if each.ground_truth]
        return _most_frequent(truths or people, exclusion=None)
    for reason, copies in (
        (ACCEPTED, [each for each in everything if each.accepted and not each.was_cancelled]),
        (BULK, [each for each in everything if not each.was_cancelled]),
    ):
        if copies:
            return _most_frequent(copies, exclusion=reason)
    if everything:
        first = min(everything, key=lambda each: each.annotation_id)
        return Choice(first, None, SKIPPED, 0, len(everything))
    return Choice(None, None, WITHDRAWN, 0, 0)


def _most_frequent(annotations: list[AnnotationRecord], *, exclusion: str | None) -> Choice:
    groups: dict[frozenset[TextSpan], list[AnnotationRecord]] = defaultdict(list)
    for each in annotations:
        groups[frozenset(each.spans)].append(each)
    best = min(groups.values(), key=lambda group: (-len(group), min(each.annotation_id for each in group)))
    chosen = min(best, key=lambda each: each.annotation_id)
    return Choice(chosen, tuple(sorted(set(chosen.spans))), exclusion, len(best), len(annotations))
