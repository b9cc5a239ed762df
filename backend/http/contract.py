"""Label Studio's routes, inside its limits: /health and /setup wait for nothing, /webhook stores and answers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from flask import Blueprint, Response, jsonify, request

from backend.http.bodies import read_json
from backend.labelstudio.config import parse_config
from backend.labelstudio.payloads import InvalidPayload, describe_kind, kind_of, read_event, read_predict, read_project
from backend.labelstudio.payloads import read_setup as read_setup_body
from backend.serving.service import Service
from backend.store.projects import find_project, list_projects, lookup_model
from backend.store.thresholds import active_version_ids, list_versions

MAX_VERSIONS = 100


def blueprint(service: Service) -> Blueprint:
    """Return the routes over a service."""
    routes = Blueprint("contract", __name__)

    @routes.get("/health")
    def health() -> Response:
        return jsonify({"status": "UP", "model": service.loader.state, "model_class": "Surespan"})

    @routes.post("/setup")
    def setup() -> Response:
        return jsonify({"model_version": service.setup(read_setup_body(read_json()))})

    @routes.post("/predict")
    def predict() -> Response:
        return _predict(service)

    @routes.post("/webhook")
    def webhook() -> Response:
        try:
            event = read_event(read_json())
        except InvalidPayload:
            service.measures.events.labels("refused").inc()
            raise
        number = service.store_delivery(event)
        service.measures.events.labels("stored").inc()
        return jsonify({"status": "stored", "event": number})

    @routes.post("/train")
    def train() -> Response:
        body = read_json()
        if not isinstance(body, dict):
            raise InvalidPayload("a JSON object with 'project'", describe_kind(body))
        refit, training = service.queue_training(read_project(body), who="/train")
        return jsonify({"status": "queued", "job": str(refit), "training": str(training)})

    @routes.get("/versions")
    def versions() -> Response:
        return jsonify(_versions(service, request.args.get("project")))

    @routes.post("/validate")
    def validate() -> Response:
        body = read_json()
        if not isinstance(body, dict):
            raise InvalidPayload("a JSON object with 'config'", describe_kind(body))
        config = body.get("config")
        if not isinstance(config, str):
            raise InvalidPayload("the label config as a text under 'config'", kind_of(body, "config"))
        return jsonify(_validate(service, config))

    return routes


def _predict(service: Service) -> Response:
    """Answer in a stream: Label Studio gives up after 100 s without a byte, not after 100 s in all.

    The first chunk is made before the answer begins, so that what can go wrong as a whole ends in a status.
    """
    service.admission.acquire()
    released = False

    def release() -> None:
        nonlocal released
        if not released:
            released = True
            service.admission.release()

    try:
        entries = service.predict(read_predict(read_json()))
        first = list(_take_one(entries))
    except BaseException:
        release()
        raise
    response = Response(_frame(chain(first, entries)), content_type="application/json")
    response.call_on_close(release)
    return response


def _take_one(entries: Iterator[bytes]) -> Iterator[bytes]:
    for entry in entries:
        yield entry
        return


def _frame(entries: Iterator[bytes]) -> Iterator[bytes]:
    yield b'{"results":['
    for i, entry in enumerate(entries):
        yield b"," + entry if i else entry
    yield b"]}"


def _versions(service: Service, project: str | None) -> dict[str, Any]:
    """Return the versions of one project, newest first; without one, those that serve any project now.

    Label Studio does not say for which project it asks.
    """
    names: list[str] = []
    with service.reads.read() as session:
        chosen = None if project is None or "\x00" in project else find_project(session, project)
        active = active_version_ids(session)
        for row in list_projects(session) if project is None else [chosen] if chosen is not None else []:
            header = service.views.serving_model(row)
            model = lookup_model(session, header.name, header.hash)
            numbers = [0]
            if model is not None and project is None:
                numbers = [active.get((row.id, model.id), 0)]
            elif model is not None:
                versions = list_versions(session, row.id, model_id=model.id, limit=MAX_VERSIONS)
                numbers = [*(version.id for version in versions), 0]
            names += [f"{header.version}+cal.{number}" for number in numbers]
    return {"versions": list(dict.fromkeys(names))[:MAX_VERSIONS] or [f"{service.loader.header().version}+cal.0"]}


def _validate(service: Service, config: str) -> dict[str, Any]:
    target = parse_config(config).target(service.loader.header().classes, control=service.settings.labels_control)
    return {
        "status": "ok",
        "control": target.control,
        "text": target.text.name,
        "labels": dict(target.labels),
        "unknown": list(target.unknown),
        "flag": None if target.flag is None else {"control": target.flag.control, "label": target.flag.value},
    }
