"""How many actions an annotator needs to turn one labeling into another (METHODS 9)."""

from __future__ import annotations

from collections.abc import Sequence

from conformal.labels import Span


def count_actions(given: Sequence[Span], wanted: Sequence[Span]) -> int:
    """Return the number of adds, deletes, relabels and resizes from `given` to `wanted`, each counted once.

    Equal spans cost nothing, a wrong class one relabel; of what is left, overlapping spans are paired in text order,
    one resize each (and one relabel if the class differs too); the rest is added or deleted.

    >>> count_actions([Span(0, 1, "PER"), Span(3, 5, "LOC")], [Span(0, 1, "ORG"), Span(3, 6, "LOC"), Span(8, 9, "PER")])
    3
    """
    mine = {(span.start, span.end): span.label for span in given}
    target = {(span.start, span.end): span.label for span in wanted}
    same = mine.keys() & target.keys()
    total = sum(mine[key] != target[key] for key in same)
    left = sorted(set(mine) - same)
    right = sorted(set(target) - same)
    used: set[tuple[int, int]] = set()
    deleted = 0
    for span in left:
        partner = next(
            (other for other in right if other not in used and span[0] < other[1] and other[0] < span[1]), None
        )
        if partner is None:
            deleted += 1
            continue
        used.add(partner)
        total += 1 + (mine[span] != target[partner])
    return total + deleted + len(right) - len(used)
