"""Where acceptance stands, for programs, pages and the command: nothing here looks at a label."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from backend.acceptance.decision import Wish, stand
from backend.domain.records import AcceptanceRecord, ModelRecord, ProjectRecord
from backend.settings import Settings
from backend.store.acceptance import (
    PLANNED,
    SENT,
    TAKEN_BACK,
    acceptable,
    count_accepted,
    count_blind_labels,
    list_acceptances,
)
from backend.store.thresholds import active_version
from conformal.risk.acceptance import Promise

DEFAULT_ERROR = "0.02"


def default_wish(session: Session, project_id: int) -> Wish:
    """Return what was wished for last, 2 % of all tasks at first."""
    decisions = list_acceptances(session, project_id)
    if not decisions:
        return Wish(DEFAULT_ERROR)
    return Wish(decisions[-1].max_error, Promise(decisions[-1].promise))


def acceptance_report(
    session: Session,
    project: ProjectRecord,
    model: ModelRecord | None,
    *,
    settings: Settings,
    wish: Wish | None = None,
    count: bool = True,
) -> dict[str, Any]:
    """Return the decisions of a project, what the last one allows now, and what is missing for the next.

    A preview: it shows the last decision that was made and makes none (METHODS 12.2). Counting what can be accepted
    now reads as many rows as there are such tasks; without `count` it is None.
    """
    wish = wish or default_wish(session, project.id)
    decisions = list_acceptances(session, project.id)
    counts = count_accepted(session, project.id)
    labels = 0 if model is None else count_blind_labels(session, project.id, model_id=model.id)
    standing = stand(decisions, wish, model_id=0 if model is None else model.id, labels=labels)
    decision = standing.decision
    ready: int | None = 0 if count else None
    if (
        count
        and model is not None
        and decision is not None
        and decision.level is not None
        and decision.withdrawn_at is None
    ):
        version = active_version(session, project.id, model_id=model.id)
        ready = len(
            acceptable(
                session,
                project.id,
                model_id=model.id,
                version_id=None if version is None else version.id,
                level=decision.level,
                idle_since=datetime.now(UTC) - timedelta(minutes=settings.at_work_minutes),
            )
        )
    sums = {state: sum(each.get(state, 0) for each in counts.values()) for state in (PLANNED, SENT, TAKEN_BACK)}
    return {
        "project": project.uid,
        "max_error": wish.max_error,
        "of": wish.promise.value,
        "promise": describe_promise(wish),
        "labels": labels,
        "needed": standing.needed,
        "next": standing.next,
        "due": standing.count is not None,
        "missing": f"for {percent(wish.share)}: {standing.missing}",
        "acceptable": ready,
        "accepted": sums[SENT],
        "planned": sums[PLANNED],
        "withdrawn": sums[TAKEN_BACK],
        "decision": None if decision is None else describe_decision(decision),
        "decisions": [describe_decision(each) | {"tasks_now": counts.get(each.id, {})} for each in decisions],
    }


def describe_promise(wish: Wish) -> str:
    """Say what is promised.

    >>> describe_promise(Wish("0.02"))
    'With 95 % certainty at most 2 % of all tasks are accepted and wrong.'
    """
    if wish.promise is Promise.ALL:
        return f"With 95 % certainty at most {percent(wish.share)} of all tasks are accepted and wrong."
    return f"With 95 % certainty at most {percent(wish.share)} of the tasks as sure as the accepted ones are wrong."


def describe_decision(decision: AcceptanceRecord) -> dict[str, Any]:
    """Return a decision for programs, with a sentence for people."""
    values = {
        "number": decision.number,
        "max_error": decision.max_error,
        "of": decision.promise,
        "delta": decision.delta,
        "labels": decision.labels,
        "tasks": decision.tasks,
        "level": decision.level,
        "share": decision.share,
        "lost": decision.lost,
        "bound": decision.bound,
        "version": decision.version_id,
        "why": decision.why,
        "decided_at": decision.decided_at.isoformat(),
        "decided_by": decision.decided_by,
        "acted_at": None if decision.acted_at is None else decision.acted_at.isoformat(),
        "withdrawn_at": None if decision.withdrawn_at is None else decision.withdrawn_at.isoformat(),
        "withdrawn_why": decision.withdrawn_why,
    }
    return values | {"summary": _summary(decision)}


def _summary(decision: AcceptanceRecord) -> str:
    on = f"Decision {decision.number}, on {decision.labels:,} blind labels"
    if decision.level is None:
        return f"{on}: nothing may be accepted ({decision.why})."
    what = "of all tasks" if decision.promise == Promise.ALL else "of tasks as sure"
    said = (
        f"{on}: tasks without a flag among the surest {percent(decision.share)} may be accepted; at most "
        f"{percent(decision.bound)} {what} are accepted and wrong (wished: {percent(float(decision.max_error))})."
    )
    return said if decision.withdrawn_at is None else f"{said} Withdrawn: {decision.withdrawn_why}."


def percent(share: float) -> str:
    """Return a share as people write it.

    >>> percent(0.02), percent(0.0375), percent(0.9999)
    ('2 %', '3.75 %', '99.99 %')
    """
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + " %"
