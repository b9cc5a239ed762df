"""Which tasks may calibrate: drawn by a salted hash before anyone sees them, judged by the order of the work.

METHODS 8.1. The promise is for a random task of the collection, so what calibrates must be a random sample of it. A
draw depends on (salt, project, task id) alone: not on the text, the model or the annotator. The order in which tasks
were given out is known from what was heard of the project's sampling, at the moments it was heard; between two
moments that disagree a label counts only if it does under both orders. Everything here is a pure function of its
arguments.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from backend.domain.records import Draw

AUDIT = "audit"
FILE_STREAM = "file"
UNSHOWN = "unshown"  # the stream of a task that was labelled although nothing of ours had been shown for it

UNDRAWN = "undrawn"
QUEUE = "queue"
UNSHUFFLED = "sequential"
LEFT_OVER = "left over"  # labelled after tasks were accepted: what is left is no random sample


class Order(StrEnum):
    """How tasks were given to annotators, from the best known to the least random."""

    UNIFORM = "uniform"  # the server picks tasks at random
    SHUFFLED = "shuffled"  # in turn, from a collection that the lead says is in random order
    SEQUENTIAL = "sequential"  # in turn, from a collection in whatever order
    REVIEW = "review"  # the model's doubt decides: uncertainty sampling, or our queue


_WORST_FIRST = (Order.REVIEW, Order.SEQUENTIAL, Order.SHUFFLED, Order.UNIFORM)


class Uniforms(NamedTuple):
    """The numbers drawn for a task, independent and uniform on [0, 1).

    `position` in the random order, `u` for audit and blindness, `v` the quantile that stands for a blind task's score.
    """

    position: float
    u: float
    v: float


class Sighting(NamedTuple):
    """At this moment the project was seen to give out its tasks in this order."""

    at: datetime
    order: Order


@dataclass(frozen=True)
class OrderHistory:
    """What is known of a project's order over time. `since` is when the project was first heard of.

    `accepted` is when tasks were first accepted unopened. Make it with `order_history`, which sorts the sightings.
    """

    since: datetime | None
    sightings: tuple[Sighting, ...] = ()
    shuffled: bool = False
    accepted: datetime | None = None


def uniforms(salt: str, project: str, task: str) -> Uniforms:
    """Return the numbers drawn for a task: a keyed hash of (salt, project uid, task id) and of nothing else.

    >>> uniforms("s", "1.2", "7") == uniforms("s", "1.2", "7"), uniforms("s", "1.2", "7") == uniforms("t", "1.2", "7")
    (True, False)
    """
    key = hashlib.sha256(salt.encode("utf-8", "surrogatepass")).digest()
    parts = (project, task)
    # Lengths keep ("ab", "c") and ("a", "bc") apart.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    digest = hashlib.blake2b(
        text.encode("utf-8", "surrogatepass"), key=key, digest_size=24, person=b"surespan-draw"
    ).digest()
    # 53 bits each, so that every value is a double and 1.0 is never reached.
    numbers = (int.from_bytes(digest[i : i + 8], "big") >> 11 for i in (0, 8, 16))
    return Uniforms(*(number / 2**53 for number in numbers))


def order_of(sampling: str | None) -> Order | None:
    """Return the order that a project's `sampling` means, None for a name that is not known.

    >>> order_of("Uncertainty sampling"), order_of("New sampling")
    (<Order.REVIEW: 'review'>, None)
    """
    known = {"uniform": Order.UNIFORM, "sequential": Order.SEQUENTIAL, "uncertainty": Order.REVIEW}
    word = (sampling or "").strip().casefold().split(" ", maxsplit=1)[0]
    return known.get(word)


def as_declared(order: Order, *, shuffled: bool) -> Order:
    """Return what an order means where the lead says whether the collection itself is in random order.

    >>> as_declared(Order.SEQUENTIAL, shuffled=True)
    <Order.SHUFFLED: 'shuffled'>
    """
    return Order.SHUFFLED if shuffled and order is Order.SEQUENTIAL else order


def draw_task(salt: str, project: str, task: str, *, order: Order | None, audit_share: float, blind: float) -> Draw:
    """Draw for a task that is about to be shown for the first time (METHODS 8.1).

    Under review order an audit task is drawn with probability `audit_share` and is blind; the rest is the queue.
    Otherwise every task may calibrate and a share `blind` is blind. One number decides about audit and blindness, so
    a change of order never makes another task blind. An order that is not known counts as sequential.

    >>> draw_task("s", "1.2", "7", order=Order.UNIFORM, audit_share=0.1, blind=1.0).blind
    True
    >>> draw_task("s", "1.2", "7", order=Order.REVIEW, audit_share=0.0, blind=1.0).stream
    'queue'
    """
    drawn = uniforms(salt, project, task)
    if order is Order.REVIEW:
        if drawn.u < audit_share:
            return Draw(AUDIT, drawn.position, audit_share, blind=True)
        return Draw("queue", drawn.position, 1.0 - audit_share, blind=False)
    stream = "uniform" if order in {Order.UNIFORM, Order.SHUFFLED} else "sequential"
    return Draw(stream, drawn.position, 1.0, blind=drawn.u < blind)


def draw_unshown(salt: str, project: str, task: str) -> Draw:
    """Return the draw of a task that was labelled although no prediction of ours is known to have been shown.

    It is never called blind, although nobody saw a prediction of ours: predictions of another model may have been in
    view, and the record of ours may be lost. So its label is assisted evidence at most (METHODS 8.2).

    >>> draw_unshown("s", "1.2", "7").blind
    False
    """
    return Draw(UNSHOWN, uniforms(salt, project, task).position, 1.0, blind=False)


def order_history(
    sightings: Iterable[Sighting],
    *,
    since: datetime | None = None,
    shuffled: bool = False,
    accepted: datetime | None = None,
) -> OrderHistory:
    """Return the history of these sightings, in order of time; of several at one moment the worst comes last."""
    rank = {order: i for i, order in enumerate(reversed(_WORST_FIRST))}
    ordered = sorted(set(sightings), key=lambda each: (each.at, rank[each.order]))
    return OrderHistory(since, tuple(ordered), shuffled, accepted)


def orders_at(history: OrderHistory, time: datetime) -> tuple[Order, ...]:
    """Return the orders that may have been in force at a moment, the worst first; none when nothing is known.

    Between two sightings that agree, theirs. Between two that do not, both, because the moment of the change is not
    known. After the last one, that one; before the first, that one too, back to `since`.
    """
    seen = history.sightings
    times = [each.at for each in seen]
    left, right = bisect_left(times, time), bisect_right(times, time)
    if left < right:
        near: Sequence[Sighting] = seen[left:right]
    elif left == 0:
        if not seen or history.since is None or time < history.since:
            return ()
        near = seen[:1]
    else:
        near = seen[left - 1 : left + 1]
    orders = {as_declared(each.order, shuffled=history.shuffled) for each in near}
    return tuple(order for order in _WORST_FIRST if order in orders)


def review_began(history: OrderHistory) -> datetime | None:
    """Return the last moment before review order can have been in force; None when it never was.

    What is labelled after it counts as labelled under review.
    """
    before: datetime | None = None
    for at, order in history.sightings:
        if order is Order.REVIEW:
            return before or min(history.since or at, at)
        before = at
    return None


def exclusion_of(draw: Draw | None, history: OrderHistory, labelled_at: datetime | None) -> str | None:
    """Return why a label may not calibrate, None when it may (METHODS 8.1).

    `undrawn`: nothing was drawn, or nothing is known of the order at that time. `queue`: labelled while, or after,
    the model's doubt decided the order, and not blind; what is left of a collection after a review queue is no
    random sample, so from then on only blind tasks count, for ever. `left over`: the same after tasks were accepted
    unopened (METHODS 12.4). `sequential`: in an order nobody vouches for.
    Where two orders may have been in force, a label counts only if it does under both.

    >>> from datetime import UTC, datetime
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> history = order_history([Sighting(noon, Order.REVIEW)])
    >>> exclusion_of(Draw("queue", 0.5, 0.9, blind=False), history, noon)
    'queue'
    >>> exclusion_of(Draw("audit", 0.5, 0.1, blind=True), history, noon) is None
    True
    """
    if draw is None:
        return UNDRAWN
    if draw.stream == FILE_STREAM:
        return None
    if labelled_at is None:
        return UNDRAWN
    orders = orders_at(history, labelled_at)
    if not orders:
        return UNDRAWN
    began = review_began(history)
    reviewed = Order.REVIEW in orders or (began is not None and labelled_at > began)
    if reviewed and not draw.blind:
        return QUEUE
    if history.accepted is not None and labelled_at > history.accepted and not draw.blind:
        return LEFT_OVER
    return UNSHUFFLED if Order.SEQUENTIAL in orders else None
