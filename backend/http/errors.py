"""Every error that leaves the service: one map from exceptions to statuses, one shape of body.

The body is `{"error", "expected", "got", "hint"}`. It never carries a traceback or anything of a task.
"""

from __future__ import annotations

import json
import logging

from flask import Flask, Response
from werkzeug.exceptions import HTTPException

from backend.errors import (
    BackendError,
    InvalidEvent,
    InvalidLabelConfig,
    InvalidSetting,
    ModelUnavailable,
    NotFound,
    Overloaded,
    SchemaMismatch,
    StoreAgain,
    StoreBusy,
    StoreConflict,
    StoreFull,
    StoreUnavailable,
)
from backend.labelstudio.payloads import InvalidPayload
from backend.logs import stack_of

_log = logging.getLogger(__name__)

# The first class that fits decides.
STATUS: dict[type[BackendError], int] = {
    InvalidPayload: 400,
    InvalidEvent: 400,
    InvalidLabelConfig: 422,
    InvalidSetting: 422,
    NotFound: 404,
    StoreConflict: 409,
    StoreFull: 507,
    StoreBusy: 503,
    StoreAgain: 503,
    StoreUnavailable: 503,
    SchemaMismatch: 503,
    ModelUnavailable: 503,
    Overloaded: 503,
}
RETRY_AFTER = "5"  # seconds

_EXPECTED = {
    400: "a request of the documented shape",
    401: "valid credentials",
    403: "a request that may come from there",
    404: "an address that exists",
    405: "a method that the route has",
    411: "a length of the body",
    413: "a body within the limit",
    415: "a body of JSON",
}


def problem(status: int, error: str, *, expected: str = "", got: str = "", hint: str = "") -> Response:
    """Return an error response."""
    body = {"error": error, "expected": expected, "got": got, "hint": hint}
    response = Response(json.dumps(body), status, content_type="application/json")
    if status == 503:
        response.headers["Retry-After"] = RETRY_AFTER
    return response


def register(app: Flask) -> None:
    """Answer every exception of this app with the body above."""
    app.register_error_handler(BackendError, _on_purpose)
    app.register_error_handler(HTTPException, _of_http)
    app.register_error_handler(Exception, _unexpected)


def status_of(error: BackendError) -> int:
    """Return the status of one of our own errors.

    >>> status_of(StoreBusy("...")), status_of(BackendError("..."))
    (503, 500)
    """
    return next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)


def _on_purpose(error: BackendError) -> Response:
    status = status_of(error)
    if status >= 500:
        _log.error("request failed", extra={"error": type(error).__name__, "reason": str(error)})
    name = _words(type(error).__name__)
    if isinstance(error, InvalidPayload):
        return problem(status, name, expected=error.expected, got=error.got, hint=error.hint)
    if status >= 500 and not isinstance(error, ModelUnavailable | Overloaded):
        # The message names the database; who asks need not know it.
        return problem(status, name, expected="a database that answers", got=name, hint="see the log of the service")
    expected, got, hint = split_message(str(error))
    return problem(status, name, expected=expected, got=got, hint=hint)


def _of_http(error: HTTPException) -> Response:
    status = error.code or 500
    response = problem(status, error.name, expected=_EXPECTED.get(status, ""), got=error.name.lower())
    # A redirect's Location and a 405's Allow belong to the answer.
    for name, value in error.get_headers():
        if name.lower() not in {"content-type", "content-length"}:
            response.headers[name] = value
    return response


def _unexpected(error: Exception) -> Response:
    _log.error("unexpected error", extra={"error": type(error).__name__, "stack": stack_of(error)})
    return problem(500, "Internal error", got=type(error).__name__, hint="see the log of the service")


def split_message(message: str) -> tuple[str, str, str]:
    """Split one of our messages into expected, got and hint.

    >>> split_message("expected a list, got null: send one")
    ('a list', 'null', 'send one')
    """
    head, _, rest = message.partition(", got ")
    if not rest:
        return "", message, ""
    cuts = [place for mark in ("; ", ": ") if (place := rest.find(mark)) >= 0]
    at = min(cuts, default=len(rest))
    return head.partition("expected ")[2] or head, rest[:at], rest[at + 2 :]


def _words(name: str) -> str:
    """Return the name of a class as words."""
    return "".join(f" {c.lower()}" if c.isupper() and i else c for i, c in enumerate(name))
