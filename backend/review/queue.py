"""The review desk: what to look at next, and who looks at what.

The order is stored (`backend.store.queue`); here is what needs more than the store: which model's queue a project
has, how long a task counts as taken, and what becomes of the guarantee when people follow the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from backend.calibration.order import record_order
from backend.domain.priority import FIRST
from backend.domain.records import ProjectRecord
from backend.domain.streams import Order, uniforms
from backend.errors import StoreConflict
from backend.review.blind_priorities import blind_priority, sample_priorities
from backend.settings import Settings
from backend.store import Store
from backend.store.disagreements import Disagreement
from backend.store.engine import database_now
from backend.store.projects import LOCAL, load_project
from backend.store.queue import (
    QueuedTask,
    Unfilled,
    claim_tasks,
    figures_of,
    fill,
    next_tasks,
    unfilled,
)
from backend.store.sampling import QUEUE, current_order, follows_queue, was_in_review
from backend.store.state import SALT, get_state

PAGE = 500
DISAGREE = "annotators disagree"
SHORTEST, LONGEST = timedelta(minutes=1), timedelta(days=1)  # of a lease


def review_queue(
    session: Session, project_id: int, *, model_id: int, settings: Settings, limit: int, evidence_first: bool = False
) -> list[QueuedTask]:
    """Return what to look at next: labelled tasks, claimed ones and those somebody has open are left out.

    Empty and open sets come first, then the order of `domain.priority.review_value`. Blind tasks stand
    at random positions; with `evidence_first` before all others.
    """
    return next_tasks(
        session,
        project_id,
        model_id=model_id,
        limit=limit,
        idle_since=datetime.now(UTC) - at_work(settings),
        evidence_first=evidence_first,
    )


def claim(
    store: Store,
    project: ProjectRecord,
    *,
    model_id: int,
    settings: Settings,
    who: str,
    limit: int,
    minutes: float | None = None,
    accept_review: bool = False,
    evidence_first: bool = False,
) -> list[QueuedTask]:
    """Lease the next tasks of the queue to an annotator, for `minutes` (otherwise as long as a task counts as at work).

    Who follows the queue works in review order, so from then on only blind tasks of the project may set thresholds
    (METHODS 8.1). Where that is not so already, it is noted, and must be asked for.

    Raises:
        StoreConflict: when the project is not in review order and `accept_review` is not given.
    """
    lease = max(SHORTEST, at_work(settings)) if minutes is None else min(LONGEST, timedelta(minutes=minutes))
    if project.uid != LOCAL:
        store.run(lambda session: _follow(session, project, accept=accept_review))

    def take(session: Session) -> list[QueuedTask]:
        now = database_now(session)
        return claim_tasks(
            session,
            project.id,
            model_id=model_id,
            who=who,
            limit=limit,
            until=now + lease,
            idle_since=now - at_work(settings),
            evidence_first=evidence_first,
        )

    return store.run(take)


def describe_task(task: QueuedTask) -> dict[str, Any]:
    """Return a task of the queue for programs; of a blind one only that it waits."""
    shown = {
        "value": task.value,
        "probability": task.probability,
        "set_size": task.set_size,
        "open": task.is_open,
        "stratum": task.stratum,
        "served_at": None if task.blind else task.served_at.isoformat(),
    }
    until = None if task.claimed_until is None else task.claimed_until.isoformat()
    return {"task": task.task, "blind": task.blind, **shown, "claimed_by": task.claimed_by, "claimed_until": until}


def describe_disagreement(task: Disagreement) -> dict[str, Any]:
    """Return a task that annotators labelled differently for programs: how many say what counts, never who."""
    return {"task": task.task, "reason": DISAGREE, "votes": task.votes, "voters": task.voters}


def fill_queue(store: Store, *, page: int = PAGE) -> int:
    """Work out the priorities of rows that an upgrade left without, a page at a time; returns how many."""
    done = 0
    while True:
        with store.read() as session:
            rows = unfilled(session, limit=page)
            stand_ins = _stand_ins(session, [row for row in rows if row.blind])
            figures = {(row.task_id, row.model_id): _filled(row, stand_ins) for row in rows}
        if not figures:
            return done

        def write(session: Session, figures: Mapping[tuple[int, int], tuple[float, float | None]] = figures) -> None:
            for (task, model), (priority, probability) in sorted(figures.items()):
                fill(session, task, model, priority=priority, probability=probability)

        store.run(write)
        done += len(figures)


def at_work(settings: Settings) -> timedelta:
    """Return for how long a task counts as being worked on."""
    return timedelta(minutes=settings.at_work_minutes)


def in_review_order(session: Session, project_id: int) -> bool:
    """Whether a project's tasks may be taken from the queue: its labels outside the audit count for nothing anyway."""
    return was_in_review(session, project_id) or current_order(session, project_id) is Order.REVIEW


def _follow(session: Session, project: ProjectRecord, *, accept: bool) -> None:
    if follows_queue(session, project.id):
        return
    order = current_order(session, project.id)
    if not (accept or order is Order.REVIEW or was_in_review(session, project.id)):
        given = "none that is known" if order is None else f"{order.value} order"
        raise StoreConflict(
            f"expected a project in review order (uncertainty sampling), got {given}: what is labelled in the order of "
            "the queue is not a random sample, so from then on only blind tasks of the project may set thresholds; ask "
            "for that with --review-order (in a request: review_order)"
        )
    record_order(session, project.id, order=Order.REVIEW, at=database_now(session), source=QUEUE)


def _filled(row: Unfilled, stand_ins: Mapping[tuple[int, int], float]) -> tuple[float, float | None]:
    if row.blind:
        return stand_ins[row.task_id, row.model_id], None
    if row.served is None:  # its set was removed: nothing is known of it, so it is worth a look
        return FIRST, None
    kept = row.served
    return figures_of(bytes(kept.ranked), is_open=kept.is_open, set_size=kept.set_size, priority=kept.priority)


def _stand_ins(session: Session, rows: Sequence[Unfilled]) -> dict[tuple[int, int], float]:
    """Return the priorities that stand for blind tasks: each at the quantile that is drawn for it."""
    samples: dict[tuple[int, int, int | None], list[float]] = {}
    stand_ins = {}
    for row in rows:
        version = None if row.served is None else row.served.version_id
        key = (row.project_id, row.model_id, version)
        if key not in samples:
            samples[key] = sample_priorities(session, row.project_id, model_id=row.model_id, version_id=version)
        salt = get_state(session, row.project_id, SALT) or {}
        uid = load_project(session, row.project_id).uid
        quantile = uniforms(str(salt.get("salt", "")), uid, row.external_id).v
        stand_ins[row.task_id, row.model_id] = blind_priority(quantile, samples[key])
    return stand_ins
