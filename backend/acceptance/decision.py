"""When a decision is due, making it, and what is said while there are too few labels (METHODS 12.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy.typing as npt
from sqlalchemy.orm import Session

from backend.acceptance.evidence import Rows, gather
from backend.domain.records import AcceptanceRecord, ProjectRecord
from backend.domain.target import Target
from backend.domain.text import plain
from backend.store.acceptance import list_acceptances, load_doubts, record_acceptance
from conformal.risk.acceptance import (
    LEVELS,
    Choice,
    Promise,
    checked_share,
    choose_level,
    count_due,
    labels_needed,
    level_grid,
    next_count,
    spend,
)


@dataclass(frozen=True)
class Wish:
    """What somebody wants: at most which share of errors, of all tasks or of the accepted ones.

    Raises:
        InvalidArgument: when the share is not between 0 and 1.
    """

    max_error: str
    promise: Promise = Promise.ALL

    def __post_init__(self) -> None:
        checked_share(self.max_error)

    @property
    def share(self) -> float:
        """The share as a number."""
        return checked_share(self.max_error)

    def is_of(self, decision: AcceptanceRecord) -> bool:
        """Whether a decision was made for this wish."""
        return decision.promise == self.promise and checked_share(decision.max_error) == self.share


@dataclass(frozen=True)
class Standing:
    """Where a wish stands: the decision that counts, how many labels there are, and when the next one is due.

    `decision` is None while none was made for this wish and model. `count` labels make the next decision now; None
    while `next` is not reached. `needed` is what could suffice at the least.
    """

    decision: AcceptanceRecord | None
    labels: int
    needed: int
    next: int
    count: int | None

    @property
    def missing(self) -> str:
        """What is missing for the next decision, in words."""
        if self.count is not None:
            return f"the next decision is due: it uses {self.count:,} of {self.labels:,} blind labels"
        return f"needs {self.needed:,} blind labels, has {self.labels:,}: the next decision is made at {self.next:,}"


def stand(decisions: Sequence[AcceptanceRecord], wish: Wish, *, model_id: int, labels: int) -> Standing:
    """Say where a wish stands, from the decisions so far and the number of labels alone.

    A decision is due at 125, 250, 500, ... labels, from the first that can suffice; at once, with all labels, when the
    model has changed; and at the last such number when somebody wishes something else. Each has its own share of the
    error, so that nothing is gained by asking often.
    """
    last = decisions[-1] if decisions else None
    needed = labels_needed(wish.share, delta=spend(len(decisions) + 1), promise=wish.promise)
    mine = [each for each in decisions if wish.is_of(each)]
    current = mine[-1] if mine and mine[-1].model_id == model_id else None
    changed = last is not None and wish.is_of(last) and last.model_id != model_id
    after = 0 if current is None else current.labels
    upcoming = next_count(after, needed=needed)
    if changed:
        return Standing(None, labels, needed, needed, labels if labels >= needed else None)
    return Standing(current, labels, needed, upcoming, count_due(labels, after=after, needed=needed))


def choose(used: Rows, doubts: npt.ArrayLike, *, wish: Wish, number: int) -> Choice:
    """Return what the decision of this number comes to, on these labels and the doubts of all tasks (METHODS 12.2)."""
    return choose_level(
        used.doubts,
        used.losses,
        grid=level_grid(doubts, levels=LEVELS[wish.promise]),
        max_error=wish.share,
        delta=spend(number),
        promise=wish.promise,
        earlier=used.earlier,
        shares=used.shares,
    )


def decide(
    session: Session,
    project: ProjectRecord,
    wish: Wish,
    *,
    model_id: int,
    version_id: int | None,
    target: Target,
    who: str,
) -> Standing:
    """Make the decision that is due and keep it, in one transaction; otherwise say where the wish stands.

    Raises:
        StoreConflict: when another process made a decision meanwhile.
    """
    decisions = list_acceptances(session, project.id)
    rows = gather(session, project, model_id=model_id, target=target)
    standing = stand(decisions, wish, model_id=model_id, labels=len(rows.labels))
    if standing.count is None:
        return standing
    doubts = load_doubts(session, project.id, model_id=model_id)
    number = len(decisions) + 1
    choice = choose(rows.first(standing.count), doubts, wish=wish, number=number)
    record_acceptance(
        session,
        project.id,
        {
            "number": number,
            "model_id": model_id,
            "version_id": version_id,
            "promise": wish.promise.value,
            "max_error": plain(wish.max_error, 20),
            "delta": spend(number),
            "labels": choice.labels,
            "tasks": len(doubts),
            "level": choice.level,
            "share": choice.share,
            "below": choice.below,
            "lost": choice.lost,
            "bound": choice.bound,
            "why": choice.why,
            "decided_by": plain(who, 200),
        },
    )
    return stand(list_acceptances(session, project.id), wish, model_id=model_id, labels=len(rows.labels))
