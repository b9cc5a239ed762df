"""What webhooks lose, reconciliation brings in; what a new version changes, Label Studio follows. All of it real."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.errors import LabelStudioError
from backend.intake.reconcile import sync_project
from backend.intake.webhook import keep_switched_on
from backend.jobs.kinds import queue_sync
from backend.labelstudio.client import Json, LabelStudio
from backend.labelstudio.payloads import read_moment
from backend.settings import load_settings
from backend.store import open_store
from backend.store.labels import list_labels
from backend.store.projects import ensure_project, find_project, load_tasks
from backend.store.republish import blind_tasks
from backend.store.state import get_state
from backend.store.tables import Event
from tests.support.commands import surespan_json
from tests.support.end_to_end import ProjectFactory, ServiceFactory
from tests.support.label_studio import Project, Service
from tests.support.waiting import wait_for

TEXTS = [f"Maria {name} lives in Paris." for name in ("Abel", "Brown", "Costa", "Diaz", "Evans", "Fischer")]


def region(label: str = "PER", end: int = 5) -> dict[str, Any]:
    value = {"start": 0, "end": end, "text": TEXTS[0][:end], "labels": [label]}
    return {"id": "r", "from_name": "label", "to_name": "text", "type": "labels", "value": value}


@pytest.fixture(scope="module")
def running(start_service: ServiceFactory) -> Service:
    """A service that never reconciles by itself within a test, so that it is the command that heals."""
    return start_service(
        SURESPAN_BLIND="0",
        SURESPAN_AT_WORK_MINUTES="0",
        SURESPAN_SYNC_EVERY_MINUTES="0",
        SURESPAN_REFIT_EVERY_LABELS="1000",
    )


@pytest.fixture
def work(running: Service, make_project: ProjectFactory) -> Project:
    made = make_project(TEXTS)
    surespan_json(running, "connect", "--project", str(made.id), "--yes")
    wait_for(lambda: jobs_done(running, made), "the connecting is published")
    return made


def jobs_done(running: Service, work: Project) -> bool:
    jobs = running.call("GET", f"/api/v1/jobs?project={work.uid}")["jobs"]
    # One that failed once, while a newer request waited, stays in the list as failed.
    return any(job["state"] == "done" for job in jobs) and not {"queued", "running"} & {job["state"] for job in jobs}


def labels(running: Service, work: Project) -> dict[int, Any]:
    """What counts for each task: the spans of its label, `gone` where it was withdrawn."""

    def read(session: Session) -> Iterator[tuple[int, Any]]:
        found = find_project(session, work.uid)
        assert found is not None
        rows = list_labels(session, found.id)
        tasks = load_tasks(session, [row.task_id for row in rows])
        for row in rows:
            spans = None if row.spans is None else [tuple(span) for span in row.spans]
            yield int(tasks[row.task_id].external_id), "gone" if row.exclusion == "withdrawn" else spans

    with running.open_store() as store, store.read() as session:
        return dict(read(session))


def sync(running: Service, work: Project) -> dict[str, Any]:
    (made,) = surespan_json(running, "sync", "--project", str(work.id))["projects"]
    return dict(made)


def events(running: Service) -> int:
    with running.open_store() as store, store.read() as session:
        return int(session.execute(sa.select(sa.func.count()).select_from(Event)).scalar_one())


def test_what_was_annotated_while_the_service_was_down_is_brought_in_and_nothing_twice(
    running: Service, work: Project
) -> None:
    server, tasks = work.server, work.tasks
    kept = server.annotate(tasks[0], [region()])
    gone = server.annotate(tasks[1], [region()])
    wait_for(lambda: len(labels(running, work)) == 2, "the webhooks have come")
    running.stop()
    try:
        server.call("PATCH", f"/api/annotations/{kept['id']}/", {"result": [region("LOC")]})
        server.call("DELETE", f"/api/annotations/{gone['id']}/")
        server.annotate(tasks[2], [])
        server.annotate(tasks[3], [region("ORG")], was_cancelled=True)
        before = events(running)
        first = sync(running, work)
        assert (first["brought_in"], first["deleted"], first["waiting"]) == (3, 1, 0)
        assert events(running) == before + 4
        waiting = sync(running, work)  # nothing was processed meanwhile: it is in the inbox, and stays there once
        assert (waiting["brought_in"], waiting["deleted"], waiting["waiting"]) == (0, 0, 4)
        assert events(running) == before + 4
    finally:
        running.start()
    expected = {tasks[0]: [(0, 5, "LOC")], tasks[1]: "gone", tasks[2]: [], tasks[3]: None}
    wait_for(lambda: labels(running, work) == expected, "everything has come in")
    again = sync(running, work)
    assert (again["brought_in"], again["deleted"], again["waiting"], again["unchanged"]) == (0, 0, 0, 3)
    known = running.call("GET", f"/api/v1/projects/{work.uid}/sync")
    assert known["total"]["brought_in"] == 3
    assert known["error"] is None


def test_a_wrong_secret_is_refused_and_what_it_cost_is_healed(running: Service, work: Project) -> None:
    server = work.server
    (hook,) = server.call("GET", "/api/webhooks/", project=work.id)
    wrong = {"url": hook["url"], "headers": {"X-Surespan-Secret": "guessed"}}
    server.call("PATCH", f"/api/webhooks/{hook['id']}/", wrong)
    before = events(running)
    server.annotate(work.tasks[0], [region()])
    assert events(running) == before
    made = sync(running, work)
    assert made["brought_in"] == 1
    wait_for(lambda: labels(running, work) == {work.tasks[0]: [(0, 5, "PER")]}, "it is healed")
    assert surespan_json(running, "connect", "--project", str(work.id))["changes"] == [
        "set the webhook's secret header"
    ]
    server.annotate(work.tasks[1], [])
    wait_for(lambda: work.tasks[1] in labels(running, work), "the webhook works again")


def test_a_webhook_that_was_switched_off_is_on_again_after_the_next_look_and_once_a_day(
    running: Service, work: Project
) -> None:
    server = work.server
    (hook,) = server.call("GET", "/api/webhooks/", project=work.id)

    def switch(*, on: bool) -> None:
        server.call("PATCH", f"/api/webhooks/{hook['id']}/", {"url": hook["url"], "is_active": on})

    def is_on() -> bool:
        return bool(server.call("GET", f"/api/webhooks/{hook['id']}/")["is_active"])

    switch(on=False)
    server.annotate(work.tasks[0], [region()])
    with running.open_store() as store:
        with store.read() as session:
            project = find_project(session, work.uid)
        assert project is not None
        store.run(lambda session: queue_sync(session, project))  # as the worker's timer does
        wait_for(is_on, "the webhook is on again")
        wait_for(lambda: work.tasks[0] in labels(running, work), "what was missed has come in")
        server.annotate(work.tasks[1], [])
        wait_for(lambda: work.tasks[1] in labels(running, work), "the webhook works again")
        (kept,) = server.call("GET", "/api/webhooks/", project=work.id)
        assert kept == hook | {"updated_at": kept["updated_at"]}
        said = [line for line in running.log.read_text().splitlines() if "is on again" in line]
        assert len(said) == 1
        with LabelStudio(server.url, server.account.token) as client:
            switch(on=False)  # off again soon: somebody wants it so
            assert not keep_switched_on(store, client, project)
            assert not is_on()


def test_deleted_and_edited_tasks_are_found(running: Service, work: Project) -> None:
    server, tasks = work.server, work.tasks
    server.annotate(tasks[0], [region()])
    server.annotate(tasks[1], [region()])
    wait_for(lambda: len(labels(running, work)) == 2, "the webhooks have come")
    (hook,) = server.call("GET", "/api/webhooks/", project=work.id)
    server.call("PATCH", f"/api/webhooks/{hook['id']}/", {"url": hook["url"], "is_active": False})
    server.call("DELETE", f"/api/tasks/{tasks[0]}/")
    server.call("DELETE", f"/api/tasks/{tasks[5]}/")
    new = "Now Maria Costa lives in Rome."
    server.call("PATCH", f"/api/tasks/{tasks[2]}/", {"data": {"text": new}})
    made = sync(running, work)
    assert (made["deleted_tasks"], made["edited_tasks"], made["brought_in"]) == (2, 1, 0)
    expected = {tasks[0]: "gone", tasks[1]: [(0, 5, "PER")]}
    wait_for(lambda: labels(running, work) == expected, "the label of the deleted task is gone")

    def fits() -> bool:
        predictions = server.task(tasks[2])["predictions"]
        regions = [each for prediction in predictions for each in prediction["result"]]
        best = [each for each in predictions if each["model_version"] == work.details["model_version"]]
        return len(best) == 1 and all(
            each["value"]["text"] == new[each["value"]["start"] : each["value"]["end"]] for each in regions
        )

    wait_for(fits, "the predictions of the edited task are of its new text")
    wait_for(lambda: jobs_done(running, work), "the refresh is done")
    again = sync(running, work)
    assert (again["deleted_tasks"], again["edited_tasks"]) == (0, 0)


def test_after_a_refit_label_studio_agrees_and_open_tasks_are_left_alone(running: Service, work: Project) -> None:
    server, tasks = work.server, work.tasks
    before = work.details["model_version"]
    server.annotate(tasks[0], [region()])
    wait_for(lambda: len(labels(running, work)) == 1, "the webhook has come")
    server.call("POST", f"/api/tasks/{tasks[1]}/drafts", {"result": [], "lead_time": 1})
    running.call("POST", "/train", {"project": work.uid})
    # Read once: while the backend is renamed, Label Studio has no version for a moment.
    version = wait_for(lambda: {work.details["model_version"]} - {before, "", None}, "a new version").pop()
    wait_for(lambda: jobs_done(running, work), "it is published")

    def versions(task: int) -> list[str]:
        found = server.call("GET", "/api/tasks/", project=work.id, page_size=100, fields="all")["tasks"]
        (one,) = [each for each in found if each["id"] == task]
        return sorted(each["model_version"].split(" #")[0] for each in one["predictions"])

    (backend,) = server.call("GET", "/api/ml/", project=work.id)
    assert backend["title"] == backend["model_version"] == version
    assert version in versions(tasks[2])
    assert before in versions(tasks[2])  # kept for whoever has it open; the next publishing takes it away
    assert set(versions(tasks[1])) == {before}
    published = running.call("GET", f"/api/v1/projects/{work.uid}/sync")["publish"]["last"]
    assert published["reused"] == published["refreshed"] == 4
    assert published["at_work"] == 1

    surespan_json(running, "connect", "--project", str(work.id))  # asks for one more
    wait_for(lambda: set(versions(tasks[2])) == {version}, "what is superseded is removed")
    assert set(versions(tasks[1])) == {before}
    assert work.details["model_version"] == version


def test_a_reconciliation_that_breaks_off_goes_on_where_it_was(make_project: ProjectFactory, tmp_path: Path) -> None:
    made = make_project(TEXTS)
    for task in made.tasks:
        made.server.annotate(task, [])

    class Breaking(LabelStudio):
        """Two tasks a page, and the connection is lost on the third."""

        def changed_since(self, project: int, *, since: datetime, size: int = 2) -> Iterator[list[Json]]:
            for number, page in enumerate(super().changed_since(project, since=since, size=size)):
                if number == 2:
                    raise LabelStudioError("gone", status=None, asked="GET /api/tasks/")
                yield page

    settings = load_settings()
    server = made.server
    with open_store(f"sqlite:///{tmp_path / 'own.db'}") as store:
        with store.write() as session:
            known = ensure_project(session, made.uid)
        with Breaking(server.url, server.account.token) as broken, pytest.raises(LabelStudioError, match="gone"):
            sync_project(store, broken, known, settings=settings, classes=("PER",))
        with store.read() as session:
            state = get_state(session, known.id, "sync") or {}
        assert state["error"] == "gone"
        reached = read_moment(state["cursor"])
        with LabelStudio(server.url, server.account.token) as client:
            last = max(read_moment(task["updated_at"]) for task in client.pick_tasks(made.id, made.tasks))
            assert reached < last
            second = sync_project(store, client, known, settings=settings, classes=("PER",))
        with store.read() as session:
            brought = session.execute(sa.select(Event.ordering_key)).scalars().all()
            state = get_state(session, known.id, "sync") or {}
    assert len(brought) == len(set(brought)) == len(TEXTS)
    assert 0 < second.brought_in < len(TEXTS)
    assert state["error"] is None
    assert read_moment(state["cursor"]) < last  # nobody has processed the inbox: what waits there is looked at again


def test_blind_tasks_are_published_blank_and_have_a_tab(blind_service: Service, make_project: ProjectFactory) -> None:
    running = blind_service
    made = make_project([f"Maria {i} lives in Paris." for i in range(20)])
    surespan_json(running, "connect", "--project", str(made.id), "--yes")
    wait_for(lambda: jobs_done(running, made), "the connecting is published")
    with running.open_store() as store, store.read() as session:
        found = find_project(session, made.uid)
        assert found is not None
        blind = {int(each) for each in blind_tasks(session, found.id, limit=99)}
    assert 0 < len(blind) < 20
    tasks = made.server.call("GET", "/api/tasks/", project=made.id, page_size=100, fields="all")["tasks"]
    assert {task["id"] for task in tasks if [each["result"] for each in task["predictions"]] == [[]]} == blind
    assert all(task["predictions_score"] is not None for task in tasks)
    views = made.server.call("GET", "/api/dm/views/", project=made.id)
    (tab,) = [view for view in views if view["data"]["title"] == "Blind audit"]
    shown = made.server.call("GET", "/api/tasks/", view=tab["id"], page_size=100)["tasks"]
    assert {task["id"] for task in shown} == blind
    surespan_json(running, "disconnect", "--project", str(made.id))
    views = made.server.call("GET", "/api/dm/views/", project=made.id)
    assert [view["data"]["title"] for view in views] == ["Default"]
