"""One real Label Studio and one real browser for all end-to-end tests of a session; services and projects on demand.

    def test_something(start_service, make_project):
        surespan = start_service(SURESPAN_N_MIN="5")      # `surespan serve`, a process with a database of its own
        work = make_project(["Jordan visited Paris."])    # a project of the shared Label Studio

Where Label Studio or Chromium is missing, the tests are skipped with the remedy; with CI=true they fail.
While writing tests, `python -m tests.support.label_studio` keeps a server running and says how to have it used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backend.demo.install import ENVIRONMENT, label_studio_command
from backend.demo.label_studio import START_SECONDS, create_personal_token, log_in, start_label_studio
from backend.demo.processes import free_port
from tests.support.label_studio import (
    ACCOUNT,
    CHROMIUM,
    CHROMIUM_FLAGS,
    FLAGGED,
    ROOT,
    RUNNING,
    LabelStudioServer,
    Project,
    Service,
    api_client,
    import_texts,
    missing,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ServiceFactory = Callable[..., Service]
ProjectFactory = Callable[..., Project]


@pytest.fixture(scope="session")
def label_studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabelStudioServer]:
    """A real server of the pinned version with a data directory of its own."""
    running = os.environ.get(RUNNING)
    if running:
        url, token = running.split()
        with api_client(url) as client:
            yield LabelStudioServer(url, ACCOUNT, token, None, client)
        return
    command = label_studio_command(ROOT / ENVIRONMENT)
    if command is None:
        missing("Label Studio", "run `surespan demo --install-only`, or `make test`")
    assert command is not None
    directory = tmp_path_factory.mktemp("label-studio")
    log = directory / "server.log"
    child = start_label_studio(command, port=free_port(), data=directory / "data", account=ACCOUNT, log=log)
    try:
        child.wait_until_up(START_SECONDS)
        with api_client(child.url) as client:
            yield LabelStudioServer(child.url, ACCOUNT, create_personal_token(child.url, ACCOUNT), log, client)
    finally:
        child.stop()


@contextmanager
def _starting(label_studio: LabelStudioServer, factory: pytest.TempPathFactory) -> Iterator[ServiceFactory]:
    """Lend what starts services; those that run are stopped on leaving."""
    started: list[Service] = []

    def start(*, personal: bool = False, **settings: str) -> Service:
        directory = factory.mktemp("service")
        key = label_studio.personal_token if personal else label_studio.account.token
        made = Service(directory, label_studio, api_key=key, settings=settings)
        started.append(made)
        return made.start()

    try:
        yield start
    finally:
        for each in started:
            each.stop()


@pytest.fixture(scope="module")
def start_service(
    label_studio: LabelStudioServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceFactory]:
    """Start services: `start_service(personal=False, SURESPAN_...="...")`, each with a database of its own.

    `personal` chooses the personal access token instead of the legacy one.

    It comes back ready. What a test does not stop runs to the end of its module: it has work to do even while nobody
    calls it.
    """
    with _starting(label_studio, tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def showing_service(label_studio: LabelStudioServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that shows everything, for all tests that need no other: each has a project of its own."""
    with _starting(label_studio, tmp_path_factory) as start:
        yield start(
            SURESPAN_BLIND="0",
            SURESPAN_AT_WORK_MINUTES="0",
            SURESPAN_REFIT_EVERY_LABELS="1000",
            SURESPAN_LEARN="manual",
        )


@pytest.fixture(scope="session")
def blind_service(label_studio: LabelStudioServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that leaves every other task blank, for all tests that need no other."""
    with _starting(label_studio, tmp_path_factory) as start:
        yield start(SURESPAN_BLIND="0.5", SURESPAN_SYNC_EVERY_MINUTES="0")


@pytest.fixture(scope="session")
def make_project(label_studio: LabelStudioServer) -> ProjectFactory:
    """Make projects: `make_project(texts, label_config=FLAGGED, sampling="Uniform sampling")`."""

    def create(
        texts: Iterable[str] = (),
        *,
        label_config: str = FLAGGED,
        sampling: str = "Uniform sampling",
        title: str = "End to end",
    ) -> Project:
        body = {"title": title, "label_config": label_config, "sampling": sampling}
        made = label_studio.call("POST", "/api/projects/", body)
        tasks = import_texts(label_studio, made["id"], texts)
        return Project(label_studio, made["id"], made["created_at"], tasks)

    return create


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A real Chromium without a window."""
    if not Path(CHROMIUM).exists():
        missing("Chromium", "apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright", "pip install 'surespan[test]'")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_FLAGS), headless=True)
        yield started
        started.close()


@pytest.fixture(scope="session")
def context(browser: Browser, label_studio: LabelStudioServer) -> Iterator[BrowserContext]:
    """An empty profile in which the user has logged in; its cache spares the pages of a session the editor's code."""
    with closing(log_in(label_studio.url, label_studio.account)) as session:
        cookies = [{"name": c.name, "value": c.value or "", "url": label_studio.url} for c in session.cookies.jar]
    made = browser.new_context(base_url=label_studio.url, viewport={"width": 1500, "height": 900})
    made.add_cookies(cookies)  # type: ignore[arg-type]  # playwright's TypedDict
    made.set_default_timeout(60_000)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page of its own for each test; errors of the page's own code fail the test."""
    made = context.new_page()
    errors: list[str] = []
    made.on("pageerror", lambda error: errors.append(str(error)))
    yield made
    made.close()
    assert not errors, errors
