"""`/api/v1/queue`: what to look at next, and leases so that two annotators are not sent to the same task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, jsonify, request
from sqlalchemy.orm import Session

from backend.http.api import MAX_LIMIT, PREFIX, find_served, read_limit
from backend.http.bodies import read_json
from backend.labelstudio.payloads import MAX_PROJECT, InvalidPayload, describe_kind, kind_of
from backend.review.queue import LONGEST, claim, describe_disagreement, describe_task, review_queue
from backend.serving.service import Service
from backend.store.disagreements import disagreements
from backend.store.queue import NAME, release_claims

LONGEST_MINUTES = LONGEST.total_seconds() / 60


def blueprint(service: Service) -> Blueprint:
    """Return the routes over a service."""
    routes = Blueprint("queue", __name__, url_prefix=PREFIX)

    @routes.get("/queue")
    def everything() -> Response:
        return jsonify(_queue(service, _named(request.args, "project", most=MAX_PROJECT)))

    @routes.get("/projects/<uid>/queue")
    def of_project(uid: str) -> Response:
        return jsonify(_queue(service, uid))

    @routes.post("/queue/claims")
    def claims() -> Response:
        return jsonify(_claim(service))

    @routes.delete("/queue/claims")
    def release() -> Response:
        who = _named(request.args, "for", most=NAME)
        uid = _named(request.args, "project", most=MAX_PROJECT)

        def give_back(session: Session) -> dict[str, Any]:
            project, _ = find_served(service, session, uid)
            return {"project": project.uid, "released": release_claims(session, project.id, who=who)}

        with service.writing.turn("jobs"):
            return jsonify(service.writes.run(give_back))

    return routes


def _queue(service: Service, uid: str) -> dict[str, Any]:
    limit, settings = read_limit(50), service.settings
    with service.reads.read() as session:
        project, model = find_served(service, session, uid)
        tasks = (
            []
            if model is None
            else review_queue(
                session,
                project.id,
                model_id=model.id,
                settings=settings,
                limit=limit,
                evidence_first=request.args.get("evidence_first") == "true",
            )
        )
        differing = disagreements(session, project.id, limit=limit)
    return {
        "project": project.uid,
        "tasks": [describe_task(each) for each in tasks],
        "disagreements": [describe_disagreement(each) for each in differing],
    }


def _claim(service: Service) -> dict[str, Any]:
    body = read_json()
    if not isinstance(body, dict):
        raise InvalidPayload("a JSON object with 'project' and 'for'", describe_kind(body))
    uid, who = _named(body, "project", most=MAX_PROJECT), _named(body, "for", most=NAME)
    limit = body.get("limit", 1)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise InvalidPayload(f"a whole number from 1 to {MAX_LIMIT} under 'limit'", kind_of(body, "limit"))
    minutes = body.get("minutes")
    if minutes is not None and (
        isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 < minutes <= LONGEST_MINUTES
    ):
        raise InvalidPayload(f"a number above 0, up to {LONGEST_MINUTES:g}, under 'minutes'", kind_of(body, "minutes"))
    accept = body.get("review_order", False)
    if not isinstance(accept, bool):
        raise InvalidPayload("true or false under 'review_order'", kind_of(body, "review_order"))
    evidence = body.get("evidence_first", False)
    if not isinstance(evidence, bool):
        raise InvalidPayload("true or false under 'evidence_first'", kind_of(body, "evidence_first"))
    with service.reads.read() as session:
        project, model = find_served(service, session, uid)
    tasks = []
    if model is not None:
        with service.writing.turn("jobs"):
            tasks = claim(
                service.writes,
                project,
                model_id=model.id,
                settings=service.settings,
                who=who,
                limit=limit,
                minutes=minutes,
                accept_review=accept,
                evidence_first=evidence,
            )
    return {"project": project.uid, "tasks": [describe_task(each) for each in tasks]}


def _named(given: Mapping[str, Any], name: str, *, most: int) -> str:
    value = given.get(name)
    if not (isinstance(value, str) and 0 < len(value) <= most and value.isprintable() and value.strip()):
        got = "none" if value is None else "something else"
        raise InvalidPayload(f"a name of at most {most} characters as {name!r}", got)
    return value
