"""Taking back what was accepted and nobody has touched.

Each annotation is read again just before it is deleted. Between that answer and the deletion, some milliseconds later,
a person's edit can still arrive and be lost with it: the server has no deletion that depends on a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from backend.acceptance.evidence import standing_acceptances
from backend.acceptance.server import Json, is_touched, our_annotation
from backend.domain.records import AcceptanceRecord, ProjectRecord
from backend.errors import LabelStudioError
from backend.jobs.context import WorkContext
from backend.labelstudio.client import LabelStudio
from backend.store.acceptance import PLANNED, SENT, Planned, accepted_page, mark_withdrawn, take_back
from backend.store.labels import delete_annotation

PAGE = 100
GONE = 404


@dataclass
class Withdrawn:
    """How many tasks were taken back, how many were gone already, and how many somebody has touched."""

    taken_back: int = 0
    gone: int = 0
    touched: int = 0


def withdraw(context: WorkContext, client: LabelStudio, project: ProjectRecord, *, why: str) -> Withdrawn:
    """Take back what the decisions of a project accepted, where nobody has touched it.

    May be killed at any moment and goes on where it was. Raises `LabelStudioError` when the server refuses.
    """
    with context.store.read() as session:
        standing = standing_acceptances(session, project.id)
    # First of all nothing more is accepted, whatever becomes of this process.
    context.store.run(lambda session: mark_withdrawn(session, [each.id for each in standing], why=why))
    done = Withdrawn()
    for acceptance in standing:
        for state in (PLANNED, SENT):
            after = 0
            while True:
                with context.store.read() as session:
                    page = accepted_page(session, acceptance.id, state=state, after=after, limit=PAGE)
                if not page:
                    break
                after = page[-1].task_id
                _take_page(context, client, project, acceptance, page, done)
    return done


def _take_page(
    context: WorkContext,
    client: LabelStudio,
    project: ProjectRecord,
    acceptance: AcceptanceRecord,
    page: Sequence[Planned],
    done: Withdrawn,
) -> None:
    account = acceptance.account or 0
    tasks = client.pick_tasks(int(project.key), [int(each.task) for each in page])
    there = {int(task["id"]): task for task in tasks}
    for each in page:
        task: Json = there.get(int(each.task), {})
        ours = our_annotation(task, account=account, known=each.annotation_id)
        if ours is None:
            done.gone += 1
            _note(context, project, acceptance, each)
        elif _is_worked_on(task, int(ours["id"])) or not _delete(client, int(ours["id"]), account=account):
            done.touched += 1
        else:
            done.taken_back += 1
            _note(context, project, acceptance, each, annotation=int(ours["id"]))
        context.heartbeat(done=done.taken_back + done.gone, note=f"{done.taken_back} taken back")


def _is_worked_on(task: Json, annotation: int) -> bool:
    """Whether somebody has a draft on a task, or has annotated it too: what they see is not taken from under them."""
    others = [each for each in task.get("annotations") or () if each["id"] != annotation]
    return bool(task.get("drafts") or task.get("draft_exists") or others)


def _delete(client: LabelStudio, number: int, *, account: int) -> bool:
    """Delete an annotation unless somebody has touched it; returns whether it is gone."""
    try:
        if is_touched(client.annotation(number), account=account):
            return False
        client.delete_annotation(number)
    except LabelStudioError as error:
        if error.status != GONE:
            raise
    return True


def _note(
    context: WorkContext,
    project: ProjectRecord,
    acceptance: AcceptanceRecord,
    planned: Planned,
    *,
    annotation: int | None = None,
) -> None:
    at = datetime.now(UTC)

    def work(session: Session) -> None:
        take_back(session, acceptance.id, planned.task_id)
        number = annotation or planned.annotation_id
        if number is not None:
            delete_annotation(session, project.id, annotation_id=number, at=at)

    context.store.run(work)
