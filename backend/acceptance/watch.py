"""Acceptance withdraws itself: on an alarm of drift, or when later labels show more errors than were promised."""

from __future__ import annotations

from sqlalchemy.orm import Session

from backend.acceptance.evidence import equal_labels, later_losses, standing_acceptances
from backend.domain.records import AcceptanceRecord, ModelRecord, ProjectRecord
from backend.jobs.kinds import queue_withdraw
from backend.store import Store
from conformal.risk.acceptance import checked_share, lower_sequence

DRIFTED = "an alarm of drift"


def withdraw_drifted(session: Session, project: ProjectRecord) -> bool:
    """Queue a withdrawal because of an alarm of drift, in the transaction that raises it.

    Returns whether there was anything to take back. An alarm is raised once: a process that died after it and before
    this would leave what was accepted as it is.
    """
    if not _standing(session, project):
        return False
    queue_withdraw(session, project, reason=DRIFTED)
    return True


def watch_accepted(store: Store, project: ProjectRecord, *, model: ModelRecord) -> str | None:
    """Queue a withdrawal where later labels are a reason for one, and return the reason; called after labels came.

    "The newest upper bound is above eps" is none: it would withdraw a third of what is good (METHODS 12.4).
    """
    with store.read() as session:
        standing = _standing(session, project)
        reason = exceeded(session, project, model=model, standing=standing) if standing else None
    if reason is not None:
        store.run(lambda session: queue_withdraw(session, project, reason=reason))
    return reason


def _standing(session: Session, project: ProjectRecord) -> list[AcceptanceRecord]:
    return [each for each in standing_acceptances(session, project.id) if each.withdrawn_at is None]


def exceeded(
    session: Session, project: ProjectRecord, *, model: ModelRecord, standing: list[AcceptanceRecord]
) -> str | None:
    """Say which decision's risk lies above what it promised, by a lower bound that holds at all times at once."""
    labels = equal_labels(session, project, model_id=model.id)
    for at, acceptance in enumerate(standing):
        losses = later_losses(session, labels, acceptance, before=standing[: at + 1])
        low = lower_sequence(losses)
        if low > checked_share(acceptance.max_error):
            return (
                f"labels made after decision {acceptance.number} show at least {low:.1%} accepted and wrong, where "
                f"{acceptance.max_error} was promised"
            )
    return None
