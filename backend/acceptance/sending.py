"""Accepted tasks become annotations: planned first, sent one by one, resumable at any moment without doubles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from backend.acceptance.evidence import as_labels
from backend.acceptance.server import Json, best_prediction, is_free, our_annotation, unique_id
from backend.documents.document import UnreadableDocument
from backend.domain.records import AcceptanceRecord, AnnotationRecord, ProjectRecord
from backend.domain.text import text_hash
from backend.errors import LabelStudioError
from backend.jobs.context import WorkContext
from backend.jobs.kinds import queue_reconsider
from backend.labelstudio.annotations import read_annotation, read_id
from backend.labelstudio.client import LabelStudio
from backend.labelstudio.payloads import InvalidPayload, document_in, text_in
from backend.labelstudio.tabs import ACCEPTED, EVIDENCE_FIRST, accepted_tab, evidence_tab
from backend.models.views import View
from backend.store.acceptance import (
    PLANNED,
    Planned,
    Shadow,
    acceptable,
    accepted_page,
    act_on,
    blind_lists,
    first_acceptance,
    leave_alone,
    name_annotation,
    take_back,
)
from backend.store.labels import record_annotation
from backend.store.packed_lists import unpack_ranked
from backend.store.projects import load_tasks
from backend.store.republish import blind_tasks, opened_since
from backend.store.state import CONNECTION, get_state, update_state

PAGE = 100
MOST_BLIND = 100  # tasks that a tab names
TAKEN = 409  # what the server answers to a unique id that it has


def plan(
    context: WorkContext,
    project: ProjectRecord,
    acceptance: AcceptanceRecord,
    *,
    view: View,
    version_id: int | None,
    account: int,
) -> int:
    """Plan the acceptance of every task that the decision allows now, and keep what blind tasks would have got.

    In one transaction: from then on intake knows the annotations, whenever they come. Returns how many are new.
    """
    level = acceptance.level
    if level is None:
        return 0
    idle = datetime.now(UTC) - timedelta(minutes=context.settings.at_work_minutes)

    def work(session: Session) -> int:
        first = first_acceptance(session, project.id) is None
        tasks = acceptable(
            session, project.id, model_id=acceptance.model_id, version_id=version_id, level=level, idle_since=idle
        )
        if not tasks:
            return 0
        shadows = []
        for number, packed in blind_lists(session, project.id, model_id=acceptance.model_id, level=level):
            ranked = unpack_ranked(packed)
            shadows.append(Shadow(number, as_labels(ranked.best, view.target), len(ranked.units)))
        named = {number: unique_id(project.uid, task, acceptance.number) for number, task in tasks}
        added = act_on(session, acceptance, tasks=named, shadows=shadows, account=account)
        if first and added:
            queue_reconsider(session, project)  # from now on only drawn-blind tasks are evidence
        return added

    return context.store.run(work)


class Sender:
    """Sends what is planned. `sent`, `found` (by an earlier run) and `left` (somebody was faster) are counted."""

    def __init__(
        self,
        context: WorkContext,
        client: LabelStudio,
        project: ProjectRecord,
        acceptance: AcceptanceRecord,
        *,
        view: View,
        account: int,
    ) -> None:
        self._context, self._client, self._project = context, client, project
        self._acceptance, self._view, self._account = acceptance, view, account
        self.sent = self.found = self.left = 0

    def send_page(self) -> bool:
        """Send a page; returns whether there was one. What cannot be sent any more is left alone."""
        with self._context.store.read() as session:
            page = accepted_page(session, self._acceptance.id, state=PLANNED, limit=PAGE)
            records = load_tasks(session, [each.task_id for each in page])
            numbers = [each.task for each in page]
            since = datetime.now(UTC) - timedelta(minutes=self._context.settings.at_work_minutes)
            opened = opened_since(session, self._project.id, tasks=numbers, since=since)
        if not page:
            return False
        there = self._pick([int(each.task) for each in page])
        for each in page:
            task = there.get(int(each.task))
            ours = None if task is None else our_annotation(task, account=self._account, known=each.annotation_id)
            if ours is not None:
                self.found += 1
                self._keep(each, ours, task or {})
            elif (
                task is not None
                and is_free(task)
                and each.task not in opened
                and self._is_same_text(task, records[each.task_id].text_hash)
                and (best := best_prediction(task, self._view.model_version)) is not None
            ):
                self._send(each, task, best)
            else:
                self.left += 1
                self._context.store.run(
                    partial(leave_alone, acceptance_id=self._acceptance.id, task_ids=[each.task_id])
                )
            self._context.heartbeat(done=self.sent + self.found, note=f"{self.sent + self.found} accepted")
        return True

    def _send(self, planned: Planned, task: Json, best: Json) -> None:
        body = {
            "result": best["result"],
            "unique_id": planned.unique_id,
            "parent_prediction": int(best["id"]),
            "was_cancelled": False,
            "ground_truth": False,
        }
        try:
            answer: Json | None = self._client.create_annotation(int(planned.task), body)
        except LabelStudioError as error:
            if error.status == 404:  # the task was deleted in this moment
                self.left += 1
                self._context.store.run(
                    partial(leave_alone, acceptance_id=self._acceptance.id, task_ids=[planned.task_id])
                )
                return
            if error.status != TAKEN:
                raise
            there = self._pick([int(planned.task)])
            answer = our_annotation(there.get(int(planned.task), {}), account=self._account)
            if answer is None:  # it was there, and is gone again, or its task is: intake has it by its unique id
                self.left += 1
                self._context.store.run(partial(take_back, acceptance_id=self._acceptance.id, task_id=planned.task_id))
                return
        self.sent += 1
        self._keep(planned, answer or {}, task)

    def _keep(self, planned: Planned, annotation: Json, task: Json) -> None:
        """Write down that the server has it, with the annotation itself: the webhook need not come first, or at all."""
        target = self._view.target
        number = read_id(annotation, "id")
        said = dict(annotation) | {"unique_id": planned.unique_id}
        record: AnnotationRecord | None = None
        try:
            document = document_in(task.get("data"), target.text)
            record = replace(read_annotation(said, control=target.control, document=document), accepted=True)
        except (UnreadableDocument, InvalidPayload) as error:
            # The task was edited meanwhile. It is named, so that it can be taken back, and stops no other.
            self._context.log.warning(
                "an accepted annotation does not fit its task any more",
                extra={"project": self._project.uid, "task": planned.task, "reason": str(error)},
            )

        def work(session: Session) -> None:
            name_annotation(session, planned.unique_id, annotation_id=number)
            if record is not None:
                record_annotation(session, planned.task_id, record)

        self._context.store.run(work)

    def _is_same_text(self, task: Json, digest: bytes) -> bool:
        text = text_in(task.get("data"), self._view.target.text)
        # A text behind an address is not in the task; what was predicted is what the address held then.
        return self._view.target.text.is_url or (text is not None and text_hash(text) == digest)

    def _pick(self, numbers: Sequence[int]) -> dict[int, Json]:
        tasks = self._client.pick_tasks(int(self._project.key), numbers)
        return {int(task["id"]): task for task in tasks}


def keep_tabs(context: WorkContext, client: LabelStudio, project: ProjectRecord, *, account: int) -> None:
    """Make the tabs of accepted tasks and of evidence to make first, unless they are there or nothing is connected."""
    with context.store.read() as session:
        connection = get_state(session, project.id, CONNECTION) or {}
        blind = [int(each) for each in blind_tasks(session, project.id, limit=MOST_BLIND)]
    if not connection.get("backend"):
        return
    known: Mapping[str, int] = connection.get("views") or {}
    there = {each["id"] for each in client.views(int(project.key))}
    wanted = {ACCEPTED: accepted_tab(account)} | ({EVIDENCE_FIRST: evidence_tab(blind)} if blind else {})
    added = {
        name: int(client.create_view(int(project.key), tab)["id"])
        for name, tab in wanted.items()
        if known.get(name) not in there
    }

    def add(value: dict[str, Any]) -> dict[str, Any]:
        return value | {"views": (value.get("views") or {}) | added}

    if added:
        context.store.run(lambda session: update_state(session, project.id, CONNECTION, add))
