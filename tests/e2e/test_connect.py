"""Connecting a real project of a real Label Studio, what is shown then, and taking it all back."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from backend.connection.connect import PARAGRAPH
from backend.store.jobs import enqueue_job
from backend.store.labels import list_labels
from backend.store.projects import find_project
from backend.store.state import get_state
from backend.store.tables import CalibrationCell, CalibrationScore
from backend.store.tables import Project as ProjectRow
from tests.support.commands import surespan, surespan_json
from tests.support.end_to_end import ProjectFactory
from tests.support.label_studio import UNFLAGGED, LabelStudioServer, Project, Service
from tests.support.waiting import wait_for

TEXTS = [
    "Jordan Miller met Angela Merkel in Berlin on Monday.",
    "Washington beat Manchester in the last minute of the game.",
    "Siemens opens an office in Paris, says Maria Lopez.",
    "It rained all day.",
    "Apple and Amazon are in talks with Jordan.",
    "May went to Reading to see Charlotte.",
]
PLAIN = UNFLAGGED.replace(' showLabels="true"', "")
REGION = {
    "id": "r",
    "from_name": "label",
    "to_name": "text",
    "type": "labels",
    "value": {"start": 0, "end": 6, "text": "Jordan", "labels": ["PER"]},
}


@pytest.fixture(scope="module")
def running(showing_service: Service) -> Service:
    """A service that shows everything: blind tasks have tests of their own."""
    return showing_service


def everything(project: Project) -> dict[str, Any]:
    """All that connecting may change on the server."""
    server = project.server
    fields = "label_config sampling expert_instruction show_instruction show_collab_predictions"
    details = project.details
    backends = server.call("GET", "/api/ml/", project=project.id)
    hooks = server.call("GET", "/api/webhooks/", project=project.id)
    views = server.call("GET", "/api/dm/views/", project=project.id)
    return {
        **{name: details[name] for name in fields.split()},
        "backends": [(each["url"], each["title"], each["basic_auth_user"]) for each in backends],
        "webhooks": [(each["url"], each["headers"]) for each in hooks],
        "tabs": [each["data"]["title"] for each in views if each["data"]["title"] != "Default"],
    }


def predicted(project: Project) -> list[dict[str, Any]]:
    """The tasks with all their predictions, once each has some and a score (which is read before they are)."""

    def fetch() -> list[dict[str, Any]] | None:
        answer = project.server.call("GET", "/api/tasks/", project=project.id, page_size=100, fields="all")
        tasks: list[dict[str, Any]] = answer["tasks"]
        ready = all(task["predictions"] and task["predictions_score"] is not None for task in tasks)
        return tasks if ready else None

    found: list[dict[str, Any]] = wait_for(fetch, "every task has predictions")
    return found


@pytest.mark.parametrize("personal", [False, True], ids=["legacy token", "personal access token"])
def test_connecting_twice_is_connecting_once_and_disconnecting_takes_it_back(
    running: Service, make_project: ProjectFactory, label_studio: LabelStudioServer, personal: bool
) -> None:
    work = make_project(TEXTS, label_config=PLAIN, sampling="Sequential sampling")
    label_studio.call("PATCH", f"/api/projects/{work.id}/", {"expert_instruction": "<p>Be kind.</p>"})
    before = everything(work)
    key = label_studio.personal_token if personal else label_studio.account.token

    said = surespan(running, "connect", "--project", str(work.id), "--yes", LABEL_STUDIO_API_KEY=key)
    assert '+    <Label value="Needs review" background="#FFA000"/>' in said
    connected = everything(work)
    version = connected["backends"][0][1]
    assert connected == {
        "label_config": connected["label_config"],
        "sampling": "Uniform sampling",
        "expert_instruction": f"<p>Be kind.</p>\n{PARAGRAPH}",
        "show_instruction": True,
        "show_collab_predictions": True,
        "backends": [(running.url, version, running.user)],
        "webhooks": [(f"{running.url}/webhook", {"X-Surespan-Secret": running.webhook_secret})],
        "tabs": ["Done"],
    }
    setup = {"project": work.uid, "schema": connected["label_config"]}
    assert version == running.call("POST", "/setup", setup)["model_version"] == work.details["model_version"]
    assert running.call("POST", "/validate", {"config": connected["label_config"]})["flag"] is not None

    again = surespan_json(running, "connect", "--project", str(work.id), "--sampling", "keep")
    assert again["changes"] == []
    assert everything(work) == connected

    surespan(running, "disconnect", "--project", str(work.id), LABEL_STUDIO_API_KEY=key)
    assert everything(work) == before
    assert surespan_json(running, "disconnect", "--project", str(work.id))["changes"] == []


def test_what_someone_changed_since_is_left_to_them(running: Service, make_project: ProjectFactory) -> None:
    work = make_project(TEXTS[:1], label_config=PLAIN, sampling="Sequential sampling")
    surespan_json(running, "connect", "--project", str(work.id), "--yes")
    theirs = {"sampling": "Uncertainty sampling", "expert_instruction": f"{PARAGRAPH}<p>New rule.</p>"}
    work.server.call("PATCH", f"/api/projects/{work.id}/", theirs)
    done = surespan_json(running, "disconnect", "--project", str(work.id))
    after = everything(work)
    assert after["sampling"] == "Uncertainty sampling"
    assert after["expert_instruction"] == "<p>New rule.</p>"
    assert after["label_config"] == PLAIN
    assert done["left"] == ["sampling has been changed since, so it stays as it is"]


@pytest.mark.parametrize("token", ["0" * 40, "eyJ.eyJ.abc"], ids=["legacy", "personal"])
def test_a_wrong_token_is_named_with_its_remedy_and_never_repeated(
    running: Service, make_project: ProjectFactory, token: str
) -> None:
    work = make_project(TEXTS[:1])
    said = surespan(running, "connect", "--project", str(work.id), fails=True, LABEL_STUDIO_API_KEY=token)
    assert "LABEL_STUDIO_API_KEY" in said
    assert "Account & Settings" in said
    assert token not in said
    assert "Traceback" not in said
    assert everything(work)["backends"] == []


def test_predictions_are_stored_so_that_every_view_of_label_studio_shows_the_best_one(
    running: Service, make_project: ProjectFactory
) -> None:
    work = make_project(TEXTS)
    surespan_json(running, "connect", "--project", str(work.id), "--yes")
    tasks = predicted(work)
    version = work.details["model_version"]
    several = 0
    for task in tasks:
        ranks = sorted(task["predictions"], key=lambda each: each["id"])
        names = [version, *(f"{version} #{rank}" for rank in range(2, len(ranks) + 1))]
        assert [each["model_version"] for each in ranks] == names[::-1]  # worst first: the last one is the prelabel
        scores = [each["score"] for each in ranks]
        assert scores == sorted(scores)
        assert task["predictions_score"] == pytest.approx(ranks[-1]["score"])  # the Data Manager's column
        several += len(ranks) > 1
    assert several, "some text must be ambiguous"

    streamed = work.server.call("GET", f"/api/projects/{work.id}/next/")
    best = next(task for task in tasks if task["id"] == streamed["id"])["predictions"]
    rank_one = max(best, key=lambda each: each["id"])
    shown = [each for each in streamed["predictions"] if each["model_version"] == version]
    assert [each["result"] for each in shown] == [rank_one["result"]]


def test_what_label_studio_fetched_while_it_was_published_does_not_stay_twice(
    running: Service, make_project: ProjectFactory
) -> None:
    work = make_project(TEXTS[:2])
    running.connect(work)
    once = {task["id"]: [each["model_version"] for each in task["predictions"]] for task in predicted(work)}

    def publish_state(session: Any) -> dict[str, Any]:
        found = find_project(session, work.uid)
        assert found is not None
        return get_state(session, found.id, "publish") or {}

    with running.open_store() as store, store.read() as session:
        assert publish_state(session)["again_at"] is not None, "another look is due, because something was stored"
    late = [
        {"task": task["id"], **{name: each[name] for name in ("result", "score", "model_version")}}
        for task in predicted(work)
        for each in task["predictions"]
    ]
    work.server.call("POST", f"/api/projects/{work.id}/import/predictions", late)
    assert {task["id"]: len(task["predictions"]) for task in predicted(work)} == {
        number: 2 * len(versions) for number, versions in once.items()
    }
    with running.open_store() as store, store.write() as session:
        found = find_project(session, work.uid)
        assert found is not None
        enqueue_job(session, "publish", key=f"publish:{work.uid}", project_id=found.id)
    running.wait_for_jobs(work)
    assert {task["id"]: [each["model_version"] for each in task["predictions"]] for task in predicted(work)} == once
    with running.open_store() as store, store.read() as session:
        assert publish_state(session)["again_at"] is None


def test_annotations_made_of_predictions_are_one_a_task_and_never_evidence(
    running: Service, make_project: ProjectFactory
) -> None:
    work = make_project(TEXTS)
    surespan_json(running, "connect", "--project", str(work.id), "--yes")
    predicted(work)
    version = work.details["model_version"]
    work.server.call(
        "POST",
        "/api/dm/actions/",
        {"selectedItems": {"all": True, "excluded": []}, "project": work.id, "model_version": version},
        id="predictions_to_annotations",
        project=work.id,
    )
    tasks = work.server.call("GET", "/api/tasks/", project=work.id, page_size=100, fields="all")["tasks"]
    assert [len(task["annotations"]) for task in tasks] == [1] * len(TEXTS)

    def excluded() -> list[str | None] | None:
        with running.open_store() as store, store.read() as session:
            found = find_project(session, work.uid)
            assert found is not None
            labels = list_labels(session, found.id)
            return [label.exclusion for label in labels] if len(labels) == len(TEXTS) else None

    assert wait_for(excluded, "the copies have come in") == ["bulk"] * len(TEXTS)


def test_labels_that_were_there_are_taken_in_and_calibrate_only_if_the_lead_vouches_for_them(
    running: Service, make_project: ProjectFactory
) -> None:
    found = {}
    for vouched in (False, True):
        work = make_project(TEXTS, sampling="Sequential sampling")
        for task in work.tasks[:3]:
            work.server.annotate(task, [])
        options = ["--sampling", "uniform", *(["--random-order"] if vouched else [])]
        answer = surespan_json(running, "connect", "--project", str(work.id), *options)
        assert answer["sync"]["brought_in"] == 3

        def exclusions(work: Project = work) -> list[str] | None:
            rows = running.call("GET", f"/api/v1/projects/{work.uid}/sync")
            assert rows["connected"]
            with running.open_store() as store, store.read() as session:
                return scored_exclusions(session, work.uid)

        found[vouched] = wait_for(exclusions, "the labels are scored")
    assert found == {False: ["undrawn"] * 3, True: [""] * 3}


def scored_exclusions(session: Any, uid: str) -> list[str] | None:
    """Why each scored label of a project may not calibrate, once there are three."""
    query = (
        sa.select(CalibrationCell.exclusion)
        .join(CalibrationScore, CalibrationScore.cell_id == CalibrationCell.id)
        .join(ProjectRow, ProjectRow.id == CalibrationCell.project_id)
        .where(ProjectRow.uid == uid, CalibrationScore.removed_at_revision.is_(None))
    )
    rows = list(session.execute(query).scalars())
    return rows if len(rows) == 3 else None
