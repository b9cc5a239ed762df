"""`/dashboard/try` over a real model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask

from backend.app import create_app, service_of
from backend.dashboard.tryout import Piece, cut, marked
from backend.settings import load_settings
from backend.store import Store
from backend.store.jobs import list_jobs
from backend.store.projects import ensure_project
from backend.store.tables import Base
from backend.worker.worker import Worker
from tests.support.populated import CONFIG, UID, populate

pytestmark = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)


@pytest.fixture
def trying(url: str, served_model: Path) -> Iterator[Flask]:
    app = create_app(load_settings(database_url=url, model=str(served_model), n_min=20, alpha="0.1"))
    with Store(url) as store, store.write() as session:
        ensure_project(session, UID, title="Letters", label_config=CONFIG)
    yield app
    service_of(app).close()


def post(app: Flask, **given: str) -> str:
    client = app.test_client()
    token = re.findall(r'name="token" value="([^"]*)"', client.get("/dashboard/try").text)[0]
    answer = client.post("/dashboard/try", data={"token": token, **given}, headers={"Origin": "http://localhost"})
    assert answer.status_code == 200, answer.text
    return str(answer.text)


def rows(app: Flask) -> dict[str, int]:
    with Store(service_of(app).settings.database_url) as store, store.read() as session:
        return {name: session.query(table).count() for name, table in Base.metadata.tables.items()}


def test_a_text_is_shown_with_its_sets_and_nothing_is_kept(trying: Flask) -> None:
    before = rows(trying)
    page = post(trying, text="Anna <script>alert(1)</script> went to Berlin.", alpha="0.3", language="en")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "calibration labels for" in page  # the promise, or why there is none
    assert "The threshold that applied" in page
    assert "<dd>0.3</dd>" in page
    assert re.search(r"The set: \d+ labeling|Open set|Empty set", page)
    assert rows(trying) == before


def test_a_project_gives_its_classes_and_its_model(trying: Flask) -> None:
    everything, mine = post(trying, text="Anna went to Berlin."), post(trying, text="Anna in Rome.", project=UID)
    versions = [re.findall(r"<dd>([^<]+@[^<]+)</dd>", page)[0] for page in (everything, mine)]
    assert versions[0] != versions[1]  # another label space is another model


def test_another_alpha_is_served_with_the_version_that_the_refit_makes_for_it(trying: Flask) -> None:
    service = service_of(trying)
    service.views.polled.every = 0.0
    with Store(service.settings.database_url) as store:
        project = populate(store, service.views.model_of)
    before = service.views.model_version(UID, CONFIG)
    client, path = trying.test_client(), f"/dashboard/projects/{UID}/actions/alpha"
    token = re.findall(r'name="token" value="([^"]*)"', client.get(f"{path}?alpha=0.3").text)[0]
    form = {"token": token, "alpha": "0.3"}
    assert client.post(path, data=form, headers={"Origin": "http://localhost"}).status_code == 303
    assert service.views.model_version(UID, CONFIG) == before
    assert "<dd>0.1</dd>" in post(trying, text="Anna in Rome.", project=UID)
    worker = Worker(service.settings, service.writes, loader=service.loader, views=service.views)
    while worker.step_jobs():
        pass
    with service.reads.read() as session:
        assert {job.kind: (job.state, job.error) for job in list_jobs(session, project_id=project.id)}["refit"] == (
            "done",
            None,
        )
    assert service.views.model_version(UID, CONFIG) != before
    assert "<dd>0.3</dd>" in post(trying, text="Anna in Rome.", project=UID)
    assert "alpha 0.3, by someone on this machine" in client.get(f"/dashboard/projects/{UID}?tab=thresholds").text


def test_what_cannot_be_used_is_said(trying: Flask) -> None:
    assert "Expected a text, got none." in post(trying, text="  ")
    assert "Expected a decimal number between 0 and 1" in post(trying, text="a", alpha="2")
    assert "Expected a language code" in post(trying, text="a", language="<en>")
    assert "Expected a text of at most 1000000 characters" in post(trying, text="a" * 1_000_001)


def test_doubt_wins_over_the_best_labeling(kind: str) -> None:  # noqa: ARG001 - see pytestmark
    answer = {
        "labelings": [{"spans": [{"start": 0, "end": 4, "label": "PER"}, {"start": 8, "end": 12, "label": "LOC"}]}],
        "spans": [
            {"start": 8, "end": 15, "flagged": True, "labels": [{"label": "LOC", "p_value": 0.5}]},
            {"start": 0, "end": 4, "flagged": False, "labels": [{"label": "PER", "p_value": 0.5}]},
        ],
    }
    pieces = marked("Anna in Rome II.", answer)
    assert [(piece.text, piece.label, piece.doubtful) for piece in pieces] == [
        ("Anna", "PER", False), (" in ", "", False), ("Rome II", "LOC", True), (".", "", False),
    ]  # fmt: skip
    assert cut("abc", []) == (Piece("abc"),)
