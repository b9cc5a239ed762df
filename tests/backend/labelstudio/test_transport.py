"""The transport against a server that misbehaves on purpose; the real Label Studio is in tests/e2e."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from backend.errors import LabelStudioError
from backend.labelstudio.transport import Transport

LEGACY = "0123456789abcdef0123456789abcdef01234567"
PERSONAL = "eyJhbGciOi.eyJ0b2tlbl.c2lnbmF0dXJl"
Answer = tuple[int, Any]


class Server:
    """Answers by a list of prepared answers, the last of them for ever, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [(200, {})]
        self.asked: list[tuple[str, str, str, Any]] = []
        self.url = ""

    def handle(self, method: str, path: str, authorization: str, body: Any) -> Answer:
        if path == "/api/token/refresh/":
            if body != {"refresh": PERSONAL}:
                return 401, {"detail": "Token is invalid"}
            self.asked.append((method, path, "", None))
            return 200, {"access": f"bearer-{len(self.asked)}"}
        self.asked.append((method, path, authorization, body))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, content = made.handle(self.command, self.path, self.headers.get("Authorization", ""), body)
            data = b"" if content is None else content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815 - the names that http.server looks for

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its signature
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{running.server_address[1]}"
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield made
    running.shutdown()
    running.server_close()
    thread.join(10)


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., Transport]]:
    made: list[Transport] = []

    def make(key: str = LEGACY, *, url: str | None = None) -> Transport:
        made.append(Transport(url or server.url, key, pause=0.001))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_what_changes_nothing_when_repeated_is_repeated(server: Server, connect: Callable[..., Transport]) -> None:
    for method in ("GET", "PATCH", "DELETE"):
        server.asked.clear()
        server.answers = [(503, {}), (502, {}), (200, {"ok": True})]
        assert connect().call(method, "/api/projects/1/") == {"ok": True}
        assert len(server.asked) == 3


def test_what_creates_something_is_asked_once(server: Server, connect: Callable[..., Transport]) -> None:
    server.answers = [(500, {"detail": "no"})]
    with pytest.raises(LabelStudioError, match="got 500: no") as caught:
        connect().call("POST", "/api/ml/", body={"project": 1})
    assert (caught.value.status, caught.value.asked) == (500, "POST /api/ml/")
    assert len(server.asked) == 1


def test_repeating_has_an_end(server: Server, connect: Callable[..., Transport]) -> None:
    server.answers = [(503, {})]
    with pytest.raises(LabelStudioError, match="got 503"):
        connect().call("GET", "/api/projects/1/")
    assert len(server.asked) == 4


def test_a_personal_token_is_exchanged_once_and_again_when_its_bearer_is_refused(
    server: Server, connect: Callable[..., Transport]
) -> None:
    transport = connect(PERSONAL)
    transport.call("GET", "/api/a")
    transport.call("GET", "/api/b")
    assert [(path, header) for _, path, header, _ in server.asked] == [
        ("/api/token/refresh/", ""),
        ("/api/a", "Bearer bearer-1"),
        ("/api/b", "Bearer bearer-1"),
    ]
    server.asked.clear()
    server.answers = [(401, {}), (200, {"fine": 1})]
    assert transport.call("GET", "/api/c") == {"fine": 1}
    assert [path for _, path, _, _ in server.asked] == ["/api/c", "/api/token/refresh/", "/api/c"]


@pytest.mark.parametrize("key", [LEGACY, PERSONAL])
def test_a_refused_token_is_never_repeated_and_the_remedy_is_said(
    server: Server, connect: Callable[..., Transport], key: str
) -> None:
    server.answers = [(401, {"detail": f"bad {key}"})]
    with pytest.raises(LabelStudioError, match="LABEL_STUDIO_API_KEY") as caught:
        connect(key).call("GET", "/api/projects/1/")
    assert key not in str(caught.value)
    assert "Account & Settings" in str(caught.value)


def test_an_unknown_personal_token_fails_at_the_exchange(connect: Callable[..., Transport]) -> None:
    with pytest.raises(LabelStudioError, match="personal access token") as caught:
        connect("a.b.c").call("GET", "/api/projects/1/")
    assert caught.value.asked == "POST /api/token/refresh/"


@pytest.mark.parametrize("path", ["/api/tasks/", "/api/projects/1/import/predictions", "/api/predictions/3/"])
def test_what_the_server_says_about_tasks_is_not_repeated(
    server: Server, connect: Callable[..., Transport], path: str
) -> None:
    server.answers = [(400, {"detail": "x", "validation_errors": {"data": ["Bob's secret text is wrong"]}})]
    with pytest.raises(LabelStudioError, match="got 400") as caught:
        connect().call("POST", path, body=[{"text": "Bob's secret text"}])
    assert "secret" not in str(caught.value)


def test_other_refusals_are_explained_in_the_servers_words(server: Server, connect: Callable[..., Transport]) -> None:
    server.answers = [(400, {"detail": "Validation error", "validation_errors": {"sampling": ["not a valid choice."]}})]
    with pytest.raises(LabelStudioError, match="sampling: not a valid choice"):
        connect().call("PATCH", "/api/projects/1/", body={"sampling": "x"})


@pytest.mark.parametrize(
    ("url", "said"),
    [("http://127.0.0.1:1", "check that Label Studio runs"), ("127.0.0.1:8080", "begin with http://")],
)
def test_a_server_that_is_not_there_is_said_so(connect: Callable[..., Transport], url: str, said: str) -> None:
    with pytest.raises(LabelStudioError, match=said) as caught:
        connect(url=url).call("GET", "/api/version")
    assert caught.value.status is None


def test_an_answer_that_is_no_json_points_at_the_address(server: Server, connect: Callable[..., Transport]) -> None:
    server.answers = [(200, b"<html>welcome</html>")]
    with pytest.raises(LabelStudioError, match="is LABEL_STUDIO_URL the address"):
        connect().call("GET", "/api/version")


def test_the_servers_clock_is_known_and_never_ahead(connect: Callable[..., Transport]) -> None:
    transport = connect()
    assert transport.server_time is None
    transport.call("GET", "/api/version")
    assert transport.server_time is not None
    assert transport.server_time.microsecond == 0
