"""A service says that it is up from its first moment: the application behind it takes a second or two to import."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from backend.errors import BackendError

if TYPE_CHECKING:
    from flask import Flask

_log = logging.getLogger(__name__)
_REFUSED = 3  # gunicorn's own code of a worker that cannot start: it ends the others and gives up
_BODY = json.dumps({"status": "UP", "model": "loading", "model_class": "Surespan"}).encode()
_HEADERS = [("Content-Type", "application/json"), ("Content-Length", str(len(_BODY))), ("Cache-Control", "no-store")]


class Starting:
    """The application of a worker, made in the background: until then /health is answered here, and all else waits."""

    def __init__(self, make: Callable[[], Flask], *, give_up: Callable[[int], None] = os._exit) -> None:
        self._make = make
        self._give_up = give_up
        self._done = threading.Event()
        self._app: Flask | None = None
        threading.Thread(target=self._run, name="surespan-start", daemon=True).start()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request, as WSGI has it."""
        if self._app is None and environ.get("PATH_INFO") == "/health" and environ.get("REQUEST_METHOD") == "GET":
            start_response("200 OK", _HEADERS)
            return [_BODY]
        app = self.made()
        if app is None:
            raise RuntimeError("expected an application, got none: see the log")
        return app(environ, start_response)

    def made(self) -> Flask | None:
        """Wait for the application; None if it could not be made."""
        self._done.wait()
        return self._app

    def _run(self) -> None:
        try:
            self._app = self._make()
        except BackendError as error:  # it says what was expected and what to do
            _log.error("the service could not start: %s", error)
            self._give_up(_REFUSED)
        except Exception:  # noqa: BLE001 - whatever it is, a worker without an application is of no use
            _log.exception("the service could not start")
            self._give_up(_REFUSED)
        finally:
            self._done.set()
