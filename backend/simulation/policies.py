"""Ways to work through a corpus that are compared."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from backend.domain.streams import Order
from backend.simulation.annotators import Look


class Sequence(StrEnum):
    """The order in which tasks are opened."""

    RANDOM = "random"
    QUEUE = "queue"  # the review queue, by what a look is worth
    LEAST_CONFIDENT = "least confident"  # by the probability of the best labeling, the lowest first


@dataclass(frozen=True)
class Policy:
    """One way to work: whether there are prelabels, what is looked at, in which order, and what the loop does.

    `learns`: the project trains models of its own. `accepts`: tasks that nobody needs to open are accepted, and blind
    ones are labelled first until the first decision can be made.
    """

    name: str
    summary: str
    prelabels: bool = True
    look: Look = Look.AMBER
    sequence: Sequence = Sequence.RANDOM
    learns: bool = True
    accepts: bool = False

    @property
    def order(self) -> Order:
        """The order that the project is in: a queue of any kind is one that the model decides."""
        return Order.UNIFORM if self.sequence is Sequence.RANDOM else Order.REVIEW


POLICIES = {
    each.name: each
    for each in (
        Policy("hand", "by hand, without prelabels", prelabels=False),
        Policy("check", "prelabels, everything is checked", look=Look.EVERYTHING),
        Policy("amber", "amber places only"),
        Policy("accept", "amber places, sure tasks accepted", sequence=Sequence.QUEUE, accepts=True),
        Policy("fixed", "as accept, without learning", sequence=Sequence.QUEUE, accepts=True, learns=False),
        Policy("least", "amber places, least confident first", sequence=Sequence.LEAST_CONFIDENT),
    )
}
