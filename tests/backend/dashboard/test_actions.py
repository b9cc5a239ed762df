"""The actions: asked once, done in one transaction, recorded; refused to whoever is not the page itself."""

from __future__ import annotations

import re
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from backend.app import service_of
from backend.store.actions import list_actions
from backend.store.jobs import list_jobs
from backend.store.overview import active_summary, version_summaries
from backend.store.projects import find_project, lookup_model
from tests.support.populated import UID

PAGE = f"/dashboard/projects/{UID}"
ORIGIN = {"Origin": "http://localhost"}


@pytest.fixture
def app(populated_app: Flask) -> Flask:
    """The pages over a project that has been worked on."""
    return populated_app


def answer_question(client: FlaskClient, action: str, query: str = "", **more: Any) -> Any:
    """Open the question, take its form and send it."""
    page = client.get(f"{PAGE}/actions/{action}{query}")
    assert page.status_code == 200, page.text
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text))
    return client.post(f"{PAGE}/actions/{action}", data=fields | more, headers=ORIGIN)


def jobs(app: Flask) -> list[tuple[str, str]]:
    with service_of(app).reads.read() as session:
        project = find_project(session, UID)
        assert project is not None
        return [(job.kind, job.state) for job in list_jobs(session, project_id=project.id)]


@pytest.mark.parametrize(("action", "query", "job"), [
    ("refit", "", "refit"), ("sync", "", "sync"), ("alpha", "?alpha=.20", "refit"),
])  # fmt: skip
def test_an_action_queues_its_job_and_is_recorded(app: Flask, action: str, query: str, job: str) -> None:
    client = app.test_client()
    answer = answer_question(client, action, query)
    assert answer.status_code == 303
    assert answer.headers["Location"] == f"{PAGE}?done={action}#done"
    assert (job, "queued") in jobs(app)
    assert 'role="status"' in client.get(answer.headers["Location"]).text
    assert "someone on this machine" in client.get(f"{PAGE}?tab=running").text
    with service_of(app).reads.read() as session:
        project = find_project(session, UID)
        assert project is not None
        assert [each.action for each in list_actions(session, project.id)] == [action]
        assert project.alpha == ("0.2" if action == "alpha" else None)
    if action == "alpha":
        assert "Alpha 0.2 has been requested; sets are served at 0.1 until" in client.get(PAGE).text


def test_rolling_back_serves_the_earlier_version_and_publishes(app: Flask) -> None:
    service, client = service_of(app), app.test_client()
    with service.reads.read() as session:
        project = find_project(session, UID)
        assert project is not None
        header = service.views.serving_model(project)
        model = lookup_model(session, header.name, header.hash)
        assert model is not None
        newest, *_, oldest = version_summaries(session, project.id, model_id=model.id)
    assert f"?version={oldest.id}" in client.get(f"{PAGE}?tab=thresholds").text
    assert f"?version={newest.id}" not in client.get(PAGE).text  # it serves already
    assert answer_question(client, "rollback", f"?version={oldest.id}").status_code == 303
    assert ("publish", "queued") in jobs(app)
    with service.reads.read() as session:
        active = active_summary(session, project.id, model_id=model.id)
        assert active is not None
        assert active.id == oldest.id
    assert service.views.model_version(UID, project.label_config or "").endswith(f"+cal.{oldest.id}")
    assert "roll-back by someone on this machine" in client.get(f"{PAGE}?tab=thresholds").text
    assert f"version {oldest.id}, before {newest.id}" in client.get(f"{PAGE}?tab=running").text


def test_an_alarm_that_somebody_has_seen_is_counted_no_more(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.http.collecting.KEPT_SECONDS", 0.0)
    client = app.test_client()
    assert "1 alarm is not yet marked as seen" in client.get(PAGE).text
    assert "Texts have changed." in client.get(f"{PAGE}/actions/seen?alarm=1").text
    for alarm in ("", "x", "2", "9" * 19):
        assert client.get(f"{PAGE}/actions/seen", query_string={"alarm": alarm}).status_code == 404
        assert answer_question(client, "seen", "?alarm=1", alarm=alarm).status_code == 404
    assert client.get("/dashboard/projects/8/actions/seen?alarm=1").status_code == 404, "another project's"
    assert f'surespan_alarms{{kind="drift",project="{UID}"}} 1.0' in client.get("/metrics").text
    assert answer_question(client, "seen", "?alarm=1").status_code == 303
    page = client.get(f"{PAGE}?tab=promise").text
    assert "not yet marked as seen" not in page
    assert "actions/seen" not in page
    assert "marked an alarm as seen" in client.get(f"{PAGE}?tab=running").text
    assert f'surespan_alarms{{kind="drift",project="{UID}"}} 0.0' in client.get("/metrics").text


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("alpha", ["", "0", "1", "1.5", "-0.1", "0.0", "nan", "0,1", "1e-3", "0.1234567890123456789"])
def test_an_alpha_that_is_none_is_refused(app: Flask, alpha: str) -> None:
    client = app.test_client()
    assert client.get(f"{PAGE}/actions/alpha", query_string={"alpha": alpha}).status_code == 400
    assert answer_question(client, "alpha", "?alpha=0.2", alpha=alpha).status_code == 400
    assert ("refit", "queued") not in jobs(app)


FOREIGN = [
    ("no origin", {}, {}),
    ("another origin", {"Origin": "http://localhost.example.com"}, {}),
    ("a hidden origin", {"Origin": "null"}, {}),
    ("another port", {"Origin": "http://localhost:81"}, {}),
    ("another site", ORIGIN | {"Sec-Fetch-Site": "cross-site"}, {}),
    ("no token", ORIGIN, {"token": ""}),
    ("a wrong token", ORIGIN, {"token": "A" * 43}),
    ("an odd token", ORIGIN, {"token": "\u00e4" * 43}),
]


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_forms_of_other_pages_are_refused(app: Flask) -> None:
    client = app.test_client()
    page = client.get(f"{PAGE}/actions/refit").text
    token = dict(re.findall(r'name="(token)" value="([^"]*)"', page))
    assert len(token["token"]) == 43
    for what, headers, changes in FOREIGN:
        for path in (f"{PAGE}/actions/refit", "/dashboard/try"):
            answer = client.post(path, data=token | changes, headers=headers)
            assert answer.status_code == 403, what
    stranger = app.test_client()  # knows a token, but has not its cookie
    assert stranger.post(f"{PAGE}/actions/refit", data=token, headers=ORIGIN).status_code == 403
    empty = app.test_client()
    empty.set_cookie("surespan_token", "", domain="localhost", path="/dashboard")
    assert empty.post(f"{PAGE}/actions/refit", data={"token": ""}, headers=ORIGIN).status_code == 403
    assert ("refit", "queued") not in jobs(app)
    assert client.post(f"{PAGE}/actions/refit", data=token, headers=ORIGIN).status_code == 303


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_the_cookie_is_kept_from_scripts_and_other_sites(app: Flask) -> None:
    cookie = app.test_client().get(f"{PAGE}/actions/refit").headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path=/dashboard" in cookie
    secure = app.test_client().get(f"{PAGE}/actions/refit", base_url="https://localhost").headers["Set-Cookie"]
    assert "Secure" in secure


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_question_changes_nothing(app: Flask) -> None:
    client = app.test_client()
    for query in ("refit", "sync", "alpha?alpha=0.2"):
        assert client.get(f"{PAGE}/actions/{query}").status_code == 200
    assert ("refit", "queued") not in jobs(app)
    assert "Nobody has pressed a button yet." in client.get(f"{PAGE}?tab=running").text
