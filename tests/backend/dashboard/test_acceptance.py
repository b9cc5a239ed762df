"""Acceptance on a project's page and over HTTP: asked first, queued once, recorded; what cannot be is refused."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from backend.app import service_of
from backend.store.actions import list_actions
from backend.store.jobs import list_jobs
from backend.store.projects import find_project
from tests.backend.dashboard.test_actions import PAGE, answer_question
from tests.support.populated import UID

API = f"/api/v1/projects/{UID}/acceptance"


@pytest.fixture
def app(populated_app: Flask) -> Flask:
    return populated_app


def queued(app: Flask) -> list[tuple[str, dict[str, Any]]]:
    with service_of(app).reads.read() as session:
        project = find_project(session, UID)
        assert project is not None
        jobs = list_jobs(session, project_id=project.id)
        return [(job.kind, dict(job.payload)) for job in jobs if job.kind in {"accept", "withdraw"}]


def recorded(app: Flask) -> list[str]:
    with service_of(app).reads.read() as session:
        project = find_project(session, UID)
        assert project is not None
        return [each.action for each in list_actions(session, project.id)]


def test_the_page_says_what_is_missing_and_asks_before_it_accepts(app: Flask) -> None:
    client = app.test_client()
    page = client.get(f"{PAGE}?tab=work").text
    assert "What nobody needs to open" in page
    assert "No decision has been made: for 2 %: needs 183 blind labels" in page
    question = client.get(f"{PAGE}/actions/accept?max_error=0.05").text
    assert "at most 5 % of all tasks are accepted and wrong" in question
    assert not queued(app)
    answer = answer_question(client, "accept", "?max_error=0.05")
    assert answer.status_code == 303
    ((kind, payload),) = queued(app)
    assert kind == "accept"
    assert (payload["max_error"], payload["promise"], payload["dry_run"]) == ("0.05", "all", "")
    assert "Acceptance is queued" in client.get(answer.headers["Location"]).text
    assert f"{PAGE}/actions/preview" in page
    assert "and accept nothing?" in client.get(f"{PAGE}/actions/preview?max_error=0.05").text
    answer_question(client, "withdraw")
    assert {kind for kind, _ in queued(app)} == {"accept", "withdraw"}
    assert sorted(recorded(app)) == ["accept", "withdraw"]


@pytest.mark.parametrize("share", ["0", "1", "abc", "", "0." + "1" * 40])
def test_a_share_that_cannot_be_is_refused_everywhere(app: Flask, share: str) -> None:
    client = app.test_client()
    assert client.get(f"{PAGE}/actions/accept?max_error={share}").status_code == 400
    assert client.get(f"{API}?max_error={share}").status_code == 400
    assert client.post(API, json={"max_error": share}).status_code == 400
    assert not queued(app)


def test_programs_see_and_ask_for_the_same(app: Flask) -> None:
    client = app.test_client()
    found = client.get(f"{API}?max_error=0.05&of=accepted").json
    assert found is not None
    assert (found["project"], found["max_error"], found["of"]) == (UID, "0.05", "accepted")
    assert (found["acceptable"], found["accepted"], found["decisions"]) == (0, 0, [])
    assert client.get(f"{API}?of=none").status_code == 400
    assert client.get("/api/v1/projects/99.9/acceptance").status_code == 404
    asked = client.post(API, json={"max_error": "0.01", "dry_run": True})
    assert asked.status_code == 200
    assert asked.json is not None
    assert asked.json["max_error"] == "0.01"
    assert client.post(API, json={"max_error": 0.01}).status_code == 400  # a number has lost what was typed
    assert client.post(API, json={"dry_run": "yes"}).status_code == 400
    assert client.post(API, json=[]).status_code == 400
    assert client.delete(API).status_code == 200
    assert [kind for kind, _ in queued(app)] == ["withdraw", "accept"]
    assert sorted(recorded(app)) == ["preview", "withdraw"]
