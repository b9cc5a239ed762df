"""Texts behind URLs: from listed hosts only, and never by way of a redirect. A real server on loopback answers."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from flask import Flask

from backend.labelstudio.payloads import Unpredictable
from backend.serving.fetching import TextFetcher, allowed_hosts, may_connect
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
    "/cut": b"Ann",
}
HOSTS: list[str | None] = []


class Files(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ASKED.append(self.path)
        HOSTS.append(self.headers["Host"])
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/text?q=1")
            self.end_headers()
            return
        found = FILES.get(self.path)
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Type", "image/png" if self.path == "/image" else "text/plain")
        if self.path == "/cut":
            self.send_header("Content-Length", "50")
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
    assert fetch("/cut") is Unpredictable.FETCH_FAILED, "a part of a text is not the text"
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


def test_a_server_that_never_ends_its_handshake_is_given_up() -> None:
    """TLS takes the socket for itself: whoever cuts the connection off needs a handle of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            client, _ = server.accept()
            with client, suppress(OSError):
                client.sendall(b"\x16\x03\x03\x3f\xff\x02")  # begins a record of 16,383 bytes
                while not ENOUGH.wait(0.02):
                    client.sendall(b"\x00")

        ENOUGH.clear()
        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        host = f"127.0.0.1:{server.getsockname()[1]}"
        assert fetcher(host, seconds=0.3).fetch(f"https://{host}/") is Unpredictable.FETCH_FAILED
        thread.join(30)
        assert not thread.is_alive(), "the connection was cut off"


def test_a_host_that_does_not_answer_the_first_packet_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def wait(address: object, timeout: float) -> socket.socket:
        tried.append(address)
        time.sleep(timeout)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", wait)
    silent = fetcher("127.0.0.1", seconds=0.05)
    assert silent.fetch("http://127.0.0.1/1") is Unpredictable.FETCH_FAILED
    assert silent.fetch("http://127.0.0.1/2") is Unpredictable.FETCH_FAILED
    assert tried == [("127.0.0.1", 80)]


def test_another_address_of_a_host_is_tried(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(host.partition(":")[2])
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    name = f"files.example.org:{port}"
    assert fetcher(name, private=True).fetch(f"http://{name}/text?q=1") == shapes.TEXTS[0]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_usual_port_is_not_said_to_the_server(host: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses that are signed for a host without its port would be refused."""

    class Plain:
        @staticmethod
        def wrap_socket(sock: socket.socket, **_: object) -> socket.socket:
            return sock

    connect, port = socket.create_connection, int(host.partition(":")[2])
    monkeypatch.setattr(socket, "create_connection", lambda _, timeout: connect(("127.0.0.1", port), timeout))
    monkeypatch.setattr(ssl, "create_default_context", Plain)
    assert fetcher("127.0.0.1").fetch(f"{scheme}://127.0.0.1/text?q=1") == shapes.TEXTS[0]
    assert HOSTS[-1] == "127.0.0.1"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "0.0.0.1", "10.1.2.3", "100.64.0.1", "::1", "::", "::ffff:10.0.0.1", "::10.0.0.1", "fe80::1%eth0",
        "64:ff9b::a00:1", "2002:a00:1::1", "fd00:ec2::254", "224.0.0.1", "240.0.0.1",
    ],
)  # fmt: skip
def test_addresses_of_the_own_network_are_known_in_every_form(address: str) -> None:
    assert not may_connect("files.example.org", address, private=False)


def test_a_task_with_a_url_is_predicted_where_its_host_is_allowed(make_app: MakeApp, host: str) -> None:
    url = f"http://{host}/text?q=1"

    def predict(app: Flask, text: str) -> object:
        answer = app.test_client().post("/predict", json=shapes.predict([shapes.task(1, text)]), buffered=True)
        return answer.json["results"][0]

    closed, opened = make_app(), make_app(task_hosts=host)
    assert [each["result"] for each in predict(closed, url)] == [[]]  # type: ignore[attr-defined]
    assert ASKED == []
    assert predict(opened, url) == predict(opened, shapes.TEXTS[0])
