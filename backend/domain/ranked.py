"""Labelings of a text in characters: one of a set, and the ranked lists of its units that sets are cut from."""

from __future__ import annotations

import math
from dataclasses import dataclass

from backend.domain.records import TextSpan

EARLIER_FLOOR = 0.01  # of lists that do not say theirs, which earlier releases wrote


@dataclass(frozen=True, slots=True)
class Labeling:
    """A labeling of a set, `rank` 1 the likeliest; `probability` is within 0..1 whatever rounding did."""

    rank: int
    probability: float
    p_value: float
    spans: tuple[TextSpan, ...]


@dataclass(frozen=True)
class Candidate:
    """A span that may be an entity, with P_ent of every class in the order of `RankedList.classes` (METHODS 6.3)."""

    start: int
    end: int
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class RankedList:
    """The best labelings of a unit, best first, in characters of its text.

    `exhausted` says that no further labeling exists; otherwise sets that reach beyond the last one need the model.
    """

    classes: tuple[str, ...]
    log_probabilities: tuple[float, ...]
    labelings: tuple[tuple[TextSpan, ...], ...]
    exhausted: bool
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class RankedUnit:
    """One unit of a text: where it begins and ends in characters, its stratum, and its list.

    `stratum` is empty in lists of earlier releases, which have one unit: the served set says it.
    """

    start: int
    end: int
    stratum: str
    ranked: RankedList


@dataclass(frozen=True)
class RankedText:
    """The lists of a text's units, in order.

    `floor` is the least probability of an entity down to which candidate spans are listed.
    """

    units: tuple[RankedUnit, ...]
    floor: float = EARLIER_FLOOR

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of all lists."""
        return self.units[0].ranked.classes

    @property
    def best(self) -> tuple[TextSpan, ...]:
        """The likeliest labeling."""
        return tuple(span for unit in self.units if unit.ranked.labelings for span in unit.ranked.labelings[0])

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidate spans of all units."""
        return tuple(each for unit in self.units for each in unit.ranked.candidates)

    @property
    def log_probability(self) -> float:
        """The logarithm of the likeliest labeling's probability."""
        return math.fsum(unit.ranked.log_probabilities[0] for unit in self.units if unit.ranked.log_probabilities)


def one_unit(
    ranked: RankedList, *, start: int = 0, end: int = 0, stratum: str = "", floor: float = EARLIER_FLOOR
) -> RankedText:
    """Return the list of a text that is one unit."""
    return RankedText((RankedUnit(start, end, stratum, ranked),), floor)


def probability_of(log_probability: float) -> float:
    """Return a probability within 0..1, whatever rounding did to its logarithm.

    >>> probability_of(0.0), probability_of(1e-17), probability_of(float("-inf"))
    (1.0, 1.0, 0.0)
    """
    return min(1.0, math.exp(min(0.0, log_probability)))
