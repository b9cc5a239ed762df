"""Auto-Annotation in a real browser: what is drawn by hand is completed, except on a task that is meant to be blank."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
import sqlalchemy as sa

from backend.store.tables import Task
from tests.support.editor import Editor
from tests.support.label_studio import FLAGGED, LabelStudioServer, Project, Service

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.end_to_end import ProjectFactory

SMART = FLAGGED.replace('name="label" toName="text"', 'name="label" toName="text" smart="true"')
TEXTS = [f"{name} visited Paris with Alice Cooper {n} times." for n in range(2, 12) for name in ("Sydney", "Jordan")]


class Wired(NamedTuple):
    """A connected project whose backend is interactive, with one task of each kind."""

    project: Project
    shown: int
    blind: int


@pytest.fixture(scope="module")
def wired(blind_service: Service, make_project: ProjectFactory, label_studio: LabelStudioServer) -> Wired:
    surespan = blind_service
    work = make_project(TEXTS, label_config=SMART, title="Suggestions")
    surespan.connect(work)
    (backend,) = label_studio.call("GET", "/api/ml/", project=work.id)
    fields = {"project": work.id, "url": backend["url"], "title": backend["title"], "is_interactive": True}
    auth = {"auth_method": "BASIC_AUTH", "basic_auth_user": surespan.user, "basic_auth_pass": surespan.password}
    assert label_studio.call("PATCH", f"/api/ml/{backend['id']}", fields | auth)["is_interactive"]
    with surespan.open_store() as store, store.read() as session:
        mine = Task.external_id.in_([str(task) for task in work.tasks])
        rows = session.execute(sa.select(Task.external_id, Task.blind).where(mine).order_by(Task.id)).all()
    kinds = {blind: int(task) for task, blind in rows}
    return Wired(work, shown=kinds[False], blind=kinds[True])


def test_what_is_drawn_is_completed(wired: Wired, page: Page) -> None:
    editor = Editor(page, wired.project)
    editor.open_task(wired.shown)
    editor.create()
    editor.turn_on_suggestions()
    with page.expect_response(lambda answer: "interactive-annotating" in answer.url) as info:
        editor.draw("Alice Cooper", key="1")
    assert info.value.ok
    suggested = info.value.json()["data"]["result"]
    assert suggested, "the model finds the other names too"
    editor.wait_for_regions(1 + len(suggested))
    shown = {(span.start, span.end, span.text, span.label) for span in editor.shown()}
    text = TEXTS[wired.project.tasks.index(wired.shown)]
    start = text.index("Alice Cooper")
    assert shown == {(start, start + 12, "Alice Cooper", "PER")} | {
        (r["value"]["start"], r["value"]["end"], r["value"]["text"], r["value"]["labels"][0]) for r in suggested
    }
    for _, _, words, _ in shown:
        assert words in text


def test_a_blank_task_stays_blank(wired: Wired, page: Page) -> None:
    editor = Editor(page, wired.project)
    editor.open_task(wired.blind)
    assert editor.shown() == []
    editor.turn_on_suggestions()
    with page.expect_response(lambda answer: "interactive-annotating" in answer.url) as info:
        editor.draw("Alice Cooper", key="1")
    assert info.value.ok
    assert info.value.json()["data"].get("result", []) == []
    assert [span.text for span in editor.shown()] == ["Alice Cooper"]
