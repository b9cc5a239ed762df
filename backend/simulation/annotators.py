"""Simulated people: what they do to a task that they open, and how long it takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from backend.domain.records import TextSpan
from conformal.risk.places import place_numbers


@dataclass(frozen=True)
class Costs:
    """Seconds that each thing takes, the same under every policy."""

    opening: float = 4.0
    word: float = 0.25  # reading one
    place: float = 2.0  # judging an amber one; a place of many words takes as long as reading it
    correction: float = 3.0  # giving a span another label, or deleting it
    span: float = 5.0  # marking a new one


@dataclass(frozen=True)
class Habits:
    """How people work: with which chance they do what is to be done at a place, and which share they stamp.

    `accuracy` is the chance that an entity is marked where nothing is shown, and that an error that comes into view is
    put right. `stamping` is the share of tasks with a prelabel that are submitted as they are, unread.
    """

    accuracy: float = 1.0
    stamping: float = 0.0


class Look(StrEnum):
    """What people look at in a task with a prelabel."""

    EVERYTHING = "everything"
    AMBER = "amber"


@dataclass(frozen=True)
class Shown:
    """What the editor shows of a task: the prelabel's spans and the amber ones.

    `prelabelled` is False where nothing is suggested: blind tasks, and those whose labels no model knows. `whole` says
    that nothing is promised about what is not amber, so that everything is to be checked.
    """

    prelabelled: bool = False
    spans: tuple[TextSpan, ...] = ()
    amber: tuple[tuple[int, int], ...] = ()
    whole: bool = False


@dataclass(frozen=True)
class Done:
    """What became of a task: its labels, the seconds it took, and the amber places that were judged."""

    spans: tuple[TextSpan, ...]
    seconds: float
    places: int = 0


def work_on(
    text: str,
    gold: Sequence[TextSpan],
    shown: Shown,
    *,
    look: Look,
    habits: Habits,
    costs: Costs,
    rng: np.random.Generator,
) -> Done:
    """Let somebody label a task.

    Where nothing is suggested they read it and mark what they find. With a prelabel they read everything, or judge the
    amber places alone: an error comes into view there if it shares a character with one (METHODS 11.1).
    """
    if not shown.prelabelled:
        marked = tuple(span for span in gold if rng.random() < habits.accuracy)
        return Done(marked, costs.opening + costs.word * count_words(text) + costs.span * len(marked))
    if rng.random() < habits.stamping:
        return Done(shown.spans, costs.opening)
    places = amber_places(shown.amber)
    if look is Look.EVERYTHING or shown.whole:
        seconds, places, seen = costs.word * count_words(text), [], [(0, len(text))]
    else:
        seconds = sum(max(costs.place, costs.word * count_words(text[start:end])) for start, end in places)
        seen = places
    spans, correcting = _correct(gold, shown.spans, seen, habits=habits, costs=costs, rng=rng)
    return Done(spans, costs.opening + seconds + correcting, len(places))


def by_hand(text: str, gold: Sequence[TextSpan], costs: Costs) -> float:
    """Return the seconds that a task takes where nothing is suggested and nothing overlooked."""
    return costs.opening + costs.word * count_words(text) + costs.span * len(gold)


def count_words(text: str) -> int:
    """Return how many words there are to read.

    >>> count_words("It rained in Rome .")
    5
    """
    return len(text.split())


def amber_places(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what overlapping amber spans cover together (METHODS 11.6).

    >>> amber_places([(5, 9), (0, 3), (2, 4)])
    [(0, 4), (5, 9)]
    """
    ordered = sorted(spans)
    if not ordered:
        return []
    numbers = place_numbers([start for start, _ in ordered], [end for _, end in ordered]).tolist()
    places: dict[int, tuple[int, int]] = {}
    for number, (start, end) in zip(numbers, ordered, strict=True):
        first, last = places.get(number, (start, end))
        places[number] = (min(first, start), max(last, end))
    return sorted(places.values())


def _correct(
    gold: Sequence[TextSpan],
    given: Sequence[TextSpan],
    seen: Sequence[tuple[int, int]],
    *,
    habits: Habits,
    costs: Costs,
    rng: np.random.Generator,
) -> tuple[tuple[TextSpan, ...], float]:
    """Put right what is in view: a wrong label costs one correction, a wrong span one and its new one its marking."""
    final, seconds = set(given), 0.0
    missing = {(span.start, span.end): span for span in sorted(set(gold) - set(given))}
    for span in sorted(set(given) - set(gold)):
        other = missing.pop((span.start, span.end), None)  # the same characters with another label
        if _in_view(span, seen) and rng.random() < habits.accuracy:
            final.discard(span)
            final |= set() if other is None else {other}
            seconds += costs.correction
    for span in missing.values():
        # Nobody marks over what they take for right.
        free = not any(span.start < each.end and each.start < span.end for each in final)
        if free and _in_view(span, seen) and rng.random() < habits.accuracy:
            final.add(span)
            seconds += costs.span
    return tuple(sorted(final)), seconds


def _in_view(span: TextSpan, seen: Sequence[tuple[int, int]]) -> bool:
    return any(span.start < end and start < span.end for start, end in seen)
