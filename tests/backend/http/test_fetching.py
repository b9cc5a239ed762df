"""Texts behind URLs: from listed hosts only, and never by way of a redirect. A real server on loopback answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from flask import Flask

from backend.labelstudio.payloads import Unpredictable
from backend.serving.fetching import allowed_hosts, fetch_text
from tests.support import payload_shapes as shapes
from tests.support.service import MakeApp

ASKED: list[str] = []


class Files(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ASKED.append(self.path)
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/text?q=1")
            self.end_headers()
            return
        found = {"/text?q=1": shapes.TEXTS[0].encode(), "/long": b"x" * 1_000, "/bytes": b"\xff\xfe"}.get(self.path)
        self.send_response(404 if found is None else 200)
        self.end_headers()
        self.wfile.write(found or b"")

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def host() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    ASKED.clear()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_only_listed_hosts_are_asked(host: str) -> None:
    def fetch(path: str, hosts: str = host) -> object:
        return fetch_text(f"http://{host}{path}", hosts=allowed_hosts(hosts), max_text=100)

    assert fetch("/text?q=1") == shapes.TEXTS[0]
    assert fetch("/moved") is Unpredictable.FETCH_FAILED
    assert fetch("/missing") is Unpredictable.FETCH_FAILED
    assert fetch("/bytes") is Unpredictable.FETCH_FAILED
    assert fetch("/long") is Unpredictable.TOO_LONG
    asked = len(ASKED)
    for hosts in ("", "127.0.0.1", "example.org", f"{host}0"):
        assert fetch("/text?q=1", hosts) is Unpredictable.URL
    assert fetch_text(f"ftp://{host}/text", hosts=allowed_hosts(host), max_text=9) is Unpredictable.URL
    assert fetch_text("http://[::1", hosts=allowed_hosts(host), max_text=9) is Unpredictable.URL
    assert len(ASKED) == asked


def test_a_task_with_a_url_is_predicted_where_its_host_is_allowed(make_app: MakeApp, host: str) -> None:
    url = f"http://{host}/text?q=1"

    def predict(app: Flask, text: str) -> object:
        answer = app.test_client().post("/predict", json=shapes.predict([shapes.task(1, text)]), buffered=True)
        return answer.json["results"][0]

    closed, opened = make_app(), make_app(task_hosts=host)
    assert [each["result"] for each in predict(closed, url)] == [[]]  # type: ignore[attr-defined]
    assert ASKED == []
    assert predict(opened, url) == predict(opened, shapes.TEXTS[0])
