"""Is the part beside which this runs alive? `python -m backend.doctor.health service|worker`.

For containers and supervisors. Exit code 0 and a line, or 1 and the reason. The service is asked over HTTP; a model
that could not be loaded is not health. The worker has no port: it is alive when the database answers, its schema fits,
and no event has been due for longer than a worker would ever let it wait.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from backend.errors import BackendError
from backend.settings import Settings, load_settings
from backend.store import open_store
from backend.store.tables import Event

PATIENCE = timedelta(minutes=10)
_TIMEOUT = 3.0  # seconds


def check_service(settings: Settings) -> str | None:
    """Return why the service on this machine is not healthy, None if it is."""
    try:
        with urllib.request.urlopen(f"{settings.own_url}/health", timeout=_TIMEOUT) as answer:  # noqa: S310 - http
            state = json.loads(answer.read()).get("model")
    except (OSError, ValueError, AttributeError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else type(error).__name__
        return f"expected an answer from /health on port {settings.port}, got {reason}"
    return "expected a model, got one that could not be loaded: see the log" if state == "failed" else None


def check_worker(settings: Settings) -> str | None:
    """Return why events are not being processed, None if they are (or there are none)."""
    with open_store(settings.database_url, wait=_TIMEOUT) as store, store.read() as session:
        oldest = session.execute(sa.select(sa.func.min(Event.due_at)).where(Event.state == "pending")).scalar_one()
    if oldest is None or datetime.now(UTC) - oldest < PATIENCE:
        return None
    waited = int((datetime.now(UTC) - oldest).total_seconds() // 60)
    return f"expected events to be processed, got one that has been due for {waited} minutes"


CHECKS: dict[str, Callable[[Settings], str | None]] = {"service": check_service, "worker": check_worker}


def main(arguments: Sequence[str]) -> int:
    """Run the check that is named; returns the exit code."""
    if len(arguments) != 1 or arguments[0] not in CHECKS:
        print(f"expected one of {', '.join(CHECKS)}, got {' '.join(arguments) or 'nothing'}", file=sys.stderr)  # noqa: T201
        return 2
    try:
        problem = CHECKS[arguments[0]](load_settings())
    except BackendError as error:
        problem = str(error)
    print(problem or "healthy", file=sys.stderr if problem else sys.stdout)
    return int(problem is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
