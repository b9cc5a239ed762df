"""Request ids, one log line per request, and its count and time."""

from __future__ import annotations

import logging
import re
import time
import uuid

from flask import Flask, Response, g, request

from backend.logs import request_id
from backend.serving.measures import Measures

_log = logging.getLogger("backend.http")
HEADER = "X-Request-ID"
_USABLE = re.compile(r"[A-Za-z0-9._-]{1,64}")


def register(app: Flask, measures: Measures) -> None:
    """Give every request an id, and say at its end how it went."""

    @app.before_request
    def begin() -> None:
        given = request.headers.get(HEADER, "")
        g.request_id = given if _USABLE.fullmatch(given) else uuid.uuid4().hex
        g.begun = time.perf_counter()
        request_id.set(g.request_id)

    @app.after_request
    def end(response: Response) -> Response:
        begun = g.get("begun")
        if begun is None:
            return response
        identity = g.request_id
        response.headers[HEADER] = identity
        route = request.url_rule.rule if request.url_rule is not None else "unmatched"
        fields = {"method": request.method, "route": route, "status": response.status_code}

        def finish() -> None:
            seconds = time.perf_counter() - begun
            measures.requests.labels(route, str(response.status_code)).inc()
            measures.latency.labels(route).observe(seconds)
            level = logging.DEBUG if route in {"/health", "/metrics"} else logging.INFO
            _log.log(level, "request", extra=fields | {"request_id": identity, "ms": round(1000 * seconds, 1)})

        if response.is_streamed:
            response.call_on_close(finish)  # the last byte is yet to be made
        else:
            finish()
        return response
