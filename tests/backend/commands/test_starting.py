"""A worker answers /health before its application is made; everything else waits for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from flask import Flask
from werkzeug.test import Client

from backend.commands.starting import Starting
from backend.errors import InvalidSetting
from tests.support.waiting import WAIT


def _app() -> Flask:
    app = Flask("made")
    app.add_url_rule("/health", "health", view_func=lambda: {"model": "ready"})
    app.add_url_rule("/predict", "predict", view_func=lambda: "here", methods=["POST"])
    return app


def test_health_is_answered_while_the_rest_waits() -> None:
    go = threading.Event()

    def make() -> Flask:
        assert go.wait(WAIT)
        return _app()

    client = Client(Starting(make, give_up=lambda _: None))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.post, "/predict")
        early = client.get("/health")
        assert early.status_code == 200
        assert early.json == {"status": "UP", "model": "loading", "model_class": "Surespan"}
        assert not waiting.done()
        go.set()
        assert waiting.result(WAIT).text == "here"
    assert client.get("/health").json == {"model": "ready"}


@pytest.mark.parametrize(("error", "traced"), [(ValueError("no database"), True), (InvalidSetting("PORT: 0"), False)])
def test_a_worker_that_cannot_start_says_why_and_ends(
    caplog: pytest.LogCaptureFixture, error: Exception, traced: bool
) -> None:
    codes: list[int] = []

    def make() -> Flask:
        raise error

    starting = Starting(make, give_up=codes.append)
    assert starting.made() is None
    assert codes == [3]
    assert "could not start" in caplog.text
    assert str(error) in caplog.text
    assert ("Traceback" in caplog.text) is traced, "what a setting should be needs no traceback"
    with pytest.raises(RuntimeError, match="see the log"):
        Client(starting).post("/predict")
