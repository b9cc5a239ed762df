"""Texts behind URLs: from listed hosts only, and never by way of a redirect. A real server on loopback answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from flask import Flask

from backend.labelstudio.payloads import Unpredictable
from backend.serving.fetching import TextFetcher, allowed_hosts
from tests.support import payload_shapes as shapes
from tests.support.service import MakeApp

ASKED: list[str] = []
ENOUGH = threading.Event()
FILES = {
    "/text?q=1": shapes.TEXTS[0].encode(),
    "/marked": b"\xef\xbb\xbfAnn",
    "/long": b"x" * 1_000,
    "/bytes": b"\xff\xfe",
    "/image": b"Ann",
    "/endless": b"",
    "/slow": b"",
}


class Files(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ASKED.append(self.path)
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/text?q=1")
            self.end_headers()
            return
        found = FILES.get(self.path)
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Type", "image/png" if self.path == "/image" else "text/plain")
        self.end_headers()
        self.wfile.write(found or b"")
        with suppress(OSError):
            while self.path in {"/endless", "/slow"} and not ENOUGH.wait(0.05 if self.path == "/slow" else 0):
                self.wfile.write(b"x" * (1 if self.path == "/slow" else 1_000_000))

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def host() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    ASKED.clear()
    ENOUGH.clear()
    yield f"127.0.0.1:{server.server_address[1]}"
    ENOUGH.set()
    server.shutdown()
    server.server_close()


def fetcher(hosts: str, **more: Any) -> TextFetcher:
    return TextFetcher(allowed_hosts(hosts), **({"private": False, "max_text": 100} | more))


def test_only_listed_hosts_are_asked(host: str) -> None:
    def fetch(path: str, hosts: str = host) -> object:
        return fetcher(hosts).fetch(f"http://{host}{path}")

    assert fetch("/text?q=1") == shapes.TEXTS[0]
    assert fetch("/marked") == "Ann"
    assert fetch("/image") is Unpredictable.FETCH_FAILED
    assert fetch("/endless") is Unpredictable.TOO_LONG
    assert fetch("/moved") is Unpredictable.FETCH_FAILED
    assert fetch("/missing") is Unpredictable.FETCH_FAILED
    assert fetch("/bytes") is Unpredictable.FETCH_FAILED
    assert fetch("/long") is Unpredictable.TOO_LONG
    asked = len(ASKED)
    for hosts in ("", "127.0.0.1", "example.org", f"{host}0"):
        assert fetch("/text?q=1", hosts) is Unpredictable.URL
    assert fetcher(host).fetch(f"ftp://{host}/text") is Unpredictable.URL
    assert fetcher(host).fetch("http://[::1") is Unpredictable.URL
    assert len(ASKED) == asked


def test_a_listed_name_at_a_private_address_is_not_connected_to(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(host.partition(":")[2])
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    name = f"files.example.org:{port}"
    url = f"http://{name}/text?q=1"
    assert fetcher(name).fetch(url) is Unpredictable.PRIVATE
    assert ASKED == []
    assert fetcher(name, private=True).fetch(url) == shapes.TEXTS[0]
    found.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", port)))
    assert fetcher(name, private=True).fetch(url) is Unpredictable.PRIVATE


def test_a_slow_host_is_given_up_and_left_alone(host: str) -> None:
    slow = fetcher(host, seconds=0.3)
    urls = [f"http://{host}/slow", f"http://{host}/slow?again"]
    assert slow.fetch(urls[0]) is Unpredictable.FETCH_FAILED
    asked = len(ASKED)
    assert set(slow.fetch_all([*urls, f"http://{host}/text?q=1"]).values()) == {Unpredictable.FETCH_FAILED}
    assert len(ASKED) == asked
    assert fetcher(host).fetch(f"http://{host}/text?q=1") == shapes.TEXTS[0], "others are not kept waiting"


def test_a_task_with_a_url_is_predicted_where_its_host_is_allowed(make_app: MakeApp, host: str) -> None:
    url = f"http://{host}/text?q=1"

    def predict(app: Flask, text: str) -> object:
        answer = app.test_client().post("/predict", json=shapes.predict([shapes.task(1, text)]), buffered=True)
        return answer.json["results"][0]

    closed, opened = make_app(), make_app(task_hosts=host)
    assert [each["result"] for each in predict(closed, url)] == [[]]  # type: ignore[attr-defined]
    assert ASKED == []
    assert predict(opened, url) == predict(opened, shapes.TEXTS[0])
