from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import sqlalchemy as sa

from backend.doctor.health import main
from backend.store import Store, open_store
from backend.store.events import store_event
from backend.store.schema import downgrade
from backend.store.tables import Event
from tests.support.paths import ROOT
from tests.support.running import free_port


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    monkeypatch.setenv("SURESPAN_DATABASE_URL", url)
    with open_store(url) as opened:
        yield opened


def test_a_worker_that_keeps_up_is_healthy(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker"]) == 0
    store_event(store, {"action": "X", "project": {"id": 1}})
    assert main(["worker"]) == 0
    assert capsys.readouterr().out == "healthy\nhealthy\n"


def test_a_worker_that_leaves_events_waiting_is_not(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    number = store_event(store, {"action": "X", "project": {"id": 1}})
    with store.write() as session:
        session.execute(sa.update(Event).values(due_at=datetime.now(UTC) - timedelta(minutes=25)))
    assert main(["worker"]) == 1
    assert "due for 25 minutes" in capsys.readouterr().err
    with store.write() as session:  # one that was set aside waits for a person, not for the worker
        session.execute(sa.update(Event).where(Event.id == number).values(state="dead"))
    assert main(["worker"]) == 0


def test_a_schema_that_does_not_fit_is_not_healthy(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    downgrade(store, "0003")
    assert main(["worker"]) == 1
    assert "run `surespan db upgrade`" in capsys.readouterr().err


@pytest.mark.parametrize(("state", "code"), [("ready", 0), ("loading", 0), ("failed", 1)])
def test_the_service_is_asked(state: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"status": "UP", "model": state}).encode())

        def log_message(self, *_arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        monkeypatch.setenv("PORT", str(server.server_port))
        monkeypatch.setenv("SURESPAN_HOST", "0.0.0.0")  # noqa: S104 - nothing is bound
        assert main(["service"]) == code
        thread.join()


def test_a_service_that_is_not_there_is_not_healthy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "backend.doctor.health", "service"],
        env={"PORT": str(free_port()), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "expected an answer from /health" in done.stderr
    assert main(["everything"]) == 2
