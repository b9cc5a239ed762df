"""A real Label Studio: tasks are accepted unopened, by a process that dies at every stage, and taken back."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa

from backend.acceptance.jobs import run_accept, run_withdraw
from backend.acceptance.watch import watch_accepted, withdraw_drifted
from backend.domain.records import JobRecord, ProjectRecord
from backend.errors import LabelStudioError
from backend.jobs.context import WorkContext, no_heartbeat
from backend.jobs.kinds import Kind
from backend.labelstudio.client import Json, LabelStudio
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.settings import load_settings
from backend.store import Store
from backend.store.acceptance import SENT, TAKEN_BACK, count_accepted, count_blind_labels, list_acceptances
from backend.store.packed_lists import unpack_ranked
from backend.store.projects import find_project, load_model
from backend.store.tables import Annotation, CalibrationScore, Label, ServedSet, Task
from tests.support.commands import surespan, surespan_json
from tests.support.end_to_end import ProjectFactory, ServiceFactory
from tests.support.label_studio import Project, Service
from tests.support.waiting import wait_for

PLACES = ("Berlin", "Paris", "London", "Madrid", "Rome")
TEXTS = [f"It rained in {PLACES[i % 5]} on day {i}, as everybody had expected." for i in range(300)]
BLIND_LABELS = 126


class Died(BaseException):
    """The process ends here."""


class Mortal(LabelStudio):
    """A client whose process dies at one annotation: before the server is asked, or after it has answered."""

    after = dies_at = 10**9
    stage = "before"
    made = 0

    def create_annotation(self, task: int, annotation: Any) -> Json:
        self.made += 1
        if self.stage == "before" and self.made == self.dies_at:
            raise Died
        answer = super().create_annotation(task, annotation)
        if self.stage == "after" and self.made == self.dies_at:
            raise Died
        return answer


@dataclass
class Desk:
    service: Service
    work: Project
    store: Store
    project: ProjectRecord
    loader: ModelLoader

    def context(self, client: LabelStudio | None = None) -> WorkContext:
        settings = load_settings(
            database_url=self.service.database_url,
            label_studio_url=self.work.server.url,
            label_studio_api_key=self.work.server.account.token,
            at_work_minutes=0,
        )
        return WorkContext(
            settings=settings,
            store=self.store,
            loader=self.loader,
            views=Views(settings, self.store, self.loader),
            label_studio=lambda: client or self.client(),
            heartbeat=no_heartbeat,
            log=logging.getLogger(__name__),
        )

    def client(self, kind: type[LabelStudio] = LabelStudio) -> LabelStudio:
        return kind(self.work.server.url, self.work.server.account.token)

    def job(self, kind: Kind, **payload: str) -> JobRecord:
        return JobRecord(
            0, kind.value, "", self.project.id, "running", payload, None, 0, 1, 0, None, "", None, None, None, None
        )

    def accept(self, client: LabelStudio | None = None, **payload: str) -> dict[str, Any]:
        asked = {"max_error": "0.05", "promise": "all", "who": "test"} | payload
        return run_accept(self.context(client), self.job(Kind.ACCEPT, **asked))

    def tasks(self) -> list[Json]:
        found: list[Json] = self.work.server.call(
            "GET", "/api/tasks/", project=self.work.id, page_size=1000, fields="all"
        )["tasks"]
        return found

    def blind(self) -> dict[int, list[Json]]:
        """Blind tasks in their random order, each with what the model says about it."""
        with self.store.read() as session:
            rows = session.execute(
                sa.select(Task.external_id, Task.text, ServedSet.ranked)
                .join(ServedSet, ServedSet.task_id == Task.id)
                .where(Task.project_id == self.project.id, Task.blind.is_(True), ServedSet.shadow.is_(True))
                .order_by(Task.random_order)
            ).all()
        return {int(task): regions(text, ranked) for task, text, ranked in rows}

    def counts(self) -> dict[str, int]:
        with self.store.read() as session:
            found = count_accepted(session, self.project.id)
        return {state: sum(each.get(state, 0) for each in found.values()) for state in ("planned", SENT, TAKEN_BACK)}


def regions(text: str | None, ranked: bytes) -> list[Json]:
    return [
        {
            "id": f"r{place}",
            "from_name": "label",
            "to_name": "text",
            "type": "labels",
            "value": {"start": start, "end": end, "text": (text or "")[start:end], "labels": [label]},
        }
        for place, (start, end, label) in enumerate(unpack_ranked(bytes(ranked)).best)
    ]


@pytest.fixture(scope="module")
def desk(start_service: ServiceFactory, make_project: ProjectFactory) -> Iterator[Desk]:
    """A project half of which is blind; people have labelled 126 of those as the model would."""
    service = start_service(
        SURESPAN_BLIND="0.5", SURESPAN_AT_WORK_MINUTES="0", SURESPAN_REFIT_EVERY_LABELS="1000", SURESPAN_N_MIN="50"
    )
    work = make_project(TEXTS)
    service.connect(work)
    loader = ModelLoader(load_settings())
    loader.start()
    loader.tagger(300.0)
    with service.open_store() as store:
        with store.read() as session:
            project = find_project(session, work.uid)
        assert project is not None
        yield Desk(service, work, store, project, loader)


def blind_labels(desk: Desk) -> int:
    with desk.store.read() as session:
        model = session.execute(sa.select(CalibrationScore.model_id).limit(1)).scalar_one_or_none()
        return 0 if model is None else count_blind_labels(session, desk.project.id, model_id=model)


def test_acceptance_from_the_first_label_to_the_last_word(desk: Desk) -> None:
    """One long story: each step needs what the one before it left behind."""
    desk.service.wait_for_jobs(desk.work)

    # Too few labels: nothing is decided, nothing spent, and it is said what is missing.
    few = desk.accept()
    assert few["decision"] is None
    assert "needs 72 blind labels, has 0: the next decision is made at 125" in few["standing"]
    blind = desk.blind()
    assert len(blind) > BLIND_LABELS
    for task in list(blind)[:BLIND_LABELS]:
        desk.work.server.annotate(task, blind[task], lead_time=2.0)
    wait_for(lambda: blind_labels(desk) >= BLIND_LABELS, "all blind labels are scored", seconds=300)
    desk.service.call("POST", "/train", {"project": desk.work.uid})  # own flags: the starter's would mark whole texts
    desk.service.wait_for_jobs(desk.work)
    before = {task["id"]: len(task["annotations"]) for task in desk.tasks()}

    # What people have begun, or do not want, is left alone.
    free = [task for task in desk.tasks() if not task["annotations"] and int(task["id"]) not in blind]
    drafted, skipped = (int(task["id"]) for task in free[:2])
    desk.work.server.call("POST", f"/api/tasks/{drafted}/drafts?project={desk.work.id}", {"result": [], "lead_time": 1})
    desk.work.server.annotate(skipped, [], was_cancelled=True)

    # A dry run decides, and accepts nothing; asking again shows the same decision.
    dry = desk.accept(dry_run="yes")
    assert dry["decision"]["labels"] == 125
    assert dry["decision"]["level"] is not None
    assert desk.accept(dry_run="yes")["decision"]["number"] == 1
    assert desk.counts() == {"planned": 0, SENT: 0, TAKEN_BACK: 0}

    # Killed before the server is asked, and after it has answered, again and again; then to the end.
    sent = 0
    for stage, dies_at in (("before", 1), ("after", 1), ("before", 4), ("after", 3)):
        client = desk.client(Mortal)
        client.stage, client.dies_at = stage, dies_at  # type: ignore[attr-defined]
        with pytest.raises(Died):
            desk.accept(client)
        sent += dies_at - (stage == "before")
    done = desk.accept()
    assert done["accepted"] > 0, done
    assert desk.counts()["planned"] == 0
    accepted = desk.counts()[SENT]
    # What was answered to a process that died then, the webhook has named, or the next process has found.
    assert sent + done["accepted"] - 2 <= accepted <= sent + done["accepted"]

    # Complete, without doubles, and of no blind, drafted or skipped task.
    after = {task["id"]: task for task in desk.tasks()}
    made = {number for number, task in after.items() if len(task["annotations"]) > before[number]} - {skipped}
    assert len(made) == accepted
    assert not made & {*blind, drafted, skipped}
    assert all(len(after[number]["annotations"]) == 1 for number in made)
    versions = {each["model_version"] for number in made for each in after[number]["predictions"]}
    for number in made:
        best = [each for each in after[number]["predictions"] if " #" not in each["model_version"]][-1]
        (annotation,) = after[number]["annotations"]
        assert [each["value"] for each in annotation["result"]] == [each["value"] for each in best["result"]]
        assert not any(each["from_name"] == "flag" for each in annotation["result"])
    assert versions
    assert surespan_json(desk.service, "accept", "--project", str(desk.work.id))["report"]["accepted"] == accepted

    # They are nobody's labels: not evidence, not confirmed, not to be trained on.
    desk.service.wait_for_jobs(desk.work)

    def settled() -> bool:
        with desk.store.read() as session:
            marked = session.execute(
                sa.select(sa.func.count()).select_from(Annotation).where(Annotation.accepted.is_(True))
            ).scalar_one()
            labels = session.execute(
                sa.select(sa.func.count()).select_from(Label).where(Label.exclusion == "accepted")
            ).scalar_one()
        return marked == labels == accepted

    wait_for(settled, "every accepted annotation is known as such")
    assert blind_labels(desk) == BLIND_LABELS
    for choice, count in (("exclude", BLIND_LABELS), ("include", BLIND_LABELS + accepted), ("only", accepted)):
        lines = surespan(
            desk.service, "export", "--project", str(desk.work.id), "--format", "jsonl", "--accepted", choice
        ).splitlines()
        assert len(lines) == count
        assert sum("accepted" in json.loads(line) for line in lines) == (0 if choice == "exclude" else accepted)

    # A tab shows them.
    views = desk.work.server.call("GET", "/api/dm/views/", project=desk.work.id)
    assert {"Accepted", "Evidence first"} <= {each["data"]["title"] for each in views}

    # A person edits one: it stays what it is, and is not taken back.
    edited = min(made)
    (annotation,) = after[edited]["annotations"]
    desk.work.server.call("PATCH", f"/api/annotations/{annotation['id']}/", {"result": [], "lead_time": 4.0})

    def heard() -> bool:
        with desk.store.read() as session:
            row = session.execute(
                sa.select(Annotation).where(Annotation.annotation_id == annotation["id"])
            ).scalar_one()
            return row.lead_time is not None and row.accepted

    wait_for(heard, "the edit has come in")

    # An alarm of drift takes back exactly what nobody has touched, by itself.
    with desk.store.read() as session:
        model = load_model(session, list_acceptances(session, desk.project.id)[0].model_id)
    assert model is not None
    assert watch_accepted(desk.store, desk.project, model=model) is None
    assert desk.store.run(lambda session: withdraw_drifted(session, desk.project))
    wait_for(
        lambda: desk.counts() == {"planned": 0, SENT: 1, TAKEN_BACK: accepted - 1}, "all is taken back", seconds=200
    )
    left = {task["id"] for task in desk.tasks() if task["annotations"] and task["id"] in made}
    assert left == {edited}
    assert run_withdraw(desk.context(), desk.job(Kind.WITHDRAW, reason="again")) == {
        "taken_back": 0,
        "gone": 0,
        "touched": 1,
    }
    assert "withdrawn (an alarm of drift)" in desk.accept()["refused"]


@pytest.mark.parametrize("share", ["0", "1", "abc", "-0.1"])
def test_a_share_that_is_none_is_refused(desk: Desk, share: str) -> None:
    said = surespan(desk.service, "accept", "--project", str(desk.work.id), "--max-error", share, fails=True)
    assert "alpha" not in said
    assert share in said


def test_sequential_order_is_refused(desk: Desk, make_project: ProjectFactory) -> None:
    other = make_project(TEXTS[:3], sampling="Sequential sampling")
    desk.service.connect(other)
    said = surespan(desk.service, "accept", "--project", str(other.id), fails=True)
    assert "sequential order" in said


class Powerless(LabelStudio):
    """An account that may look and not annotate, as Label Studio's other editions have."""

    def create_annotation(self, task: int, annotation: Any) -> Json:  # noqa: ARG002
        raise LabelStudioError("POST /api/tasks/: expected to be allowed, got 403", status=403, asked="POST")


def test_an_account_that_may_not_annotate_leaves_no_plan_behind(desk: Desk) -> None:
    """Runs after the story: another wish makes another decision, with the same labels."""
    before = desk.counts()
    said = desk.accept(desk.client(Powerless), max_error="0.06")
    assert "an account that may annotate" in said["refused"]
    assert desk.counts() == before
    with desk.store.read() as session:
        last = list_acceptances(session, desk.project.id)[-1]
    assert (last.number, last.max_error, last.acted_at) == (2, "0.06", None)
