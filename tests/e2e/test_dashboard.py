"""The dashboard in a real browser, over a populated database: every page and action, both databases.

No console error, no call to another machine, nothing that axe-core calls serious, in light, dark and on a phone.
With SURESPAN_SCREENSHOTS set to a folder, pictures of the pages are left there to be looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from backend.app import create_app, service_of
from backend.settings import load_settings
from backend.store import Store
from backend.store.schema import upgrade
from tests.support.populated import UID, populate
from tests.support.running import running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page

PAGES = {
    "overview": "/dashboard",
    "project": f"/dashboard/projects/{UID}?tab=worth",
    "work": f"/dashboard/projects/{UID}?tab=work",
    "promise": f"/dashboard/projects/{UID}?tab=promise",
    "thresholds": f"/dashboard/projects/{UID}?tab=thresholds",
    "running": f"/dashboard/projects/{UID}?tab=running",
    "empty": "/dashboard/projects/8",
    "refit": f"/dashboard/projects/{UID}/actions/refit",
    "sync": f"/dashboard/projects/{UID}/actions/sync",
    "alpha": f"/dashboard/projects/{UID}/actions/alpha?alpha=0.2",
    "keep": f"/dashboard/projects/{UID}/actions/keep?task=1000",
    "seen": f"/dashboard/projects/{UID}/actions/seen?alarm=1",
    "try": "/dashboard/try",
    "error": "/dashboard/projects/404",
}
USER, PASSWORD = "lead", "password-of-a-test"
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 375, "height": 740}
TEXT = "Jordan visited Washington & <b>Paris</b> with Alice Cooper."


@dataclass
class Watched:
    """A page that notes what went wrong in it."""

    page: Page
    base: str
    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        self.page.goto(self.base + path)
        self.settle()

    def settle(self) -> None:
        """Wait until the page is there."""
        self.page.wait_for_load_state("load")

    def has(self, text: str) -> None:
        assert text in self.page.locator("main").inner_text()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `surespan serve` over a populated database; on PostgreSQL it asks for credentials."""
    directory = tmp_path_factory.mktemp("dashboard")
    database, more = f"sqlite:///{directory / 'served.db'}", {}
    if request.param == "postgresql":
        server = request.getfixturevalue("postgresql")
        server.admin("CREATE DATABASE dashboard")
        database = server.uri("dashboard")
        more = {"BASIC_AUTH_USER": USER, "BASIC_AUTH_PASS": PASSWORD, "SURESPAN_HOST": "127.0.0.1"}
        with Store(database) as store:
            upgrade(store)
    app = create_app(load_settings(database_url=database, alpha="0.1", n_min=20), start=False)
    with Store(database) as store:
        populate(store, service_of(app).views.model_of)
    service_of(app).close()
    with running(directory, Path("bundled"), SURESPAN_DATABASE_URL=database, **more) as service:
        service.wait_until_up()
        yield f"http://127.0.0.1:{service.port}"


def make_context(browser: Browser, **options: Any) -> BrowserContext:
    credentials = {"username": USER, "password": PASSWORD}
    made = browser.new_context(viewport=options.pop("viewport", WIDE), http_credentials=credentials, **options)  # type: ignore[arg-type]
    made.set_default_timeout(60_000)
    return made


def watch(context: BrowserContext, base: str) -> Watched:
    found = Watched(context.new_page(), base)
    found.page.on("pageerror", lambda error: found.errors.append(str(error)))
    found.page.on("console", lambda said: found.errors.append(said.text) if said.type in {"error", "warning"} else None)
    found.page.on("request", lambda asked: _note(asked.url, found))
    return found


def _note(address: str, found: Watched) -> None:
    if urlsplit(address).scheme not in {"data", "blob"} and not address.startswith(found.base):
        found.elsewhere.append(address)


@pytest.fixture
def watched(browser: Browser, base: str) -> Iterator[Watched]:
    """A page of a fresh profile; what it complains about, or asks another machine for, fails the test."""
    context = make_context(browser)
    found = watch(context, base)
    yield found
    context.close()
    # The browser itself reports the status of a page that was meant to be missing.
    assert [error for error in found.errors if "404 (NOT FOUND)" not in error] == []
    assert found.elsewhere == []


def picture(page: Page, name: str) -> None:
    folder = os.environ.get("SURESPAN_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def test_every_page_opens_and_charts_are_drawn(watched: Watched) -> None:
    for path in PAGES.values():
        watched.open(path)
        assert watched.page.locator("h1").count() == 1
    for name, count in {"project": 3, "work": 1, "promise": 6, "thresholds": 1}.items():
        watched.open(PAGES[name])
        marks_lie_in_their_cards(watched.page.locator("svg.chart"), count)
        picture(watched.page, f"{name}-drawn")
    watched.has("The guarantee is your own.")


def marks_lie_in_their_cards(charts: Locator, count: int) -> None:
    assert charts.count() == count
    for place in range(count):
        card = charts.nth(place).locator("xpath=ancestor::article").bounding_box()
        marks = charts.nth(place).locator(".dot, .bar")
        assert marks.count() > 0
        for mark in marks.all():
            box = mark.bounding_box()
            # Drawn, and inside its card.
            assert card is not None
            assert box is not None
            assert box["width"] > 0
            assert card["x"] <= box["x"]
            assert box["x"] + box["width"] <= card["x"] + card["width"]
            assert card["y"] <= box["y"] <= card["y"] + card["height"]


def test_the_actions_ask_once_and_are_recorded(watched: Watched, base: str) -> None:
    who = "lead" if "postgresql" in os.environ.get("PYTEST_CURRENT_TEST", "") else "someone on this machine"
    page = watched.page
    watched.open(PAGES["project"])
    for button, confirm, done in (
        ("Refit now", "Refit now", "A refit is queued"),
        ("Sync now", "Sync now", "A reconciliation is queued"),
    ):
        page.locator("summary", has_text="Other actions").click()
        page.get_by_role("link", name=button, exact=True).click()
        page.get_by_role("button", name=confirm).click()
        watched.settle()
        watched.has(done)
    page.locator("summary", has_text="Other actions").click()
    page.get_by_label("Alpha").fill("0.2")
    page.get_by_role("button", name="Change alpha").click()
    watched.has("Change alpha of")
    page.get_by_role("button", name="Change alpha to 0.2").click()
    watched.settle()
    watched.has("Alpha 0.2 has been requested; sets are served at 0.1")
    page.get_by_role("link", name="Labels and thresholds", exact=True).click()
    page.locator("summary", has_text="Threshold history").click()
    page.get_by_role("link", name="Roll back to version 1").click()
    page.get_by_role("link", name="Cancel").click()
    watched.settle()
    page.locator("summary", has_text="Threshold history").click()
    page.get_by_role("link", name="Roll back to version 1").click()
    page.get_by_role("button", name="Serve version 1").click()
    watched.settle()
    watched.has("The earlier version serves from now on")
    page.get_by_role("link", name="What is left", exact=True).click()
    page.get_by_role("link", name="The label of task 1000 is right").click()
    watched.has("Is the label of task 1000 right as it is?")
    page.get_by_role("button", name="It is right").click()
    watched.settle()
    watched.has("The label counts as right and leaves the list")
    assert page.get_by_role("link", name="The label of task 1000 is right").count() == 0
    assert page.get_by_role("link", name="The label of task 1001 is right").count() == 1
    page.get_by_role("link", name="Models and jobs", exact=True).click()
    history = page.locator("article", has=page.locator("#actions")).locator("tbody tr")
    assert [row.split("\t")[1:3] for row in history.all_inner_texts()] == [
        [who, what]
        for what in (
            "found a label right at a second look",
            "rolled back to an earlier version",
            "changed alpha",
            "reconciled with Label Studio",
            "refitted thresholds",
        )
    ]
    assert page.url.startswith(base)


def test_a_text_can_be_tried(watched: Watched) -> None:
    page = watched.page
    watched.open(PAGES["try"])
    page.get_by_label("Text").fill(TEXT)
    page.get_by_label("Alpha").fill("0.01")
    page.get_by_role("button", name="Show the sets").click()
    watched.has("The threshold that applied")
    assert page.locator("mark").count() > 0
    assert page.locator("mark.doubt").count() > 0
    assert page.locator("b").count() == 0  # what was typed is text
    page.get_by_label("Thresholds of").select_option(UID)
    page.get_by_role("button", name="Show the sets").click()
    watched.has("The threshold that applied")
    picture(page, "try-filled")


def test_pages_can_be_used_with_the_keyboard(watched: Watched) -> None:
    page = watched.page
    watched.open(PAGES["project"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    focused = page.evaluate("document.activeElement.closest('main') !== null")
    assert focused
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"


@pytest.mark.parametrize("base", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("scheme", "viewport"), [("light", WIDE), ("dark", WIDE), ("light", NARROW)])
def test_pages_are_accessible(browser: Browser, base: str, scheme: Any, viewport: Any) -> None:
    try:
        from axe_playwright_python.sync_playwright import Axe  # noqa: PLC0415 - only this test needs it
    except ImportError:
        pytest.skip("axe-playwright-python is not installed: pip install 'surespan[test]'")
    narrow = viewport is NARROW
    # axe-core is code of the test, not of the page: the page's policy would refuse it.
    context = make_context(browser, viewport=viewport, color_scheme=scheme, bypass_csp=True)
    watched = watch(context, base)
    serious: list[str] = []
    for name, path in PAGES.items():
        watched.open(path)
        picture(watched.page, f"{name}-{'narrow' if narrow else scheme}")
        if narrow:
            width = watched.page.evaluate("document.documentElement.scrollWidth")
            assert width <= NARROW["width"], f"{name} is {width} wide on a phone"
        serious += [
            f"{name}: {found['id']}: {[node['target'] for node in found['nodes']][:3]}"
            for found in Axe().run(watched.page).response["violations"]
            if found["impact"] in {"serious", "critical"}
        ]
    context.close()
    assert serious == []


@pytest.mark.parametrize("base", ["sqlite"], indirect=True)
def test_pages_have_no_script_and_need_none(browser: Browser, base: str) -> None:
    context = make_context(browser, java_script_enabled=False)
    page = context.new_page()
    page.goto(base + PAGES["project"])
    assert page.locator("script").count() == 0
    assert page.locator("svg.chart").first.is_visible()
    page.locator("article summary").first.click()
    assert page.locator("article details table").first.is_visible()
    context.close()
