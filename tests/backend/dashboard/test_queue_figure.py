"""The queue on a project's page: in order, audit tasks without a word about them."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from flask import Flask

from backend.app import service_of
from backend.calibration.order import record_order
from backend.domain.records import AnnotationRecord, Draw, Served, TextSpan
from backend.domain.streams import Order
from backend.store import Store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.labels import record_annotation
from backend.store.projects import find_project, lookup_model
from backend.store.served import record_served
from tests.support.populated import CONFIG, LIST, UID


@pytest.fixture
def app(populated_app: Flask) -> Flask:
    """The pages over a project that has been worked on."""
    return populated_app


def test_audit_tasks_are_listed_blank(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    service = service_of(app)
    addresses = {"label_studio_url": "http://label-studio:8080", "label_studio_public_url": "https://label.example/"}
    monkeypatch.setattr(service, "settings", service.settings.model_copy(update=addresses))
    with Store(service.settings.database_url) as store, store.write() as session:
        project = find_project(session, UID)
        assert project is not None
        header = service.views.model_of(project)
        model = lookup_model(session, header.name, header.hash)
        assert model is not None
        draw = Draw("audit", 0.5, 0.1, blind=True)
        names = ("5001", "5002", "5003")
        tasks = [kept.id for kept in ensure_tasks(session, project.id, [NewTask(n, n, "en", 9, draw) for n in names])]
        made = Served(tasks[0], model.id, None, True, "en/1-10", "en/*", "own", 199, 2.6, False, 7, 2, LIST,
                      datetime.now(UTC), priority=0.0)  # fmt: skip
        empty = replace(made, task_id=tasks[1], shadow=False, set_size=0, priority=0.005)
        wide = replace(made, task_id=tasks[2], shadow=False, is_open=True, set_size=None, priority=0.001)
        record_served(session, [made, empty, wide])
    client = app.test_client()
    rows = list(csv.DictReader(io.StringIO(client.get(f"/dashboard/projects/{UID}/figures/queue.csv").text)))
    assert [row["task"] for row in rows[:3]] == ["5001", "5003", "5002"]
    audit, opened, nothing = rows[:3]
    assert audit["set_size"] == "audit, shown blank"
    assert {value for name, value in audit.items() if name not in {"task", "set_size"}} == {""}
    assert (opened["set_size"], nothing["set_size"]) == ("open", "empty")
    page = client.get(f"/dashboard/projects/{UID}?tab=work").text
    assert "audit, shown blank" in page
    # All labels of this project count, so its tasks must not be picked from here.
    assert "do not work down this list" in page
    assert "in Label Studio</a>" not in page
    assert f"/projects/{project.key}/data?task=5001" not in page
    with Store(service.settings.database_url) as store, store.write() as session:
        record_order(session, project.id, order=Order.REVIEW, at=datetime.now(UTC), source="webhook")
    page = client.get(f"/dashboard/projects/{UID}?tab=work").text
    assert "do not work down this list" not in page
    assert f'href="https://label.example/projects/{project.key}/data?task=5001"' in page


PERSON, OTHER = 90210771, 90210772  # numbers that nothing else has


def test_tasks_that_annotators_labelled_differently_are_named_and_the_annotators_are_not(app: Flask) -> None:
    client, when = app.test_client(), datetime.now(UTC)
    service = service_of(app)
    per, loc = (TextSpan(0, 1, "PER"),), (TextSpan(0, 1, "LOC"),)

    def annotate(task: int, number: int, spans: tuple[TextSpan, ...], who: int, **more: bool) -> None:
        with Store(service.settings.database_url) as store, store.write() as session:
            record_annotation(session, task, AnnotationRecord(number, when, spans, completed_by=who, **more))

    def differing() -> list[dict[str, object]]:
        found: list[dict[str, object]] = client.get(f"/api/v1/queue?project={UID}").get_json()["disagreements"]
        return found

    with Store(service.settings.database_url) as store, store.write() as session:
        project = find_project(session, UID)
        assert project is not None
        # One that is drawn for the audit and one that is not: both are found alike.
        draws = (Draw("audit", 0.5, 0.1, blind=True), Draw("work", 0.5, 0.1, blind=False), None)
        fresh = [NewTask(f"600{n}", f"text {n}", "en", 2, draw) for n, draw in enumerate(draws)]
        first, second, agreed = (kept.id for kept in ensure_tasks(session, project.id, fresh))
    for task, number in ((first, 7001), (second, 7011), (agreed, 7021)):
        annotate(task, number, per, PERSON)
        annotate(task, number + 1, per if task == agreed else loc, OTHER)
    reason = {"reason": "annotators disagree", "votes": 1, "voters": 2}
    assert differing() == [{"task": "6000", **reason}, {"task": "6001", **reason}]
    rows = list(csv.DictReader(io.StringIO(client.get(f"/dashboard/projects/{UID}/figures/disagreements.csv").text)))
    assert [list(row.values()) for row in rows] == [["6000", "1", "2"], ["6001", "1", "2"]]
    annotate(second, 7013, loc, PERSON)  # a majority is still no agreement
    assert differing()[1] == {"task": "6001", "reason": "annotators disagree", "votes": 2, "voters": 3}
    annotate(first, 7003, loc, OTHER, ground_truth=True)
    assert [each["task"] for each in differing()] == ["6001"]
    # Figures of single annotators are for those who open the dashboard: nothing that annotators or Label Studio get
    # names one.
    for answer in (
        client.post("/setup", json={"project": UID, "schema": CONFIG}),
        client.get(f"/versions?project={UID}"),
        client.get(f"/api/v1/queue?project={UID}"),
        client.get(f"/api/v1/projects/{UID}/queue"),
    ):
        assert answer.status_code == 200, answer.text
        assert not any(str(number) in answer.text for number in (PERSON, OTHER))
        assert "completed_by" not in answer.text
