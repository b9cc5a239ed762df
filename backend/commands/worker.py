"""`surespan worker`: events, scores, refits and jobs, beside a service on PostgreSQL."""

from __future__ import annotations

import signal
import sys

import click

from backend.commands.errors import reported
from backend.logs import configure_logging
from backend.settings import load_settings


@click.command("worker")
@click.option("--once", is_flag=True, help="Work until there is nothing left to do, then stop.")
@reported
def command(*, once: bool) -> None:
    """Process what Label Studio sent: labels, scores, refits, and everything that follows.

    A service on SQLite does this itself. Several workers may run at once on PostgreSQL. Stops after the step under
    way when told to (SIGTERM, Ctrl-C); a worker that is killed loses nothing.
    """
    from backend.models.loading import ModelLoader
    from backend.models.views import Views
    from backend.store import open_store
    from backend.worker.worker import Worker

    settings = load_settings()
    configure_logging(settings.log_level)
    sys.setswitchinterval(0.0005)  # as in `serve`: a transaction should not wait for a computation at each statement
    with open_store(settings.database_url) as store:
        loader = ModelLoader(settings)
        loader.start()
        worker = Worker(settings, store, loader=loader, views=Views(settings, store, loader))
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: worker.stop())
        if once:
            worker.drain()
        else:
            worker.start()
            while not worker.wait(1.0):
                pass
        worker.close()
        loader.close()
