"""`/api/v1`: the sets of a text, and what the database knows about projects, for programs and pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from flask import Blueprint, Response, jsonify, request
from sqlalchemy.orm import Session

from backend.calibration.order import order_info
from backend.domain.alpha import plain_alpha
from backend.domain.records import JobRecord, ModelRecord, ProjectRecord
from backend.errors import NotFound
from backend.http.bodies import read_json
from backend.http.openapi import document
from backend.labelstudio.payloads import InvalidPayload, describe_kind, kind_of, read_project
from backend.monitoring.report import alarm_list, coverage_report, monitor_report
from backend.prediction.promise import describe_promise
from backend.review.second_looks_report import looks_report
from backend.serving.service import Service
from backend.store.jobs import list_jobs, load_job
from backend.store.judgements import coverage_rows
from backend.store.projects import find_project, list_projects, lookup_model
from backend.store.thresholds import active_version, load_thresholds
from backend.worth.report import worth_report

PREFIX = "/api/v1"
MAX_LIMIT = 500


def blueprint(service: Service) -> Blueprint:
    """Return the routes over a service."""
    routes = Blueprint("api", __name__, url_prefix=PREFIX)

    @routes.get("/openapi.json")
    def openapi() -> Response:
        return jsonify(document())

    @routes.post("/sets")
    def sets() -> Response:
        return jsonify(_sets(service))

    @routes.get("/projects")
    def projects() -> Response:
        with service.reads.read() as session:
            return jsonify({"projects": [_project(session, each) for each in list_projects(session)]})

    @routes.get("/projects/<uid>/thresholds")
    def thresholds(uid: str) -> Response:
        with service.reads.read() as session:
            return jsonify(_thresholds(session, *find_served(service, session, uid)))

    @routes.get("/projects/<uid>/coverage")
    def coverage(uid: str) -> Response:
        with service.reads.read() as session:
            return jsonify(_coverage(session, *find_served(service, session, uid)))

    @routes.get("/projects/<uid>/monitor")
    def monitor(uid: str) -> Response:
        since = _since()
        with service.reads.read() as session:
            project, model = find_served(service, session, uid)
            return jsonify(monitor_report(session, project, model, n_min=service.settings.n_min, since=since))

    @routes.get("/projects/<uid>/second-looks")
    def second_looks(uid: str) -> Response:
        limit = read_limit(50)
        with service.reads.read() as session:
            project, model = find_served(service, session, uid)
            base = service.settings.people_url
            return jsonify(looks_report(session, project, model, base=base, limit=limit))

    @routes.get("/projects/<uid>/worth")
    def worth(uid: str) -> Response:
        with service.reads.read() as session:
            project, model = find_served(service, session, uid)
            return jsonify(worth_report(session, project, model, settings=service.settings))

    @routes.get("/jobs")
    def jobs() -> Response:
        uid = request.args.get("project")
        limit = read_limit(50)
        with service.reads.read() as session:
            project = None if uid is None else find_served(service, session, uid)[0]
            listed = list_jobs(session, project_id=None if project is None else project.id, limit=limit)
        return jsonify({"jobs": [_job(each) for each in listed]})

    @routes.get("/jobs/<int(max=9223372036854775807):number>")
    def job(number: int) -> Response:
        with service.reads.read() as session:
            record = load_job(session, number)
        if record is None:
            raise NotFound("expected the id of a job, got one that does not exist")
        return jsonify(_job(record))

    return routes


def _sets(service: Service) -> dict[str, Any]:
    body = read_json()
    if not isinstance(body, dict):
        raise InvalidPayload("a JSON object with 'text'", describe_kind(body))
    text = body.get("text")
    if not isinstance(text, str):
        raise InvalidPayload("a text under 'text'", kind_of(body, "text"))
    if len(text) > service.settings.max_text:
        raise InvalidPayload(f"a text of at most {service.settings.max_text} characters", f"one of {len(text)}")
    language = body.get("language")
    if language is not None and not (isinstance(language, str) and 0 < len(language) <= 20):
        raise InvalidPayload("a language code of at most 20 characters under 'language'", kind_of(body, "language"))
    alpha = _alpha(body)
    project = read_project(body, default="local")
    with service.admission.enter():
        predictor = service.views.local(project, alpha=alpha)
        with service.gate.turn(project):
            prediction = predictor.predict([text], languages=[language])[0]

    return prediction.as_dict() | {"promise": describe_promise(prediction)}


def _alpha(body: Mapping[str, Any]) -> str | None:
    given = body.get("alpha")
    if given is None:
        return None
    try:
        return plain_alpha(given if isinstance(given, str) else "")
    except ValueError as error:
        raise InvalidPayload(f"{error}, as a text under 'alpha'", kind_of(body, "alpha")) from None


def read_limit(default: int) -> int:
    """Return the `limit` of the request that is being answered."""
    raw = request.args.get("limit")
    if raw is None:
        return default
    if not (raw.isascii() and raw.isdigit() and len(raw) <= 6 and 1 <= int(raw) <= MAX_LIMIT):
        raise InvalidPayload(f"a whole number from 1 to {MAX_LIMIT} as 'limit'", "something else")
    return int(raw)


def _since() -> date | None:
    raw = request.args.get("days")
    if raw is None:
        return None
    if not (raw.isascii() and raw.isdigit() and len(raw) <= 5 and int(raw) >= 1):
        raise InvalidPayload("a whole number from 1 to 99999 as 'days'", "something else")
    return datetime.now(UTC).date() - timedelta(days=int(raw) - 1)


def find_served(service: Service, session: Session, uid: str) -> tuple[ProjectRecord, ModelRecord | None]:
    """Return a project by its id or uid, and the model that serves it if the database knows it.

    Raises:
        NotFound: when there is no such project.
    """
    project = None if "\x00" in uid else find_project(session, uid)
    if project is None:
        raise NotFound("expected the id or uid of a project, got one that does not exist: see /api/v1/projects")
    header = service.views.serving_model(project)
    return project, lookup_model(session, header.name, header.hash)


def _project(session: Session, project: ProjectRecord) -> dict[str, Any]:
    info = order_info(session, project.id)
    return {
        "uid": project.uid,
        "id": project.key,
        "title": project.title,
        "alpha": project.alpha,
        "order": None if info.order is None else info.order.value,
        "since": None if info.since is None else info.since.isoformat(),
        "evidence": info.evidence,
    }


def _thresholds(session: Session, project: ProjectRecord, model: ModelRecord | None) -> dict[str, Any]:
    version = None if model is None else active_version(session, project.id, model_id=model.id)
    if version is None:
        return {"project": project.uid, "threshold_version": 0, "thresholds": []}
    return {
        "project": project.uid,
        "threshold_version": version.id,
        "alpha": version.alpha,
        "method": version.method,
        "evidence": version.evidence,
        "guarantee": version.guarantee,
        "guarantees": version.details.get("guarantees", {}),
        "gap": version.details.get("gap"),
        "skips": version.details.get("skips"),
        "effective_n": version.details.get("effective_n"),
        "n": version.n,
        "created_at": version.created_at.isoformat(),
        "thresholds": [
            {
                "kind": each.kind,
                "pool": each.pool,
                "n": each.n,
                "n_infinite": each.n_infinite,
                "tau": None if math.isinf(each.tau) else each.tau,
            }
            for each in load_thresholds(session, version.id)
        ],
    }


def _coverage(session: Session, project: ProjectRecord, model: ModelRecord | None) -> dict[str, Any]:
    rows = [] if model is None else coverage_rows(session, project.id, model_id=model.id)
    return {"project": project.uid, **coverage_report(rows), "alarms": alarm_list(session, project.id)}


def _job(job: JobRecord) -> dict[str, Any]:
    return {
        "id": job.id,
        "kind": job.kind,
        "key": job.key,
        "state": job.state,
        "attempts": job.attempts,
        "done": job.progress_done,
        "total": job.progress_total,
        "note": job.progress_note,
        "result": job.result,
        "error": job.error,
    }
