"""What the order of a project's tasks means for its evidence: what news of it set off, and what is said about it.

Which labels may calibrate follows from the order in which tasks were given out (METHODS 8.1). News of it come late,
twice and out of order; when they may change the answer, a job is queued in the same transaction that decides again
for all rows of the project, so the end does not depend on the order of deliveries.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from backend.domain.streams import Order, OrderHistory, order_of, review_began
from backend.jobs.kinds import queue_reconsider
from backend.store.projects import load_project
from backend.store.sampling import add_sighting, current_order, load_history, set_shuffled


@dataclass(frozen=True)
class OrderInfo:
    """The order in force (None: never heard of), since when it was seen without a break, and which labels count."""

    order: Order | None
    since: datetime | None
    evidence: str


def record_sampling(session: Session, project_id: int, *, sampling: str | None, at: datetime, source: str) -> bool:
    """Note that a project's `sampling` was this at this moment, as `record_order`; names not known are left out."""
    order = order_of(sampling)
    return order is not None and record_order(session, project_id, order=order, at=at, source=source)


def record_order(session: Session, project_id: int, *, order: Order, at: datetime, source: str) -> bool:
    """Note that tasks were given out in this order at this moment; returns whether that may change what counts.

    Args:
        source: who saw it; see `store.sampling.add_sighting`.
    """
    changes = add_sighting(session, project_id, order=order, at=at, source=source)
    if changes:
        queue_reconsider(session, load_project(session, project_id))
    return changes


def declare_shuffled(session: Session, project_id: int, *, shuffled: bool) -> None:
    """Note the lead's word on whether the collection is in random order; if it is new, it is decided again what counts.

    Raises:
        NotFound: when there is no such project.
    """
    if set_shuffled(session, project_id, shuffled=shuffled):
        queue_reconsider(session, load_project(session, project_id))


def order_info(session: Session, project_id: int) -> OrderInfo:
    """Return what is known of a project's order now."""
    return describe_order(load_history(session, project_id), current_order(session, project_id))


def describe_order(history: OrderHistory, order: Order | None) -> OrderInfo:
    """Say what an order means.

    >>> describe_order(OrderHistory(None), None).evidence
    'none yet: the order of tasks is not known; labels count once a webhook or a sync reports it'
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
        return "none: nobody vouches for the order of tasks; shuffle the collection and declare it, or sample uniformly"
    if order is None:
        return "none yet: the order of tasks is not known; labels count once a webhook or a sync reports it"
    return "every task: they come in random order"
