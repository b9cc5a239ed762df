"""What the order of a project's tasks means for its evidence, in words for programs and pages (METHODS 8.1)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from backend.store.sampling import current_order, load_history
from backend.streams import Order, OrderHistory, review_began


@dataclass(frozen=True)
class OrderInfo:
    """The order in force (None: never heard of), since when it was seen without a break, and which labels count."""

    order: Order | None
    since: datetime | None
    evidence: str


def order_info(session: Session, project_id: int) -> OrderInfo:
    """Return what is known of a project's order now."""
    return describe_order(load_history(session, project_id), current_order(session, project_id))


def describe_order(history: OrderHistory, order: Order | None) -> OrderInfo:
    """Say what an order means.

    >>> describe_order(OrderHistory(None), None).evidence
    'none yet: the order of tasks was never heard of; labels count once a webhook or a sync says it'
    """
    since: datetime | None = None
    last = history.sightings[-1].order if history.sightings else None
    for sighting in reversed(history.sightings):
        if sighting.order is not last:
            break
        since = sighting.at
    return OrderInfo(order, since, _evidence(history, order))


def _evidence(history: OrderHistory, order: Order | None) -> str:
    began = review_began(history)
    if began is not None:
        return (
            f"audit only since {began.isoformat(timespec='seconds')}: the model's doubt has decided the order of work"
        )
    if order is Order.REVIEW:
        return "audit only: the model's doubt decides the order of work"
    if order is Order.SEQUENTIAL:
        return "none: tasks come in an order nobody vouches for; shuffle the collection and say so, or sample uniformly"
    if order is None:
        return "none yet: the order of tasks was never heard of; labels count once a webhook or a sync says it"
    return "every task: they come in random order"
