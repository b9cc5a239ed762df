"""The job that measures, when it is due, and the record as program, page and file show it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from flask import Flask

from backend.app import service_of
from backend.cli import main
from backend.jobs.kinds import Kind
from backend.store import Store
from backend.store.engine import database_now
from backend.store.jobs import last_job
from backend.store.projects import ensure_project, find_project, lookup_model
from backend.store.state import WORTH, get_state, set_state
from backend.store.tables import Job, Task
from backend.tagger.identity import ModelHeader
from backend.worker.worker import Worker
from backend.worth.measure import queue_due_worth
from tests.support.populated import TITLE, UID, populate
from tests.support.worth_figures import figures

pytestmark = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)


@pytest.fixture
def filled(empty_app: Flask) -> Iterator[Flask]:
    """The service over a project that has been worked on, whose worth was never measured."""
    service = service_of(empty_app)
    with Store(service.settings.database_url) as store:
        project = populate(store, service.views.model_of)
        with store.write() as session:
            set_state(session, project.id, WORTH, {})
        yield empty_app


def project_of(app: Flask) -> tuple[Store, Any, ModelHeader]:
    service = service_of(app)
    with service.reads.read() as session:
        project = find_project(session, UID)
        assert project is not None
        return service.writes, project, service.views.serving_model(project)


def kept(app: Flask) -> dict[str, Any]:
    store, project, _ = project_of(app)
    with store.read() as session:
        return get_state(session, project.id, WORTH) or {}


def is_due(app: Flask) -> bool:
    store, project, header = project_of(app)
    return store.run(lambda session: queue_due_worth(session, project, header=header))


def note(app: Flask, *, ago: timedelta, **changes: int) -> None:
    """Put the last measurement some time back, with other marks."""
    store, project, _ = project_of(app)

    def work(session: Any) -> None:
        known = get_state(session, project.id, WORTH) or {}
        moved = {name: known[name] + change for name, change in changes.items()}
        set_state(session, project.id, WORTH, known | moved | {"at": (database_now(session) - ago).isoformat()})

    store.run(work)


def measure_once(app: Flask) -> None:
    assert is_due(app)
    service = service_of(app)
    worker = Worker(service.settings, service.writes, loader=service.loader, views=service.views)
    while worker.step_jobs():
        pass


def test_the_job_keeps_a_record_that_pages_and_programs_show(filled: Flask) -> None:
    client = filled.test_client()
    before = client.get(f"/api/v1/projects/{UID}/worth").json
    assert (before["measured_at"], before["accuracy"]) == (None, None)
    assert "Not measured yet" in client.get(f"/dashboard/projects/{UID}").text
    assert is_due(filled)
    assert not is_due(filled), "one waits already"
    service = service_of(filled)
    worker = Worker(service.settings, service.writes, loader=service.loader, views=service.views)
    while worker.step_jobs():
        pass
    store, project, _ = project_of(filled)
    with store.read() as session:
        job = last_job(session, Kind.WORTH.value, project_id=project.id)
        assert job is not None
        assert (job.state, job.error) == ("done", None)
    found = kept(filled)
    # 120 labels were there before anything was served: they count as done.
    assert (found["left"]["tasks"], found["left"]["left"]) == (140, 20)
    assert found["saving"]["left_out"].keys() <= {"not served", "no time"}
    example = figures(found["model"])
    for part in ("accuracy", "left", "agreement", "edits", "saving"):
        names = set(found[part][0]) if isinstance(found[part], list) else set(found[part])
        shown = set(example[part][0]) if isinstance(example[part], list) else set(example[part])
        assert names == shown, "pages are tested with a record of another shape"
    after = client.get(f"/api/v1/projects/{UID}/worth").json
    assert after["left"] == found["left"]
    assert {each["name"] for each in after["milestones"]} >= {"own", "flags", "accuracy", "acceptance"}
    assert "20 of 140 tasks are left" in client.get(f"/dashboard/projects/{UID}").text


def test_measuring_is_due_by_counts_and_time_alone(filled: Flask) -> None:
    measure_once(filled)
    note(filled, ago=timedelta(days=9))
    assert not is_due(filled), "nothing has come since"
    note(filled, ago=timedelta(minutes=9), revision=-1)
    assert not is_due(filled), "labels have come, but only a while ago"
    note(filled, ago=timedelta(minutes=11))
    assert is_due(filled)


def test_sets_alone_are_measured_hourly(filled: Flask) -> None:
    measure_once(filled)
    note(filled, ago=timedelta(minutes=50), served=-1)
    assert not is_due(filled)
    note(filled, ago=timedelta(minutes=61))
    assert is_due(filled)


def test_a_measurement_that_failed_rests(filled: Flask) -> None:
    measure_once(filled)
    note(filled, ago=timedelta(minutes=11), revision=-1)
    store, _, _ = project_of(filled)

    def fail(ago: timedelta) -> None:
        with store.write() as session:
            values = {"state": "failed", "heartbeat_at": database_now(session) - ago}
            session.execute(sa.update(Job).where(Job.kind == Kind.WORTH.value).values(values))

    fail(timedelta(minutes=50))
    assert not is_due(filled)
    fail(timedelta(minutes=61))
    assert is_due(filled)


def test_what_is_served_for_other_projects_asks_for_nothing(filled: Flask) -> None:
    measure_once(filled)
    store, project, _ = project_of(filled)
    with store.write() as session:
        other = ensure_project(session, "8.1770000000", title="Another")
        session.execute(sa.update(Task).where(Task.project_id == project.id).values(project_id=other.id))
    note(filled, ago=timedelta(minutes=61), served=-1)
    before = kept(filled)
    assert not is_due(filled)
    assert kept(filled) == before | {"served": before["served"] + 1}, "and it is not looked at again"


def test_figures_of_another_model_are_not_shown(filled: Flask) -> None:
    store, project, _ = project_of(filled)
    store.run(lambda session: set_state(session, project.id, WORTH, figures(model=999)))
    assert filled.test_client().get(f"/api/v1/projects/{UID}/worth").json["measured_at"] is None


def test_what_is_missing_is_said_alike_everywhere(filled: Flask) -> None:
    store, project, header = project_of(filled)
    with store.read() as session:
        model = lookup_model(session, header.name, header.hash)
    assert model is not None

    def counted() -> int:
        given = filled.test_client().get(f"/api/v1/projects/{UID}/worth").json
        return next(each["has"] for each in given["milestones"] if each["name"] == "accuracy")

    assert counted() > 3
    record = figures(model.id)
    record["accuracy"][0]["labels"] = 3
    store.run(lambda session: set_state(session, project.id, WORTH, record))
    assert counted() == 3, "blind labels whose texts the model was not asked about do not count"


def test_the_report_is_one_file_that_needs_nothing_else(populated_app: Flask) -> None:
    answer = populated_app.test_client().get(f"/dashboard/projects/{UID}/report.html")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="surespan-7.html"'
    page = answer.text
    assert not re.findall(r"<script|<link|<img|<a |url\(|@import|\ssrc=|href=", page)
    assert "prefers-color-scheme: dark" in page
    assert "F1 is 87.1 % (84.0 to 90.2 %)" in page
    assert page.count('<svg class="chart ') == 10
    assert page.count("<table>") > 15
    assert TITLE not in page
    assert "annotator 3" not in page, "figures of single people are for whoever may open the page"
    assert "annotator 3" in populated_app.test_client().get(f"/dashboard/projects/{UID}").text


def test_the_command_measures_and_writes_the_file(filled: Flask, tmp_path: Path) -> None:
    settings = service_of(filled).settings
    environment = {
        "SURESPAN_DATABASE_URL": settings.database_url,
        "SURESPAN_MODEL": str(settings.model),
        "SURESPAN_N_MIN": "20",
    }
    out = tmp_path / "report.html"
    done = CliRunner().invoke(main, ["report", "--project", "7", "--out", str(out)], env=environment)
    assert done.exit_code == 0, done.output
    page = out.read_text(encoding="utf-8")
    assert "20 of 140 tasks are left" in page
    assert kept(filled) == {}, "a report is written, and nothing else"
    said = CliRunner().invoke(main, ["report", "--project", "7", "--json"], env=environment)
    assert json.loads(said.output)["left"]["left"] == 20
    lost = CliRunner().invoke(main, ["report", "--project", "404"], env=environment)
    assert lost.exit_code == 1
    assert "got '404'; known:" in lost.output
