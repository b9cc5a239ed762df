"""Who may call what, what is refused, and that nothing of a task or a secret gets out."""

from __future__ import annotations

import io
import json
import logging
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from pydantic import SecretStr

from backend.app import service_of
from backend.errors import InvalidSetting, StoreBusy
from backend.http.security import bind_address, read_credentials
from backend.logs import JsonFormatter, configure_logging
from backend.settings import Settings, load_settings
from backend.store.events import inbox_depth
from tests.support import payload_shapes as shapes
from tests.support.service import MakeApp

USER, PASSWORD, SECRET = "ann", "päss:wörd", "hook-secret"
ROUTES = [
    ("POST", "/setup"),
    ("POST", "/predict"),
    ("POST", "/webhook"),
    ("POST", "/train"),
    ("POST", "/validate"),
    ("GET", "/versions"),
    ("GET", "/metrics"),
    ("POST", "/api/v1/sets"),
    ("GET", "/api/v1/projects"),
    ("GET", "/api/v1/openapi.json"),
    ("GET", "/no/such/route"),
]


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


@pytest.fixture
def guarded(make_app: MakeApp) -> Flask:
    return make_app(
        start=False, basic_auth_user=USER, basic_auth_pass=SecretStr(PASSWORD), webhook_secret=SecretStr(SECRET)
    )


WRONG = [
    {},
    basic(USER, "wrong"),
    basic("wrong", PASSWORD),
    basic(USER, ""),
    {"Authorization": "Bearer abc"},
    {"Authorization": "Basic !!!"},
    {"X-Surespan-Secret": "wrong"},
    {"X-Surespan-Secret": ""},
]


def test_every_route_but_health_asks_for_credentials(guarded: Flask) -> None:
    client = guarded.test_client()
    for headers in WRONG:
        assert client.get("/health", headers=headers).status_code == 200
        for method, path in ROUTES:
            answer = client.open(path, method=method, headers=headers)
            assert answer.status_code == 401, (path, headers)
            assert answer.headers["WWW-Authenticate"].startswith("Basic")
            assert answer.json.keys() == {"error", "expected", "got", "hint"}


def test_basic_auth_opens_everything_but_the_webhook_and_the_secret_that_only(guarded: Flask) -> None:
    client = guarded.test_client()
    event = shapes.events()[0]
    assert client.post("/setup", json=shapes.setup(), headers=basic(USER, PASSWORD)).status_code == 200
    refused = client.post("/webhook", json=event, headers=basic(USER, PASSWORD))
    assert refused.status_code == 401
    assert "X-Surespan-Secret" in refused.get_json()["hint"]
    assert client.post("/webhook", json=event, headers={"X-Surespan-Secret": SECRET}).status_code == 200
    assert client.post("/setup", json=shapes.setup(), headers={"X-Surespan-Secret": SECRET}).status_code == 401


def test_credentials_that_a_browser_remembers_are_no_use_to_other_pages(guarded: Flask) -> None:
    client = guarded.test_client()
    for headers, status in (
        ({}, 200),
        ({"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": "https://page.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ):
        mine = basic(USER, PASSWORD) | headers
        assert client.post("/setup", json=shapes.setup(), headers=mine).status_code == status, headers
        assert client.get("/versions", headers=mine).status_code == 200, "reading changes nothing"
    claim = client.post("/api/v1/queue/claims", data="{}", headers=mine, content_type="text/plain")
    assert claim.status_code == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_no_form_of_any_page_can_send_an_event(make_app: MakeApp, kind: str) -> None:
    event = json.dumps(shapes.events()[0])
    protected = make_app(start=False, basic_auth_user=USER, basic_auth_pass=SecretStr(PASSWORD)).test_client()
    open_ = make_app(start=False).test_client()
    for client, headers in ((protected, basic(USER, PASSWORD)), (open_, {})):
        answer = client.post("/webhook", data=event, content_type=kind, headers=headers)
        assert answer.status_code == 415
        assert answer.get_json()["expected"] == "Content-Type: application/json"
        assert client.post("/webhook", json=shapes.events()[0], headers=headers).status_code == 200


def test_the_button_start_training_needs_no_secret_but_all_that_train_needs(guarded: Flask, make_app: MakeApp) -> None:
    """Label Studio sends it to /webhook with the credentials of the backend, as it does to /predict."""
    asked = next(each for each in shapes.events() if each["action"] == "START_TRAINING")
    mine, client = basic(USER, PASSWORD), guarded.test_client()
    assert client.post("/webhook", json=asked, headers=mine).status_code == 200
    for headers in [*WRONG, mine | {"Origin": "https://elsewhere.example"}, mine | {"Sec-Fetch-Site": "cross-site"}]:
        assert client.post("/webhook", json=asked, headers=headers).status_code == 401, headers
    assert client.post("/webhook", data=json.dumps(asked), content_type="text/plain", headers=mine).status_code == 401
    for data in (b"", b"{", b"[" * 100_000, b'["START_TRAINING"]', b'{"action": ["START_TRAINING"]}'):
        answer = client.post("/webhook", data=data, content_type="application/json", headers=mine)
        assert answer.status_code == 401, data[:20]
    unguarded = make_app(start=False, webhook_secret=SecretStr(SECRET)).test_client()
    assert unguarded.post("/webhook", json=asked).status_code == 200
    assert unguarded.post("/webhook", json=asked, headers={"Origin": "https://elsewhere.example"}).status_code == 401


@pytest.mark.parametrize("other", [{"Origin": "https://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_another_site_cannot_send_an_event_with_remembered_credentials(
    make_app: MakeApp, other: dict[str, str]
) -> None:
    client = make_app(start=False, basic_auth_user=USER, basic_auth_pass=SecretStr(PASSWORD)).test_client()
    answer = client.post("/webhook", json=shapes.events()[0], headers=basic(USER, PASSWORD) | other)
    assert answer.status_code == 403


def test_a_secret_alone_guards_the_webhook(make_app: MakeApp) -> None:
    client = make_app(start=False, webhook_secret=SecretStr(SECRET)).test_client()
    assert client.post("/webhook", json=shapes.events()[0]).status_code == 401
    assert client.post("/webhook", json=shapes.events()[0], headers={"X-Surespan-Secret": SECRET}).status_code == 200
    assert client.post("/setup", json=shapes.setup()).status_code == 200


def test_without_credentials_web_pages_of_others_are_refused(idle_app: Flask) -> None:
    for headers, status in (
        ({"Host": "localhost:9090"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:9090"}, 200),
        ({"Host": "host.docker.internal:9090"}, 200),
        ({"Host": "rebound.example"}, 403),
        ({"Host": "localhost", "Origin": "http://localhost"}, 200),
        ({"Host": "localhost", "Origin": "https://page.example"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
        ({"Host": "localhost", "Origin": "http://[::1"}, 403),
    ):
        assert idle_app.test_client().get("/versions", headers=headers).status_code == status, headers


def test_without_credentials_only_loopback_is_listened_on() -> None:
    plain = load_settings()
    assert bind_address(plain) == "127.0.0.1"
    assert bind_address(plain.model_copy(update={"host": "::1"})) == "::1"
    with pytest.raises(InvalidSetting, match=r"SURESPAN_HOST: expected a loopback address .*BASIC_AUTH_USER"):
        bind_address(plain.model_copy(update={"host": "0.0.0.0"}))  # noqa: S104
    guarded = plain.model_copy(update={"basic_auth_user": "a", "basic_auth_pass": SecretStr("b")})
    assert bind_address(guarded) == "0.0.0.0"  # noqa: S104
    assert bind_address(guarded.model_copy(update={"host": "10.0.0.5"})) == "10.0.0.5"


@pytest.mark.parametrize("half", [{"basic_auth_user": "a"}, {"basic_auth_pass": SecretStr("b")}])
def test_half_of_basic_auth_is_refused(settings: Settings, half: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match="other half"):
        read_credentials(settings.model_copy(update=half))


def test_answers_carry_security_headers_and_a_request_id(idle_app: Flask) -> None:
    app = idle_app
    answer = app.test_client().get("/health")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert len(answer.headers["X-Request-ID"]) == 32
    named = app.test_client().get("/health", headers={"X-Request-ID": "abc-1"})
    assert named.headers["X-Request-ID"] == "abc-1"
    odd = app.test_client().get("/health", headers={"X-Request-ID": "a b" * 50})
    assert len(odd.headers["X-Request-ID"]) == 32


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    root, ours = logging.getLogger(), logging.getLogger("backend")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    configure_logging("debug", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def test_logs_are_json_lines_without_text_tokens_or_passwords(guarded: Flask, log: io.StringIO) -> None:
    guarded.extensions["surespan"].start()
    client = guarded.test_client()
    right = basic(USER, PASSWORD) | {"X-Request-ID": "the-request"}
    private = "Confidential-Carla lives in Secret-City."
    tasks = [shapes.task(1, private), shapes.task(2, [private]), {"id": 3, "data": {"other": private}}]
    client.post("/setup", json=shapes.setup(), headers=right)
    assert client.post("/predict", json=shapes.predict(tasks), headers=right, buffered=True).status_code == 200
    client.post("/webhook", json=shapes.events()[0] | {"note": private}, headers=right)
    client.post("/webhook", data=private, headers=right)
    client.post("/predict", json={"tasks": private}, headers=right)
    client.post("/api/v1/sets", json={"text": private, "language": private}, headers=right)
    client.post("/setup", json=shapes.setup(), headers=basic(USER, "guess-of-the-password"))
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert {line["request_id"] for line in lines if line.get("route") == "/predict"} == {"the-request"}
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert sum(line["message"] == "request" for line in lines) == 7
    everything = log.getvalue()
    for secret in ("Carla", "Secret-City", PASSWORD, "guess-of", SECRET, "not-a-real-token", "never-to-be-kept"):
        assert secret not in everything
    metrics = client.get("/metrics", headers=right).get_data(as_text=True)
    assert "Carla" not in metrics


def test_an_exception_is_logged_by_place_and_not_by_message() -> None:
    def fail() -> None:
        raise ValueError("Carla")

    with pytest.raises(ValueError, match="Carla") as caught:
        fail()
    record = logging.makeLogRecord({"msg": "x", "exc_info": (caught.type, caught.value, caught.tb)})
    fields = json.loads(JsonFormatter().format(record))
    assert fields["error"] == "ValueError"
    assert "test_security.py" in fields["stack"][0]
    assert "Carla" not in json.dumps(fields)


BODIES = [
    b"",
    b"{",
    b"\xff\xfe",
    b'{"action": NaN}',
    b"[" * 200_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b'{"action": "A", "x":' + b"[" * 900 + b"]" * 900 + b"}",
    b"1" * 5_000,
    b'"text"',
    b"[]",
    b"null",
    b'{"action": 5, "tasks": 5, "project": 5, "schema": 5, "config": 5, "text": 5}',
]


@pytest.mark.parametrize("path", ["/webhook", "/predict", "/setup", "/validate", "/api/v1/sets"])
def test_any_body_ends_in_an_answer_with_a_reason(idle_app: Flask, path: str) -> None:
    for body in BODIES:
        answer = idle_app.test_client().post(path, data=body, content_type="application/json")
        if path == "/webhook" and answer.status_code == 200:
            assert b"900" not in body
            continue
        assert answer.status_code == 400, body[:40]
        assert answer.json["expected"]
        assert answer.json["got"]
    odd = idle_app.test_client().post("/webhook", data=b'{"action": "A", "x": "\\ud800\\u0000"}')
    assert odd.status_code == 200


def test_a_body_beyond_the_limit_is_refused(make_app: MakeApp) -> None:
    client = make_app(start=False, max_request_mb=1).test_client()
    answer = client.post("/webhook", data=b'{"action": "' + b"x" * 1_000_001 + b'"}')
    assert answer.status_code == 413
    assert answer.json.keys() == {"error", "expected", "got", "hint"}


def test_unknown_routes_and_methods_have_the_same_body(idle_app: Flask) -> None:
    for answer, status in (
        (idle_app.test_client().get("/nowhere"), 404),
        (idle_app.test_client().get("/predict"), 405),
        (idle_app.test_client().delete("/health"), 405),
    ):
        assert answer.status_code == status
        assert answer.json.keys() == {"error", "expected", "got", "hint"}
    assert "POST" in idle_app.test_client().get("/predict").headers["Allow"]


def test_an_event_that_cannot_be_stored_is_not_acknowledged(idle_app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    app, service = idle_app, service_of(idle_app)

    def busy(_: object) -> int:
        raise StoreBusy("sqlite:////private/path.db: another process held a lock")

    monkeypatch.setattr(service, "store_delivery", busy)
    answer = app.test_client().post("/webhook", json=shapes.events()[0])
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert "private" not in answer.get_data(as_text=True)
    with service.reads.read() as session:
        assert inbox_depth(session)["pending"] == 0


def test_the_unforeseen_is_a_500_without_a_traceback(idle_app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    app, service = idle_app, service_of(idle_app)

    def broken(_: object) -> str:
        raise RuntimeError("Carla")

    monkeypatch.setattr(service, "setup", broken)
    answer = app.test_client().post("/setup", json=shapes.setup())
    assert answer.status_code == 500
    assert answer.json["error"] == "Internal error"
    assert "Carla" not in answer.get_data(as_text=True)
    assert "Traceback" not in answer.get_data(as_text=True)
