"""The pages on a populated database: everything is there, nothing is unescaped, and what is read is bounded."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import sqlalchemy as sa
from flask import Flask

from backend.app import service_of
from backend.dashboard.tabs import TABS
from backend.store import Store
from tests.support.populated import TITLE, UID, populate

FIGURES = [name for tab in TABS for section in tab.sections for name in section.figures]
PAGE = f"/dashboard/projects/{UID}"


@pytest.fixture
def app(populated_app: Flask) -> Flask:
    """The pages over a project that has been worked on."""
    return populated_app


def get(app: Flask, path: str) -> str:
    answer = app.test_client().get(path)
    assert answer.status_code == 200, answer.text
    return str(answer.text)


def every_tab(app: Flask, path: str) -> dict[str, str]:
    return {tab.name: get(app, f"{path}?tab={tab.name}") for tab in TABS}


def test_the_tabs_of_a_project_show_every_figure(app: Flask) -> None:
    pages = every_tab(app, PAGE)
    for tab in TABS:
        for section in tab.sections:
            assert f'id="section-{section.anchor}"' in pages[tab.name]
            for name in section.figures:
                assert f'id="{name}"' in pages[tab.name]
    for page in pages.values():  # what stands above the tabs
        assert "The guarantee is your own. In at least 90 % of tasks" in page
        assert "Not promised for de/*: too few labels there." in page
        assert "Labels that may calibrate: every task: they come in random order." in page
    assert "Texts have changed." in pages["promise"]
    assert "Look at what has been imported lately" in pages["promise"]
    assert "RuntimeError: Label Studio is away" in pages["running"]
    assert "Nobody has pressed a button yet." in pages["running"]
    assert "confirmed: the label was right" in pages["promise"]
    charts = {name: page.count('<svg class="chart ') for name, page in pages.items()}
    assert charts == {"worth": 3, "work": 1, "promise": 6, "thresholds": 1, "running": 0}


def test_the_summary_answers_five_questions(app: Flask) -> None:
    page = get(app, PAGE)
    assert page.count('class="button main"') == 1
    assert "1 alarm is not yet marked as seen: what is promised may not hold until you know why." in page
    assert f'href="{PAGE}?tab=promise#section-alarms">Look at the alarm</a>' in page
    assert "Of 40 blind labels of the last 90 days the set held 90.0 % (76.3 to 97.2 %)" in page
    assert "F1 is 87.1 % (84.0 to 90.2 %)" in page
    assert "Assisted labels alone would say 93.4 %, 6.3 points better." in page
    assert "A prelabel saves 21 % of a task&#39;s time (12 to 30 %), from 240 blind and 610 assisted tasks." in page
    assert "1,450 of 2,300 tasks are left, with 730 amber places to look at. About 13.8 h of work" in page


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_the_tab_that_was_opened_last_is_remembered(app: Flask) -> None:
    client = app.test_client()
    assert 'aria-current="page">What it is worth</a>' in client.get(PAGE).text
    opened = client.get(f"{PAGE}?tab=thresholds")
    assert 'aria-current="page">Labels and thresholds</a>' in opened.text
    assert "HttpOnly" in opened.headers["Set-Cookie"]
    assert 'aria-current="page">Labels and thresholds</a>' in client.get(PAGE).text
    assert 'aria-current="page">Labels and thresholds</a>' in client.get("/dashboard/projects/8").text
    asked = client.get(f"{PAGE}?tab=nothing")
    assert 'aria-current="page">What it is worth</a>' in asked.text
    assert "surespan_tab" not in asked.headers.get("Set-Cookie", "")


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_charts_are_files_too(app: Flask) -> None:
    answer = app.test_client().get(f"{PAGE}/figures/accuracy.svg")
    assert answer.content_type.startswith("image/svg+xml")
    drawn = ET.fromstring(answer.text)  # noqa: S314 - made by the service itself
    words = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"How good the prelabels are", "PER", "From blind labels"} <= set(words)
    assert not re.findall(r"href|url\(|http(?!://www\.w3\.org/2000/svg)", answer.text)
    for name in ("agreement", "nothing", "alarms"):  # without a chart, unknown
        assert app.test_client().get(f"{PAGE}/figures/{name}.svg").status_code == 404


def test_titles_are_escaped(app: Flask) -> None:
    for path in ("/dashboard", PAGE, "/dashboard/try", f"{PAGE}/actions/refit"):
        page = get(app, path)
        assert TITLE not in page
        assert "Letters &lt;b&gt;&amp; &#34;papers&#34;&lt;/b&gt;" in page


def test_a_project_without_labels_says_what_will_be_there(app: Flask) -> None:
    pages = every_tab(app, "/dashboard/projects/8")
    for page in pages.values():
        assert "No promise yet" in page
        assert "Label 20 more blank tasks" in page
        assert "<svg" not in page
        assert 'class="badge borrowed"' in page
        assert "borrowed from the starter calibration" in page
    # The inbox, the next model and what comes with more labels are never without a number.
    assert sum(page.count('class="empty"') for page in pages.values()) == len(FIGURES) - 3


def test_the_overview_lists_projects(app: Flask) -> None:
    page = get(app, "/dashboard")
    assert page.index("Letters") < page.index("Nothing yet")
    row = page[page.index("Letters") :].split("</tr>")[0]
    assert "90.0 %" in row  # of 40 blind labels 36 were held: every tenth is not
    assert 'class="badge own"' in row
    # Without thresholds of its own the starter of the model serves, and its sets say borrowed.
    assert 'class="badge borrowed"' in page[page.index("Nothing yet") :].split("</tr>")[0]


def test_without_projects_the_overview_says_how_to_get_one(empty_app: Flask) -> None:
    assert "surespan connect --project N" in get(empty_app, "/dashboard")


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_every_figure_is_a_csv_file_too(app: Flask) -> None:
    for name in FIGURES:
        answer = app.test_client().get(f"{PAGE}/figures/{name}.csv")
        assert answer.status_code == 200
        assert answer.content_type == "text/csv; charset=utf-8"
        rows = list(csv.reader(io.StringIO(answer.text)))
        assert len({len(row) for row in rows}) == 1
        assert len(rows) > 1 or name in {
            "actions",
            "acceptance",
            "models",
        }  # nobody has done anything yet
    assert app.test_client().get(f"{PAGE}/figures/nothing.csv").status_code == 404
    coverage = list(csv.DictReader(io.StringIO(get(app, f"{PAGE}/figures/coverage-by-class.csv"))))
    blind = next(row for row in coverage if row["class"] == "PER" and row["labels_made"] == "without a prelabel")
    # 40 blind labels with two entities each; of every third of them one was not in its span's set.
    assert (blind["entities"], blind["class_in_the_span_s_set"]) == ("80", "66")


def test_pages_may_load_nothing_from_elsewhere(app: Flask) -> None:
    for path in ("/dashboard", PAGE, "/dashboard/try", f"{PAGE}/actions/refit", "/dashboard/projects/404"):
        answer = app.test_client().get(path)
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self';")
        assert not {"http", "script-src", "unsafe"} & set(re.findall(r"http|script-src|unsafe", policy))
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "<script" not in answer.text
        assert not re.findall(r"(?:src|href)=\"(?!/|#)[^\"]*\"", answer.text)
        assert " style=" not in answer.text
        assert not re.findall(r"\son[a-z]+=", answer.text)


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_assets_come_from_this_service_and_may_be_kept(app: Flask) -> None:
    found = set(re.findall(r"\"(/dashboard/assets/[^\"]+)\"", get(app, PAGE)))
    assert len(found) == 2
    for path in found:
        with app.test_client().get(path) as answer:
            assert answer.status_code == 200
            assert "immutable" in answer.headers["Cache-Control"]
    assert app.test_client().get("/dashboard/assets/../routes.py").status_code == 404
    assert app.test_client().get("/dashboard/assets/page.html").status_code == 404


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_what_does_not_exist_is_said_on_a_page(app: Flask) -> None:
    for path in ("/dashboard/projects/404", f"{PAGE}/actions/explode", f"{PAGE}/actions/rollback?version=99999"):
        answer = app.test_client().get(path)
        assert answer.status_code == 404
        assert "That did not work (404)" in answer.text


def test_queries_do_not_grow_with_the_labels(empty_app: Flask) -> None:
    service = service_of(empty_app)
    service.views.polled.every = 60.0
    counts = []
    for labels, uid in ((20, "70.1"), (140, "71.1")):
        with Store(service.settings.database_url) as store:
            populate(store, service.views.model_of, labels=labels, uid=uid)
        page = f"/dashboard/projects/{uid}"
        for path in ("/dashboard", page):
            get(empty_app, path)  # what is asked for once per process
        statements: list[str] = []
        with listening(service.reads, statements):
            for path in ("/dashboard", page, "/dashboard/try"):
                get(empty_app, path)
        counts.append(len(statements))
        assert not [one for one in statements if "calibration_scores" in one or "judgements" in one]
        assert not [one for one in statements if "threshold_versions.content" in one]
    assert counts[0] == counts[1]
    assert counts[0] < 70


@contextmanager
def listening(store: Store, statements: list[str]) -> Iterator[None]:
    """Note the queries of a store."""

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    sa.event.listen(store.engine, "before_cursor_execute", note)
    yield
    sa.event.remove(store.engine, "before_cursor_execute", note)
