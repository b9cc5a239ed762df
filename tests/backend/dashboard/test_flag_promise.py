"""The figure of what may be left alone: promised beside measured, on a page, as a file and in the terminal."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from click.testing import CliRunner
from flask import Flask

from backend.cli import main
from backend.settings import Settings
from backend.store import Store
from backend.store.projects import ensure_project
from tests.support.populated import UID
from tests.support.service import MakeApp


def rows_of(app: Flask, project: str) -> list[dict[str, str]]:
    answer = app.test_client().get(f"/dashboard/projects/{project}/figures/flag-promise.csv")
    assert answer.status_code == 200, answer.text
    return list(csv.DictReader(io.StringIO(answer.text)))


def test_promised_stands_beside_measured(populated_app: Flask) -> None:
    own, others = rows_of(populated_app, UID)
    assert (own["pool"], own["promised"], own["guarantee"], own["labels_it_rests_on"]) == ("en", "0.05", "own", "240")
    assert (own["flagged_from_a_doubt_of"], own["95_bound_when_fitted"]) == ("0.125", "0.0625")
    # Of 40 blind labels four left half of their entities wrong: 2 of 40.
    assert (own["later_labels"], float(own["measured"])) == ("40", pytest.approx(0.05))
    assert float(own["95_from"]) < 0.05 < float(own["95_to"])
    assert (others["pool"], others["guarantee"], others["later_labels"], others["measured"]) == (
        "others",
        "none",
        "0",
        "",
    )
    page = populated_app.test_client().get(f"/dashboard/projects/{UID}?tab=promise").text
    assert "What may be left alone?" in page
    assert "at most the promised share of a task&#39;s entities is wrong or missing" in page


def test_without_levels_it_says_what_to_do(populated_app: Flask) -> None:
    assert rows_of(populated_app, "8") == []
    page = populated_app.test_client().get("/dashboard/projects/8?tab=promise").text
    assert "No level of your own yet" in page
    assert "SURESPAN_MAX_ERROR" in page


def test_flags_of_several_labels_promise_nothing_and_it_says_so(settings: Settings, make_app: MakeApp) -> None:
    app = make_app(start=False, flags="sets")
    with Store(settings.database_url) as store, store.write() as session:
        ensure_project(session, "8.1760000001", title="Nothing yet")
    page = app.test_client().get("/dashboard/projects/8?tab=promise").text
    assert "which promises nothing about the rest (SURESPAN_FLAGS=sets)" in page
    assert "No level of your own yet" not in page


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "Amber: No promise of your own yet: on texts like those of the starter calibration, if every amber place"),
        ({"SURESPAN_MAX_ERROR": "0.5"}, "on average at most 50 % of a task's entities are wrong or missing."),
        ({"SURESPAN_FLAGS": "sets"}, None),
    ],
)
def test_the_terminal_says_what_amber_promises(
    served_model: Path, tmp_path: Path, environment: dict[str, str], said: str | None
) -> None:
    database = {"SURESPAN_DATABASE_URL": f"sqlite:///{tmp_path / 'none.db'}", "SURESPAN_MODEL": str(served_model)}
    chosen = database | {"SURESPAN_N_MIN": "20", "SURESPAN_MAX_ERROR": "0.3", "COLUMNS": "300"} | environment
    done = CliRunner().invoke(main, ["predict", "Anna Schmidt wohnt in Berlin."], env=chosen)
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert ("Amber:" in text) == (said is not None)
    assert said is None or said in text
