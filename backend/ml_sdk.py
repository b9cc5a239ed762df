"""The same predictor for people who run `label-studio-ml start` (the SDK's 2.x line) instead of `surespan serve`.

    label-studio-ml create backend --script .../backend/ml_sdk.py:Surespan
    label-studio-ml start backend

The SDK makes an object per request; the model, the database and the cache behind it are one per process, made at the
first request. Prefer `surespan serve`: the SDK hands on only some events (deletions and bulk submits are dropped, so
run `surespan worker`, which reconciles), holds a whole answer in memory, and asks for basic auth where Label Studio
sends none (`/webhook`). docs/operate.md says more.
"""

from __future__ import annotations

import atexit
import hmac
import json
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from flask import abort, has_request_context, request

from backend.errors import BackendError
from backend.labelstudio.payloads import SECRET_HEADER, START_TRAINING, SetupIn, read_predict, read_project
from backend.serving.service import Service
from backend.settings import load_settings

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the SDK's own deprecations
        from label_studio_ml.model import LabelStudioMLBase
except ImportError:  # the package on the index is 1.x, which cannot be installed beside current Flask

    class LabelStudioMLBase:  # type: ignore[no-redef]
        """Stands in for the SDK's class where the SDK is missing; says so when it is used."""

        def __init__(self, *_arguments: object, **_more: object) -> None:
            raise BackendError(
                "expected the package label-studio-ml 2.x, got none: install it with pip install "
                "'label-studio-ml @ git+https://github.com/HumanSignal/label-studio-ml-backend.git'"
            )


_making = threading.Lock()
_made: list[Service] = []


class Surespan(LabelStudioMLBase):  # type: ignore[misc]
    """Ranked conformal sets as predictions; settings come from the environment, as for `surespan serve`."""

    def setup(self) -> None:
        """Name the version that predictions carry now: Label Studio fetches them again when it changes."""
        uid = _uid(self.project_id)
        # An event names its project by the id alone; asking for its version would make a second project of it.
        if self.label_config and "." in uid:
            self.set("model_version", process_service().setup(SetupIn(uid, self.label_config)))

    def set_extra_params(self, extra_params: object) -> None:
        """Keep what the backend's page in Label Studio says; the SDK's own method fails for anything but a text."""
        self.set("extra_params", extra_params if isinstance(extra_params, str) else json.dumps(extra_params))

    def predict(
        self,
        tasks: Sequence[Mapping[str, Any]],
        context: Mapping[str, Any] | None = None,
        **_params: Any,  # noqa: ANN401 - the SDK passes on what Label Studio sends
    ) -> list[Any]:
        """Return one entry per task, in order: its predictions, worst first, or in interactive mode one suggestion."""
        body = {
            "tasks": tasks,
            "project": _uid(self.project_id),
            "label_config": self.label_config,
            "params": {"context": context},
        }
        return [json.loads(entry) for entry in process_service().predict(read_predict(body))]

    def fit(self, event: str, data: Mapping[str, Any], **_params: Any) -> dict[str, Any]:  # noqa: ANN401
        """Keep the event, on disk when this returns; the worker makes labels and thresholds of it later."""
        service = process_service()
        wanted = service.settings.webhook_secret
        if wanted is not None and has_request_context() and event != START_TRAINING:
            given = request.headers.get(SECRET_HEADER, "")
            if not hmac.compare_digest(given.encode(), wanted.get_secret_value().encode()):
                abort(401)
        return {"status": "stored", "event": service.store_delivery({"action": event, **data})}


def process_service() -> Service:
    """Return this process's service, started; made at the first call, which is after any fork."""
    with _making:
        if not _made:
            from backend.app import create_app, service_of  # noqa: PLC0415 - made after the fork

            _made.append(service_of(create_app(load_settings())))
            atexit.register(close_service)
        return _made[0]


def close_service() -> None:
    """Write what is left and close the connections."""
    with _making:
        while _made:
            _made.pop().close()


def _uid(project_id: str) -> str:
    """Return the project's whole uid: the SDK keeps the part before the dot only, and ids are used again."""
    body = request.get_json(silent=True) if has_request_context() else None
    if isinstance(body, dict) and isinstance(body.get("project"), str | int):
        return read_project(body)
    return str(project_id) or "local"
