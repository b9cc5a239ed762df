"""The web application: `create_app(settings)` and nothing at import."""

from __future__ import annotations

from flask import Flask

from backend.dashboard import routes as dashboard
from backend.http import acceptance, api, contract, errors, logging, metrics, models, queue, reconciliation, security
from backend.serving.presenting import Present
from backend.serving.service import Service
from backend.settings import Settings
from backend.store import open_store

EXTENSION = "surespan"


def create_app(settings: Settings, *, present: Present | None = None, start: bool = True) -> Flask:
    """Return the application, its database checked and its model loading in the background.

    Make it after the fork (gunicorn without preload does), and end it with `service_of(app).close()`.

    Args:
        present: decides which tasks are blind; the streams of each project do, if none is given.
        start: False leaves the model unloaded, for tools that only look at the routes.

    Raises:
        SchemaMismatch: when the database does not fit this release; the message names the command.
        InvalidSetting: when settings do not go together.
    """
    security.read_credentials(settings)
    open_store(settings.database_url).close()
    service = Service(settings, present=present)
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_request_mb * 1_000_000
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.url_map.strict_slashes = False
    app.extensions[EXTENSION] = service
    errors.register(app)
    logging.register(app, service.measures)
    security.register(app, settings)
    for module in (contract, api, acceptance, models, queue, reconciliation, metrics, dashboard):
        app.register_blueprint(module.blueprint(service))
    if start:
        service.start()
    return app


def service_of(app: Flask) -> Service:
    """Return the service behind an application."""
    service: Service = app.extensions[EXTENSION]
    return service
