"""`/api/v1`, `/metrics`, and every documented route under schemathesis."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import schemathesis
from flask import Flask
from hypothesis import HealthCheck, given, seed, settings
from pydantic import SecretStr
from schemathesis.specs.openapi.checks import positive_data_acceptance

from backend.app import service_of
from backend.domain.records import AnnotationRecord, SequenceScores, ThresholdRow
from backend.http.openapi import document
from backend.monitoring.monitor import Monitor
from backend.serving.measures import Measures
from backend.serving.service import Service
from backend.store import Store
from backend.store.calibration import record_scores
from backend.store.labels import record_annotation
from backend.store.projects import ensure_model, ensure_project, find_project, find_task
from backend.store.served import served_before
from backend.store.thresholds import write_version
from tests.support import payload_shapes as shapes
from tests.support.service import MakeApp


def test_the_document_names_exactly_the_routes(idle_app: Flask) -> None:
    app = idle_app
    rules = {
        (re.sub(r"<(?:[^<>]*:)?(\w+)>", r"{\1}", rule.rule), method)
        for rule in app.url_map.iter_rules()
        if not rule.rule.startswith("/dashboard")  # pages for people
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert rules == {(path, method.upper()) for path, item in document()["paths"].items() for method in item}


def test_the_sets_of_a_text(app: Flask, service: Service) -> None:
    client = app.test_client()
    answer = client.post("/api/v1/sets", json={"text": shapes.TEXTS[0], "alpha": "0.2"}).json
    made = service.views.local("local", alpha="0.2").predict([shapes.TEXTS[0]])[0].as_dict()
    assert answer.items() >= made.items()
    assert answer["promise"].startswith("No promise")
    for body in (
        {"text": 1},
        {"text": "a", "alpha": 0.1},
        {"text": "a", "alpha": "2"},
        {"text": "a", "alpha": "1e-2000000"},
        {"text": "a", "alpha": "0.05_"},
        {"text": "x" * 1_000_001},
    ):
        assert client.post("/api/v1/sets", json=body).status_code == 400


@pytest.fixture
def labelled(app: Flask, service: Service) -> Flask:
    """Five tasks served, the first three labelled: two of these sets held the label."""
    texts = [shapes.TEXTS[i] for i in (0, 1, 3, 2, 4)]  # the labelled ones are one sentence each
    tasks = [shapes.task(i, f"{i} {text}") for i, text in enumerate(texts, start=1)]
    assert app.test_client().post("/predict", json=shapes.predict(tasks), buffered=True).status_code == 200
    tagger = service.views.view(shapes.PROJECT, shapes.CONFIG).predictor.tagger
    with Store(service.writes.url) as store, store.write() as session:
        project = ensure_project(session, shapes.PROJECT)
        model = ensure_model(session, tagger.name, tagger.hash, classes=tagger.space.classes)
        for number, rank in ((1, 1.0), (2, 1.0), (3, float("inf"))):
            task = find_task(session, project.id, external_id=str(number))
            assert task is not None
            assert task.draw is None
            when = datetime.now(UTC)
            change = record_annotation(session, task.id, AnnotationRecord(number, when, ()))[0]
            assert change.label is not None
            record_scores(
                session,
                project.id,
                model_id=model.id,
                task_id=task.id,
                label_revision=change.label.revision,
                stratum="de/1-10",
                evidence="blind",
                scores=SequenceScores(-math.log(0.9) if rank == 1 else rank, rank, 0.5),
            )
        write_version(
            session,
            project.id,
            model_id=model.id,
            alpha="0.1",
            method="nc1",
            evidence="blind",
            guarantee="own",
            input_revision=3,
            content=service.views.view(shapes.PROJECT, shapes.CONFIG).predictor.calibration.thresholds.to_bytes(),
            thresholds=[ThresholdRow("pool", "all", 3, 1, float("inf")), ThresholdRow("class", "PER", 3, 0, 2.5)],
        )
    with Store(service.writes.url) as store:
        assert Monitor(store).watch(project, model=model).judged == 3
    return app


def test_thresholds_coverage_and_queue_of_a_project(labelled: Flask, service: Service) -> None:
    client = labelled.test_client()
    assert [each["uid"] for each in client.get("/api/v1/projects").json["projects"]] == [shapes.PROJECT]
    for uid in (shapes.PROJECT, "31"):  # the whole uid, or the id alone
        thresholds = client.get(f"/api/v1/projects/{uid}/thresholds").json
        assert (thresholds["guarantee"], thresholds["threshold_version"]) == ("own", 1)
        assert [(each["kind"], each["tau"]) for each in thresholds["thresholds"]] == [("class", 2.5), ("pool", None)]
    coverage = client.get(f"/api/v1/projects/{shapes.PROJECT}/coverage").json
    overall = coverage["overall"]["blind"]
    # A label that the model cannot express is held by an open set and by no other.
    assert overall["judged"] == 3
    assert overall["covered"] == 2 + self_open(service)
    low, high = overall["interval_95"]
    assert low <= overall["coverage"] <= high
    assert overall["open"] == sum(each["open"] for each in coverage["strata"])
    assert sum(each["judged"] for each in coverage["strata"]) == 3
    report = client.get(f"/api/v1/projects/{shapes.PROJECT}/monitor").json
    assert report["coverage"]["overall"]["blind"] == overall
    assert report["evidence"]["state"] == "own"
    assert all(report[part]["advice"] for part in ("evidence", "coverage", "drift", "gap", "skips"))
    later = client.get(f"/api/v1/projects/{shapes.PROJECT}/monitor?days=1").json
    assert later["coverage"]["overall"]["blind"]["judged"] == 3
    assert client.get(f"/api/v1/projects/{shapes.PROJECT}/monitor?days=0").status_code == 400
    queue = client.get(f"/api/v1/projects/{shapes.PROJECT}/queue").json["tasks"]
    assert {each["task"] for each in queue} == {"4", "5"}  # the labelled ones are done
    assert queue == sorted(queue, key=lambda each: (not each["open"] and each["set_size"] != 0, -each["value"]))
    assert all(each["value"] > 0 and not each["blind"] for each in queue)
    assert len(client.get(f"/api/v1/projects/{shapes.PROJECT}/queue?limit=1").json["tasks"]) == 1
    assert client.get(f"/api/v1/queue?project={shapes.PROJECT}").json["tasks"] == queue
    for path in (
        "/api/v1/projects/99/queue",
        "/api/v1/projects/99/coverage",
        "/api/v1/jobs/1",
        "/api/v1/jobs?project=99",
    ):
        assert client.get(path).status_code == 404, path
    for limit in ("0", "501", "x", "-1", "1e2", "٣"):
        assert client.get(f"/api/v1/jobs?limit={limit}").status_code == 400


def test_annotators_lease_tasks_of_the_queue(labelled: Flask) -> None:
    client = labelled.test_client()
    url = "/api/v1/queue/claims"

    def lease(who: str, **more: Any) -> list[str]:
        answer = client.post(url, json={"project": "31", "for": who} | more)
        assert answer.status_code == 200, answer.text
        return [each["task"] for each in answer.json["tasks"]]

    refused = client.post(url, json={"project": "31", "for": "ann"})  # nobody has said how tasks are given out
    assert refused.status_code == 409
    assert "review_order" in refused.json["hint"]
    first = lease("ann", review_order=True)
    assert len(first) == 1
    (second,) = lease("bob", limit=5, minutes=5)  # what is left of the two
    assert {*first, second} == {"4", "5"}
    assert lease("ann") == first
    assert lease("cem") == []
    assert client.get("/api/v1/queue?project=31").json["tasks"] == []
    assert client.delete(f"{url}?project=31&for=bob").json == {"project": shapes.PROJECT, "released": 1}
    assert lease("cem") == [second]
    for body in (
        [],
        {"project": "31"},
        {"project": "31", "for": ""},
        {"project": "31", "for": "a\x00"},
        {"project": "31", "for": "a", "limit": 0},
        {"project": "31", "for": "a", "limit": True},
        {"project": "31", "for": "a", "minutes": 0},
        {"project": "31", "for": "a", "minutes": 1e9},
        {"project": "31", "for": "a", "review_order": 1},
    ):
        assert client.post(url, json=body).status_code == 400, body
    assert client.post(url, json={"project": "99", "for": "a"}).status_code == 404
    assert client.get("/api/v1/queue").status_code == 400
    assert client.delete(f"{url}?project=31").status_code == 400


def self_open(service: Service) -> int:
    """1 if the set of task 3 was served with an infinite threshold."""
    with service.reads.read() as session:
        project = find_project(session, shapes.PROJECT)
        assert project is not None
        task = find_task(session, project.id, external_id="3")
        assert task is not None
        served = served_before(session, task.id, at=datetime.now(UTC) + timedelta(hours=1))
    assert served is not None
    return int(served.tau == float("inf"))


def test_metrics_say_what_happened(labelled: Flask, service: Service) -> None:
    client = labelled.test_client()
    client.post("/webhook", json=shapes.events()[0])
    client.post("/webhook", data=b"{}")
    text = client.get("/metrics").get_data(as_text=True)
    for line in (
        'surespan_requests_total{route="/predict",status="200"} 1.0',
        'surespan_requests_total{route="/webhook",status="400"} 1.0',
        "surespan_predict_tasks_sum 5.0",
        'surespan_predicted_tasks_total{source="model"} 5.0',
        'surespan_events_total{outcome="stored"} 1.0',
        'surespan_events_total{outcome="refused"} 1.0',
        'surespan_served_sets_total{outcome="recorded"} 5.0',
        'surespan_inbox_events{state="pending"} 1.0',
        "surespan_threshold_versions 1.0",
        f'surespan_active_version{{project="{shapes.PROJECT}"}} 1.0',
        "surespan_model_ready 1.0",
    ):
        assert line in text.splitlines(), line
    stages = {"tagging", "decoding", "sets", "rendering", "storing"}
    for stage in stages:
        assert f'surespan_predict_stage_seconds_total{{stage="{stage}"}}' in text
    assert f'surespan_live_coverage_tasks{{kind="blind",project="{shapes.PROJECT}",stratum="' in text
    assert service.measures.registry.get_sample_value("surespan_predict_stage_seconds_total", {"stage": "tagging"})


def test_two_apps_count_apart() -> None:
    one, two = Measures(), Measures()
    one.open_sets.inc()
    assert one.registry.get_sample_value("surespan_open_sets_total") == 1
    assert two.registry.get_sample_value("surespan_open_sets_total") == 0


def test_a_database_that_is_gone_costs_its_metrics_only(make_app: MakeApp, tmp_path: Any) -> None:
    app = make_app()
    service_of(app).loader.tagger(60)
    for path in tmp_path.glob("surespan.db*"):
        path.unlink()
    service_of(app).reads.close()
    text = app.test_client().get("/metrics").get_data(as_text=True)
    assert "surespan_model_ready 1.0" in text
    assert "surespan_inbox_events" not in text


USER, PASSWORD = "ann", "password"


def check_routes(make_app: MakeApp, examples: int) -> None:
    """Send what the document allows, and what it does not, to every route; no 5xx, and answers as documented."""
    app = make_app(basic_auth_user=USER, basic_auth_pass=SecretStr(PASSWORD))
    service_of(app).loader.tagger(60)
    headers = {"Authorization": "Basic " + b64encode(f"{USER}:{PASSWORD}".encode()).decode()}
    schema = schemathesis.openapi.from_wsgi("/api/v1/openapi.json", app, headers=headers)
    failures = []
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @seed(0)
        @given(operation.as_strategy())
        def check(case: Any) -> None:
            # That a text is a label config, or a decimal number, is beyond what a schema says: 422 and 400 say it.
            case.call_and_validate(headers=headers, excluded_checks=[positive_data_acceptance])

        try:
            check()
        except (AssertionError, BaseExceptionGroup) as error:  # all routes are reported at once
            failures.append(f"{operation.label}: {error!r} {getattr(error, 'exceptions', '')}")
    assert not failures, "\n".join(failures)[:4000]


def test_every_route_answers_as_documented(make_app: MakeApp) -> None:
    check_routes(make_app, 10)


@pytest.mark.slow
def test_every_route_answers_as_documented_many_times(make_app: MakeApp) -> None:
    check_routes(make_app, 300)
