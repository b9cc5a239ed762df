"""A page of another site, in a real browser that remembers the dashboard's credentials: it can change nothing.

Every route that changes something is tried with everything that a form can send, and with a script's fetch.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import sqlalchemy as sa
from flask import Flask
from werkzeug.serving import WSGIRequestHandler, make_server

from backend.app import create_app, service_of
from backend.settings import load_settings
from backend.store import Store
from backend.store.tables import Base
from tests.support.databases import sqlite_template
from tests.support.payload_shapes import events
from tests.support.populated import UID, populate

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

USER, PASSWORD = "lead", "password-of-a-test"
KINDS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
EVENT = json.dumps(events()[0])


class Served(NamedTuple):
    """A service that answers on a port of this machine, its database and the routes that change something."""

    port: int
    database: Path
    routes: list[str]


@pytest.fixture(scope="module", params=["credentials", "credentials and secret", "nothing"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The service over a populated database, with different guards; no model is loaded, for none is needed."""
    populated = sqlite_template(tmp_path_factory, "populated-bundled", _populate)
    database = tmp_path_factory.mktemp("served") / "served.db"
    shutil.copy(populated, database)
    guard = {} if request.param == "nothing" else {"basic_auth_user": USER, "basic_auth_pass": PASSWORD}
    guard |= {"webhook_secret": "secret-of-a-test"} if "secret" in request.param else {}
    settings = load_settings(database_url=f"sqlite:///{database}", alpha="0.1", n_min=20, host="127.0.0.1", **guard)
    app = create_app(settings, start=False)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Silent)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Served(server.port, database, changing_routes(app))
    server.shutdown()
    thread.join()
    server.server_close()
    service_of(app).close()


def _populate(url: str) -> None:
    app = create_app(load_settings(database_url=url, alpha="0.1", n_min=20), start=False)
    with Store(url) as store:
        populate(store, service_of(app).views.model_of)
    service_of(app).close()


class _Silent(WSGIRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Another site: its address (of another host, as browsers see it) and the folder of its pages."""
    folder = tmp_path_factory.mktemp("elsewhere")
    handler = partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}", folder
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


def changing_routes(app: Flask) -> list[str]:
    """Return the address of every route that takes something else than GET."""
    named = {"uid": UID, "action": "refit", "name": "refit", "number": "1", "task": "1", "project": UID}
    routes = []
    for rule in app.url_map.iter_rules():
        if (rule.methods or set()) & {"POST", "PUT", "PATCH", "DELETE"}:
            with app.test_request_context():
                routes.append(rule.build({name: named.get(name, "1") for name in rule.arguments})[1])  # type: ignore[index]
    return sorted(set(routes))


def contents(database: Path) -> dict[str, int]:
    """Return how many rows every table has."""
    with Store(f"sqlite:///{database}") as store, store.read() as session:
        return {
            name: int(session.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
            for name, table in Base.metadata.tables.items()
        }


def test_another_site_changes_nothing(served: Served, elsewhere: tuple[str, Path], browser: Browser) -> None:
    site, folder = elsewhere
    before = contents(served.database)
    context = browser.new_context(http_credentials={"username": USER, "password": PASSWORD})
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{served.port}/dashboard")  # the browser remembers the credentials from here on
    assert page.locator("main").count() == 1
    statuses: list[tuple[str, int]] = []
    for path in served.routes:
        target = f"http://127.0.0.1:{served.port}{path}"
        statuses += [
            (path, _submit(page, site, folder, target, kind)) for kind in (KINDS if path == "/webhook" else KINDS[:1])
        ]
        _fetch(page, site, folder, target)
    context.close()
    assert contents(served.database) == before
    assert [(path, status) for path, status in statuses if not 400 <= status < 500] == []
    assert "/webhook" in dict(statuses)


def _submit(page: Page, site: str, folder: Path, target: str, kind: str) -> int:
    """Submit a form whose body is an event; as text/plain it arrives as the JSON that it is."""
    name, value = EVENT[:-1] + ', "rest": "', '"}'
    fields = f"<input name='{_quoted(name)}' value='{_quoted(value)}'>"
    (folder / "form.html").write_text(f"<form method=post enctype='{kind}' action='{target}'>{fields}</form>")
    page.goto(f"{site}/form.html")
    with page.expect_navigation(url=target) as answered:
        page.evaluate("document.forms[0].submit()")
    return answered.value.status


def _fetch(page: Page, site: str, folder: Path, target: str) -> None:
    """Ask by script, with the credentials, in a way that needs no leave of the server."""
    (folder / "empty.html").write_text("<p>nothing</p>")
    page.goto(f"{site}/empty.html")
    page.evaluate(
        "([target, body]) => fetch(target, {method: 'POST', mode: 'no-cors', credentials: 'include', body})"
        ".then(() => 'sent', () => 'refused')",
        [target, EVENT],
    )


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace("'", "&#39;").replace("<", "&lt;")
