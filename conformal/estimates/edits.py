"""What people did to what was served: kept, relabelled, moved, deleted, added (METHODS 14.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

CharSpan = tuple[int, int, str]
Fits = Callable[[CharSpan, CharSpan], bool]


@dataclass(frozen=True)
class Edits:
    """How many spans were kept as they were, relabelled in place, moved, deleted and added.

    `moved`: one span became another that overlaps it, whatever its label; each stands for one served span.
    """

    kept: int = 0
    relabelled: int = 0
    moved: int = 0
    deleted: int = 0
    added: int = 0

    def __add__(self, other: Edits) -> Edits:
        return Edits(
            self.kept + other.kept,
            self.relabelled + other.relabelled,
            self.moved + other.moved,
            self.deleted + other.deleted,
            self.added + other.added,
        )

    @property
    def served(self) -> int:
        """Spans that were served."""
        return self.kept + self.relabelled + self.moved + self.deleted

    @property
    def submitted(self) -> int:
        """Spans that were submitted."""
        return self.kept + self.relabelled + self.moved + self.added

    @property
    def actions(self) -> int:
        """What a person had to do."""
        return self.relabelled + self.moved + self.deleted + self.added


def compare_spans(served: Iterable[CharSpan], submitted: Iterable[CharSpan]) -> Edits:
    """Say what became of the served spans of one task; a span given twice counts once.

    >>> compare_spans([(0, 4, "PER"), (5, 9, "LOC"), (20, 22, "ORG")], [(0, 4, "PER"), (5, 12, "LOC"), (30, 33, "ORG")])
    Edits(kept=1, relabelled=0, moved=1, deleted=1, added=1)
    """
    before, after = {_plain(each) for each in served}, {_plain(each) for each in submitted}
    kept = before & after
    old, new = sorted(before - kept), sorted(after - kept)
    relabelled = pair_up(old, new, lambda a, b: a[:2] == b[:2])
    old = [each for i, each in enumerate(old) if i not in relabelled]
    taken = set(relabelled.values())
    new = [each for i, each in enumerate(new) if i not in taken]
    # A span that keeps its label is the likelier partner.
    same = pair_up(old, new, lambda a, b: a[2] == b[2] and overlap(a, b))
    rest_old = [each for i, each in enumerate(old) if i not in same]
    taken = set(same.values())
    rest_new = [each for i, each in enumerate(new) if i not in taken]
    other = pair_up(rest_old, rest_new, overlap)
    moved = len(same) + len(other)
    return Edits(len(kept), len(relabelled), moved, len(old) - moved, len(new) - moved)


def count_edits(tasks: Iterable[tuple[Iterable[CharSpan], Iterable[CharSpan]]]) -> Edits:
    """Add up what became of (served, submitted) spans over tasks."""
    total = Edits()
    for served, submitted in tasks:
        total += compare_spans(served, submitted)
    return total


def overlap(a: CharSpan, b: CharSpan) -> bool:
    """Whether two spans share a character."""
    return a[0] < b[1] and b[0] < a[1]


def pair_up(left: Sequence[CharSpan], right: Sequence[CharSpan], fits: Fits) -> dict[int, int]:
    """Pair each of `left` with at most one of `right` that fits, the first free one in order."""
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for i, one in enumerate(left):
        for j, other in enumerate(right):
            if j not in taken and fits(one, other):
                pairs[i] = j
                taken.add(j)
                break
    return pairs


def _plain(span: CharSpan) -> CharSpan:
    start, end, label = span
    return int(start), int(end), label
