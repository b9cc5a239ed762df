"""`/api/v1/projects/<uid>/acceptance`: which tasks nobody needs to open, accepting them, and taking that back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, jsonify, request
from sqlalchemy.orm import Session

from backend.acceptance.decision import Wish
from backend.acceptance.report import acceptance_report, default_wish
from backend.http.api import PREFIX, find_served
from backend.http.bodies import read_json
from backend.jobs.kinds import queue_accept, queue_withdraw
from backend.labelstudio.payloads import InvalidPayload, describe_kind
from backend.serving.service import Service
from backend.store.actions import record_action
from conformal.errors import InvalidArgument
from conformal.risk.acceptance import Promise

_WHO = "a program"


def blueprint(service: Service) -> Blueprint:
    """Return the routes over a service."""
    routes = Blueprint("acceptance", __name__, url_prefix=PREFIX)

    @routes.get("/projects/<uid>/acceptance")
    def report(uid: str) -> Response:
        with service.reads.read() as session:
            project, model = find_served(service, session, uid)
            wish = read_wish(request.args, default_wish(session, project.id))
            return jsonify(acceptance_report(session, project, model, settings=service.settings, wish=wish))

    @routes.post("/projects/<uid>/acceptance")
    def accept(uid: str) -> Response:
        body = read_json()
        if not isinstance(body, dict):
            raise InvalidPayload("a JSON object with 'max_error', 'of' and 'dry_run'", describe_kind(body))
        dry = body.get("dry_run", False)
        if not isinstance(dry, bool):
            raise InvalidPayload("true or false under 'dry_run'", describe_kind(dry))

        def queue(session: Session) -> dict[str, Any]:
            project, _ = find_served(service, session, uid)
            wish = read_wish(body, default_wish(session, project.id))
            asked = {"max_error": wish.max_error, "of": wish.promise.value}
            job = queue_accept(
                session, project, max_error=wish.max_error, promise=wish.promise.value, who=_WHO, dry_run=dry
            )
            action = "preview" if dry else "accept"
            record_action(session, project.id, who=_WHO, action=action, details=asked | {"job": job})
            return {"project": project.uid, "job": job} | asked

        with service.writing.turn("jobs"):
            return jsonify(service.writes.run(queue))

    @routes.delete("/projects/<uid>/acceptance")
    def withdraw(uid: str) -> Response:
        def queue(session: Session) -> dict[str, Any]:
            project, _ = find_served(service, session, uid)
            job = queue_withdraw(session, project, reason=f"asked for by {_WHO}")
            record_action(session, project.id, who=_WHO, action="withdraw", details={"job": job})
            return {"project": project.uid, "job": job}

        with service.writing.turn("jobs"):
            return jsonify(service.writes.run(queue))

    return routes


def read_wish(given: Mapping[str, Any], default: Wish) -> Wish:
    """Return what a request wishes for; what it does not say is as in `default`.

    Raises:
        InvalidPayload: when the share is not a number between 0 and 1, or `of` is neither word.
    """
    share, of = given.get("max_error", default.max_error), given.get("of", default.promise.value)
    if not (isinstance(of, str) and of in list(Promise)):
        raise InvalidPayload("all or accepted as 'of'", describe_kind(of))
    try:
        if not isinstance(share, str) or len(share) > 20:
            raise InvalidArgument("")  # noqa: TRY301 - said below
        return Wish(share, Promise(of))
    except InvalidArgument:
        raise InvalidPayload("a number between 0 and 1 as a text such as '0.02' as 'max_error'", "another") from None
