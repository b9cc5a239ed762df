"""The pages on a populated database: everything is there, nothing is unescaped, and what is read is bounded."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from backend.app import service_of
from backend.dashboard.routes import SECTIONS
from backend.store import Store
from tests.support.populated import TITLE, UID, populate

FIGURES = [name for _, _, names in SECTIONS for name in names]
PAGE = f"/dashboard/projects/{UID}"


@pytest.fixture
def app(populated_app: Flask) -> Flask:
    """The pages over a project that has been worked on."""
    return populated_app


def get(app: Flask, path: str) -> str:
    answer = app.test_client().get(path)
    assert answer.status_code == 200, answer.text
    return str(answer.text)


def test_the_project_page_shows_every_figure(app: Flask) -> None:
    page = get(app, PAGE)
    for name in FIGURES:
        assert f'id="{name}"' in page
    assert "The guarantee is your own. In at least 90 % of tasks" in page
    assert "Not promised for de/*: too few labels there." in page
    assert "Labels that may calibrate: every task: they come in random order." in page
    assert "Texts have changed." in page
    assert "Look at what has been imported lately" in page
    assert "RuntimeError: Label Studio is away" in page
    assert "confirmed: the label was right" in page
    assert page.count('<svg class="chart ') == 7
    assert "Nobody has pressed a button yet." in page


def test_titles_are_escaped(app: Flask) -> None:
    for path in ("/dashboard", PAGE, "/dashboard/try", f"{PAGE}/actions/refit"):
        page = get(app, path)
        assert TITLE not in page
        assert "Letters &lt;b&gt;&amp; &#34;papers&#34;&lt;/b&gt;" in page


def test_a_project_without_labels_says_what_will_be_there(app: Flask) -> None:
    page = get(app, "/dashboard/projects/8")
    assert "No promise yet" in page
    assert "Label 20 more blank tasks" in page
    assert "<svg" not in page
    assert 'class="badge borrowed"' in page
    assert "borrowed from the starter calibration" in page
    assert page.count('class="empty"') == len(FIGURES) - 2  # the inbox and the next model are never without a number


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
