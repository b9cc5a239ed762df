"""How far annotators of the same tasks agree: on exact spans, on overlapping ones, and word by word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from conformal.errors import InvalidLabels
from conformal.estimates.edits import CharSpan, overlap, pair_up

OUTSIDE = "O"
Word = tuple[int, int]


@dataclass(frozen=True)
class Agreement:
    """Over all pairs of annotators of a task: F1 of exact spans with their label, and of overlapping ones.

    `alpha` is Krippendorff's, nominal, over words; None where every word has one label. F1 is None without any span.
    """

    tasks: int
    pairs: int
    exact: float | None
    overlapping: float | None
    alpha: float | None


def agree(tasks: Iterable[tuple[Sequence[Word], Sequence[Sequence[CharSpan]]]]) -> Agreement:
    """Compare the annotations of tasks that several people labelled; others are left out.

    Args:
        tasks: for each its words (start, end) and the spans of each of its annotators.

    >>> words = [(0, 4), (5, 9), (10, 14)]
    >>> agree([(words, [[(0, 4, "PER")], [(0, 9, "PER")]])])
    Agreement(tasks=1, pairs=1, exact=0.0, overlapping=1.0, alpha=0.4444444444444444)
    """
    count = pairs = exact = near = spans = 0
    units: list[Sequence[str]] = []
    for words, given in tasks:
        if len(given) < 2:
            continue
        count += 1
        distinct = [sorted(set(each)) for each in given]
        units.extend(zip(*(_word_labels(words, each) for each in distinct), strict=True))
        for one, other in combinations(distinct, 2):
            pairs += 1
            spans += len(one) + len(other)
            same = set(one) & set(other)
            exact += len(same)
            left, right = [each for each in one if each not in same], [each for each in other if each not in same]
            near += len(same) + len(pair_up(left, right, lambda a, b: a[2] == b[2] and overlap(a, b)))
    return Agreement(
        tasks=count,
        pairs=pairs,
        exact=2 * exact / spans if spans else None,
        overlapping=2 * near / spans if spans else None,
        alpha=krippendorff_alpha(units),
    )


def krippendorff_alpha(units: Iterable[Sequence[str]]) -> float | None:
    """Return Krippendorff's alpha of nominal values: 1 is agreement, 0 what chance would give.

    units: for each its values, one of each person who gave one; units with fewer than two say nothing. None where
    nothing could disagree: no unit counts, or all values are alike.

    >>> krippendorff_alpha([["a", "a"], ["b", "b"]]), krippendorff_alpha([["a", "a"]]) is None
    (1.0, True)
    """
    totals: Counter[str] = Counter()
    apart = 0.0  # observed disagreements, each unit with the weight of its values
    for values in units:
        size = len(values)
        if size < 2:
            continue
        counts = Counter(values)
        totals.update(counts)
        apart += (size * size - sum(many * many for many in counts.values())) / (size - 1)
    n = totals.total()
    by_chance = (n * n - sum(many * many for many in totals.values())) / (n - 1) if n > 1 else 0.0
    return 1.0 - apart / by_chance if by_chance else None


def _word_labels(words: Sequence[Word], spans: Sequence[CharSpan]) -> list[str]:
    """Return the label of each word: of the first span that touches it."""
    labels = [OUTSIDE] * len(words)
    for start, end, label in spans:
        if end <= start:
            raise InvalidLabels(f"expected spans that end after they start, got ({start}, {end})")
        for i, (first, last) in enumerate(words):
            if labels[i] == OUTSIDE and first < end and start < last:
                labels[i] = label
    return labels
