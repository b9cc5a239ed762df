"""`/api/v1/projects/<uid>/models`: the models of a project, and which one serves it."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify
from sqlalchemy.orm import Session

from backend.calibration.promotion import promote
from backend.domain.records import ProjectRecord
from backend.errors import NotFound
from backend.http.api import PREFIX
from backend.jobs.kinds import queue_train
from backend.labelstudio.payloads import InvalidPayload
from backend.learning.report import learning_report
from backend.models.report import models_report
from backend.serving.service import Service
from backend.store.project_models import match_model
from backend.store.projects import find_project

_WHO = "a program"


def blueprint(service: Service) -> Blueprint:
    """Return the routes over a service."""
    routes = Blueprint("models", __name__, url_prefix=PREFIX)

    @routes.get("/projects/<uid>/models")
    def report(uid: str) -> Response:
        with service.reads.read() as session:
            project = _project(session, uid)
            learning = learning_report(session, project, settings=service.settings)
            return jsonify(models_report(session, project, settings=service.settings) | {"learning": learning})

    @routes.post("/projects/<uid>/train")
    def train(uid: str) -> Response:
        if service.settings.learn == "off":
            raise InvalidPayload("SURESPAN_LEARN to be auto or manual", "off: no model is trained here")

        def ask(session: Session) -> dict[str, Any]:
            project = _project(session, uid)
            return {"project": project.uid, "job": queue_train(session, project, who=_WHO)}

        with service.writing.turn("jobs"):
            return jsonify(service.writes.run(ask))

    @routes.post("/projects/<uid>/models/<hash>/promote")
    def change(uid: str, hash: str) -> Response:  # noqa: A002 - the name in the address
        def work(session: Session) -> dict[str, Any]:
            project = _project(session, uid)
            chosen = match_model(session, project.id, hash)
            model = promote(
                session,
                project,
                chosen.model_hash,
                settings=service.settings,
                who=_WHO,
                why=f"asked for by {_WHO}",
            )
            return {"project": project.uid, "hash": model.model_hash, "version": model.version, "state": model.state}

        with service.writing.turn("jobs"):
            done = service.writes.run(work)
        service.views.polled.forget(str(done["project"]))  # this process need not wait for its next look
        return jsonify(done)

    return routes


def _project(session: Session, uid: str) -> ProjectRecord:
    project = None if "\x00" in uid else find_project(session, uid)
    if project is None:
        raise NotFound("expected the id or uid of a project, got one that does not exist: see /api/v1/projects")
    return project
