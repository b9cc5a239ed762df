"""`surespan serve` as it runs: real processes, real sockets, real signals."""

from __future__ import annotations

import json
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from backend.cli import main
from backend.store import Store
from backend.store.events import inbox_depth
from tests.support import payload_shapes as shapes
from tests.support.running import Running, environment, running
from tests.support.waiting import WAIT, wait_for


@pytest.mark.e2e
def test_the_quick_routes_answer_while_the_model_loads_and_a_stop_finishes_the_rest(
    served_model: Path, tmp_path: Path
) -> None:
    with running(tmp_path, served_model) as service:
        first = service.wait_until_up()
        assert first == {"status": "UP", "model": "loading", "model_class": "Surespan"}
        status, answer = service.call("/setup", shapes.setup())
        assert (status, answer["model_version"][-6:]) == (200, "+cal.0")
        assert service.call("/webhook", shapes.events()[0])[0] == 200
        assert service.call("/health")[1]["model"] == "loading"  # all of that while torch is being imported
        tasks = [shapes.task(i, shapes.TEXTS[0]) for i in range(3)]
        status, answer = service.call("/predict", shapes.predict(tasks))
        assert status == 200
        assert len(answer["results"]) == 3
        assert service.call("/health")[1]["model"] == "ready"
        answers: list[Any] = []
        many = [shapes.task(i, f"{shapes.TEXTS[i % 4]} {i}") for i in range(300)]
        thread = threading.Thread(target=lambda: answers.append(service.call("/predict", shapes.predict(many))))
        thread.start()
        wait_for(lambda: "surespan_predict_tasks_count 2.0" in metrics(service), "it has begun")
        assert service.stop() == 0
        thread.join(WAIT)
        (status, answer), *_ = answers
        assert (status, len(answer["results"])) == (200, 300)
        assert all(entry[-1]["model_version"] for entry in answer["results"])
        log = service.log.read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"model loaded", "request"} <= {line["message"] for line in lines}
    assert "Wien" not in log
    assert not any(line["level"] == "error" for line in lines)
    with Store(f"sqlite:///{tmp_path / 'served.db'}") as store, store.read() as session:
        assert inbox_depth(session)["pending"] == 1


def metrics(service: Running) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/metrics", timeout=WAIT) as answer:
        return str(answer.read(), "utf-8")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"WORKERS": "2"}, "WORKERS: expected 1 with SQLite, got 2"),
        ({"SURESPAN_HOST": "0.0.0.0"}, "SURESPAN_HOST: expected a loopback address"),  # noqa: S104
        ({"BASIC_AUTH_USER": "ann"}, "BASIC_AUTH_PASS: expected a value"),
        ({"PORT": "0"}, "PORT: expected a whole number from 1 to 65535"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_at_start(
    tmp_path: Path, more: dict[str, str], message: str
) -> None:
    done = CliRunner(env=environment(tmp_path, tmp_path, **more)).invoke(main, ["serve"])
    assert done.exit_code == 1
    assert message in done.output
    assert "Traceback" not in done.output


@pytest.mark.e2e
def test_without_a_model_the_service_is_up_and_says_why_it_cannot_predict(tmp_path: Path) -> None:
    with running(tmp_path, tmp_path / "nowhere") as service:
        service.wait_until_up()
        status, answer = service.call("/predict", shapes.predict([shapes.task(1, "a")]))
        assert status == 503
        assert "see the log" in answer["hint"]
        assert service.call("/health")[1] == {"status": "UP", "model": "failed", "model_class": "Surespan"}
        assert service.call("/setup", shapes.setup())[0] == 503
        assert service.call("/webhook", shapes.events()[0])[0] == 200  # events are kept all the same
        assert service.stop() == 0
