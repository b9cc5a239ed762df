"""`surespan serve`: the HTTP backend under gunicorn."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import click
from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger

from backend.commands.errors import reported
from backend.commands.starting import Starting
from backend.errors import InvalidSetting
from backend.logs import configure_logging
from backend.serving.admission import process_threads
from backend.settings import Settings, load_settings

if TYPE_CHECKING:
    from flask import Flask

# Label Studio waits 100 s for a prediction; a stop lets those finish.
_GRACE = 110
_SWITCH = 0.0005  # seconds
_WORKER = "surespan-worker"


@click.command(name="serve")
@click.option("--port", type=click.IntRange(1, 65535), help="Port. [default: PORT or 9090]")
@click.option("--host", help="Address to listen on. [default: SURESPAN_HOST; loopback without credentials]")
@click.option("--workers", type=click.IntRange(1, 64), help="Processes; more than one needs PostgreSQL. [default: 1]")
@reported
def command(port: int | None, host: str | None, workers: int | None) -> None:
    """Serve predictions to Label Studio."""
    given = {"port": port, "host": host, "workers": workers}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    serve(settings)


def serve(settings: Settings) -> None:
    """Run the service until it is told to stop.

    Raises:
        InvalidSetting: when settings do not go together.
        SchemaMismatch: when the database does not fit; better now than in every worker.
    """
    from backend.http.security import bind_address
    from backend.store import open_store

    address = bind_address(settings)
    with open_store(settings.database_url) as store:
        if store.is_sqlite and settings.workers > 1:
            raise InvalidSetting(
                f"WORKERS: expected 1 with SQLite, got {settings.workers}: threads serve many at once; for more "
                "processes put a PostgreSQL address into SURESPAN_DATABASE_URL"
            )
    configure_logging(settings.log_level)
    _say_licence(settings)
    if settings.workers > 1:
        _count_together()
    _application(settings, address).run()


def _count_together() -> None:
    """Give the workers a directory for their figures, gone with this process; one that the operator named is kept.

    Nothing may have imported prometheus_client before: it reads the name then.
    """
    name = "PROMETHEUS_MULTIPROC_DIR"
    if os.environ.get(name):
        return
    os.environ[name] = directory = tempfile.mkdtemp(prefix="surespan-metrics-")
    master = os.getpid()

    def remove() -> None:
        if os.getpid() == master:  # not in a worker, which inherits this
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)


def _say_licence(settings: Settings) -> None:
    if settings.model is None:
        logging.getLogger(__name__).info(
            "the bundled weights are licensed CC BY-NC-SA 4.0 (not for commercial use); the code is Apache-2.0"
        )


def _application(settings: Settings, address: str) -> Any:  # noqa: ANN401 - gunicorn has no types
    class Application(BaseApplication):  # type: ignore[misc]
        """gunicorn's application, configured from our settings and from nothing else."""

        def load_config(self) -> None:
            """Hand the settings over."""
            shown = f"[{address}]" if ":" in address else address
            values = {
                "bind": f"{shown}:{settings.port}",
                "workers": settings.workers,
                "worker_class": "gthread",
                "threads": process_threads(settings.threads),
                "preload_app": False,
                "timeout": 120,
                "graceful_timeout": _GRACE,
                "keepalive": 5,
                "proc_name": "surespan",
                "logger_class": PlainLogger,
                "worker_exit": _close,
                "child_exit": _forget_figures,
                "control_socket_disable": True,
            }
            for name, value in values.items():
                if name in self.cfg.settings:
                    self.cfg.set(name, value)

        def load(self) -> Starting:
            """Begin to make the application, inside the worker."""
            # A thread that comes back from the disk waits this long for each thread that computes. At Python's own
            # 5 ms, a transaction of a hundred statements beside two busy predictions takes a second.
            sys.setswitchinterval(_SWITCH)
            return Starting(lambda: _app(settings))

    return Application()


def _app(settings: Settings) -> Flask:
    from backend.app import create_app

    app = create_app(settings)
    start_worker(app, settings)
    return app


class PlainLogger(Logger):  # type: ignore[misc]
    """gunicorn's messages through our own handler; requests are logged by the application."""

    def setup(self, cfg: Any) -> None:  # noqa: ANN401, ARG002 - gunicorn's signature
        """Leave the handlers as `configure_logging` set them."""
        self.error_log.propagate = True
        self.error_log.handlers[:] = []
        self.access_log.disabled = True

    def access(self, *arguments: Any) -> None:  # noqa: ANN401 - gunicorn's signature
        """Say nothing."""


def start_worker(app: Flask, settings: Settings) -> None:
    """Process events inside the service, if the settings say so; it shares the model and takes turns at writing."""
    from backend.app import service_of

    service = service_of(app)
    if not (service.writes.is_sqlite if settings.worker is None else settings.worker):
        return

    from backend.jobs.context import TurnTakingStore
    from backend.worker.worker import Worker

    store = TurnTakingStore(settings.database_url, service.writing, pool_size=4)
    # On SQLite there is one service, so what a worker of its name had claimed is free; elsewhere there may be others.
    one = service.writes.is_sqlite
    worker = Worker(
        settings,
        store,
        loader=service.loader,
        views=service.views,
        name=f"serve:{settings.port}" if one else None,
        takeover=one,
    )
    worker.start()
    app.extensions[_WORKER] = worker


def _forget_figures(server: Any, worker: Any) -> None:  # noqa: ANN401, ARG001 - gunicorn's signature
    """Take a worker that is gone out of what counts the living; its counters stay."""
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]


def _close(server: Any, worker: Any) -> None:  # noqa: ANN401, ARG001 - gunicorn's signature
    starting = getattr(worker, "wsgi", None)
    app = starting.made() if isinstance(starting, Starting) else None
    if app is None:
        return
    from backend.app import EXTENSION

    extensions = app.extensions
    inside = extensions.get(_WORKER)
    if inside is not None:
        inside.close()
        inside.store.close()
    service = extensions.get(EXTENSION)
    if service is not None:
        service.close()
