"""A text as units: its chain cut at sentence boundaries, and the sets of its units joined again (METHODS 10).

The chain is a product over sentences, so each of them is a chain by itself, with exact probabilities of its own. Each
unit has a set; the text's set is their product, which nobody needs to write out: its size is a product of numbers, and
its best members are found by merging the units' lists.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise

from conformal.errors import InvalidArgument
from conformal.labels import Span
from conformal.prediction import PredictionSet, RankedLabeling
from conformal.span_sets import SpanSet
from conformal.trellis import Potentials

SEVERAL = "several"  # stands for a stratum or a pool where the units of a text have more than one

Bounds = tuple[int, int]
Choice = tuple[tuple[int, int], ...]  # (list, position) where it is not the list's first, by list


def unit_bounds(length: int, boundaries: Sequence[int]) -> tuple[Bounds, ...]:
    """Return the token ranges of a text's units; a text without tokens is one empty unit.

    >>> unit_bounds(7, [3, 4]), unit_bounds(0, [])
    (((0, 3), (3, 4), (4, 7)), ((0, 0),))
    """
    ends = [0, *boundaries, length] if length else [0, 0]
    return tuple(pairwise(ends))


def cut_units(potentials: Potentials) -> tuple[Potentials, ...]:
    """Return the chain of each sentence: `P(y|x)` is the product of theirs, exactly (METHODS 10.1)."""
    if not potentials.boundaries:
        return (potentials,)
    bounds = unit_bounds(potentials.length, potentials.boundaries)
    return tuple(potentials.chain.potentials(potentials.emissions[start:end]) for start, end in bounds)


def best_products(lists: Sequence[Sequence[float]]) -> Iterator[tuple[float, Choice]]:
    """Yield combinations of one element of each list, largest sum first: the sum, and what is not a list's first.

    Every list falls and has at least one element. Lazy: each combination costs a few steps in a heap, however many
    lists there are, beyond sorting the lists by what their second element gives away.

    >>> [(round(total, 1), choice) for total, choice in islice(best_products([[0, -3], [0, -1, -2]]), 4)]
    [(0.0, ()), (-1.0, ((1, 1),)), (-2.0, ((1, 2),)), (-3.0, ((0, 1),))]
    """
    if any(not values for values in lists):
        raise InvalidArgument("expected at least one element in every list, got an empty one")
    yield math.fsum(values[0] for values in lists), ()
    order = sorted((i for i, values in enumerate(lists) if len(values) > 1), key=lambda i: lists[i][0] - lists[i][1])
    base = math.fsum(values[0] for values in lists)
    if not order:
        return
    # A state is a choice in the order above, by its last list. It grows from its parent in one of three ways: a
    # further step down its last list, a first step down the next list, or that instead of the first step down the last.
    # None of them raises the sum, and every choice has one parent.
    heap: list[tuple[float, tuple[tuple[int, int], ...]]] = [(_loss(lists[order[0]], 1), ((0, 1),))]
    while heap:
        loss, state = heapq.heappop(heap)
        yield base - loss, tuple(sorted((order[at], position) for at, position in state))
        *before, (at, position) = state
        here = lists[order[at]]
        if position + 1 < len(here):
            more = loss - _loss(here, position) + _loss(here, position + 1)
            heapq.heappush(heap, (max(more, loss), (*before, (at, position + 1))))
        if at + 1 < len(order):
            step = _loss(lists[order[at + 1]], 1)
            heapq.heappush(heap, (loss + step, (*state, (at + 1, 1))))
            if position == 1:
                heapq.heappush(heap, (max(loss - _loss(here, 1) + step, loss), (*before, (at + 1, 1))))


def _loss(values: Sequence[float], position: int) -> float:
    return values[0] - values[position]


@dataclass(frozen=True)
class TextSet:
    """The sets of a text's units, and their product (METHODS 10.4). No promise is made for the product.

    `bounds` are the units' token ranges. `labelings` are of the whole text: the likeliest, then the best members of the
    product; the p-value of one is the least of its units'. What says something about all units is the worst of them.
    """

    bounds: tuple[Bounds, ...]
    units: tuple[PredictionSet, ...]
    labelings: tuple[RankedLabeling, ...]

    @property
    def alpha(self) -> str:
        """The level."""
        return self.units[0].alpha

    @property
    def stratum(self) -> str:
        """The stratum of all units, or `several`."""
        return _common(unit.stratum for unit in self.units)

    @property
    def pool(self) -> str:
        """The pool that answers for all units, or `several`."""
        return _common(unit.pool for unit in self.units)

    @property
    def n(self) -> int:
        """The least number of calibration tasks behind a unit's set."""
        return min(unit.n for unit in self.units)

    @property
    def threshold(self) -> float:
        """The greatest threshold of a unit."""
        return max(unit.threshold for unit in self.units)

    @property
    def unreachable(self) -> float:
        """The greatest share of labels that the model cannot express, in a pool that answers here."""
        return max(unit.unreachable for unit in self.units)

    @property
    def open(self) -> bool:
        """Whether the set of any unit is open."""
        return any(unit.open for unit in self.units)

    @property
    def empty(self) -> bool:
        """Whether the set of any unit is empty; it shows its likeliest labeling all the same (METHODS 3.5)."""
        return any(unit.empty for unit in self.units)

    @cached_property
    def set_size(self) -> int | None:
        """How many labelings the product has, None when open; 0 for a text of one unit whose set is empty."""
        if self.open:
            return None
        if len(self.units) == 1:
            return self.units[0].set_size
        return math.prod(max(1, unit.set_size or 0) for unit in self.units)

    @cached_property
    def set_size_log10(self) -> float | None:
        """The same as a power of ten, which stays small; None when open or empty."""
        return None if not self.set_size else _log10(self.set_size)

    @property
    def spans(self) -> tuple[SpanSet, ...]:
        """The spans of all units, in tokens of the text."""
        return tuple(
            span if not start else replace(span, start=span.start + start, end=span.end + start)
            for (start, _), unit in zip(self.bounds, self.units, strict=True)
            for span in unit.spans
        )

    @property
    def uncalibrated(self) -> tuple[str, ...]:
        """Classes (or "O") with too few labels: the same for all units."""
        return self.units[0].uncalibrated

    @property
    def open_labels(self) -> tuple[str, ...]:
        """Classes so uncertain that spans which are no candidates could carry them: the same for all units."""
        return self.units[0].open_labels

    @property
    def borrowed(self) -> bool:
        """Whether the set of any unit rests on the fallback's rows."""
        return any(unit.borrowed for unit in self.units)

    @property
    def borrowed_labels(self) -> tuple[str, ...]:
        """Classes (or "O") that rest on the fallback's rows: the same for all units."""
        return self.units[0].borrowed_labels


def join_units(bounds: Sequence[Bounds], units: Sequence[PredictionSet], *, max_shown: int = 5) -> TextSet:
    """Join the sets of a text's units: the likeliest labeling, then the `max_shown` best members of the product.

    A unit whose set is empty takes part with its likeliest labeling.
    """
    if len(bounds) != len(units) or not units:
        raise InvalidArgument(f"expected the sets of {len(bounds)} units, got {len(units)}")
    if len(units) == 1 and bounds[0][0] == 0:
        return TextSet(tuple(bounds), tuple(units), units[0].labelings[:max_shown])
    choices = [[each for each in unit.labelings if each.member] or [unit.labelings[0]] for unit in units]
    best = [unit.labelings[0] for unit in units]
    chosen = [best]
    for _, choice in islice(best_products([[each.log_probability for each in unit] for unit in choices]), max_shown):
        picked = [unit[0] for unit in choices]
        for at, position in choice:
            picked[at] = choices[at][position]
        if picked != best:
            chosen.append(picked)
    labelings = tuple(_joined(bounds, parts, rank) for rank, parts in enumerate(chosen[:max_shown], start=1))
    return TextSet(tuple(bounds), tuple(units), labelings)


def _joined(bounds: Sequence[Bounds], parts: Sequence[RankedLabeling], rank: int) -> RankedLabeling:
    return RankedLabeling(
        rank=rank,
        labels=tuple(label for part in parts for label in part.labels),
        spans=tuple(
            Span(span.start + start, span.end + start, span.label)
            for (start, _), part in zip(bounds, parts, strict=True)
            for span in part.spans
        ),
        log_probability=math.fsum(part.log_probability for part in parts),
        p_value=min(part.p_value for part in parts),
        member=all(part.member for part in parts),
    )


def _common(values: Iterator[str]) -> str:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else SEVERAL


def _log10(size: int) -> float:
    """Return the logarithm of a whole number of any length."""
    digits = max(0, size.bit_length() - 900)
    return math.log10(size >> digits) + digits * math.log10(2)
