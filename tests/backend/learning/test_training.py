"""A project learns: from blank tasks to a model of its own that serves, then to a better one; and what it learnt from.

With the real worker, the real process that trains, and both databases.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from sqlalchemy.orm import Session

from backend.app import create_app, service_of
from backend.calibration.order import record_order
from backend.cli import main
from backend.domain.project_model import ProjectModel, State
from backend.domain.records import Draw, JobRecord, ProjectRecord
from backend.domain.streams import Order
from backend.intake.ingest import read_project_uid
from backend.jobs.kinds import Kind, is_pending, queue_train
from backend.labels.export import Format, export
from backend.labels.training_sets import read_project
from backend.learning.parts import is_for_choice
from backend.learning.schedule import queue_due_training
from backend.store import Store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.events import store_events
from backend.store.jobs import heartbeat, list_jobs
from backend.store.project_models import list_models, serving_model
from backend.store.projects import ensure_project
from backend.tagger.model_files import read_header
from backend.worker import worker
from backend.worker.worker import Worker
from tests.support.own_models import config_of
from tests.support.payload_shapes import project_object
from tests.support.toy_texts import toy_texts
from tests.support.workers import MakeWorker, labelled

pytestmark = pytest.mark.heavy

CONFIG = config_of("Drug", "Symptom")
TEXTS = toy_texts(400, seed=5)
NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
PROJECT = read_project_uid(project_object(31))
AUDIT = 7  # every seventh task is drawn blind


class Desk:
    """A project with label names of its own, whose people label its tasks one after the other."""

    def __init__(self, worker: Worker, *, config: str = CONFIG) -> None:
        self.worker, self.store, self.config = worker, worker.store, config
        self.labelled = 0
        self.changes = 0  # of the label config
        self.names: dict[str, str] = {}  # what people call a label instead
        with self.store.write() as session:
            self.project: ProjectRecord = ensure_project(session, PROJECT, label_config=config)
            record_order(session, self.project.id, order=Order.UNIFORM, at=NOON, source="test")
            tasks = [
                NewTask(
                    str(number),
                    text.text,
                    draw=Draw("uniform", number / len(TEXTS), 1.0, blind=number % AUDIT == 0),
                    created_at=NOON,
                )
                for number, text in enumerate(TEXTS)
            ]
            ensure_tasks(session, self.project.id, tasks)

    def label(self, count: int) -> None:
        """Label so many more tasks that a model may learn from, and the blind ones between them; then let it work."""
        events, trainable = [], 0
        while trainable < count:
            number = self.labelled
            text = TEXTS[number]
            at = (NOON + timedelta(minutes=1 + number)).isoformat()
            spans = [(start, end, self.names.get(label, label)) for start, end, label in text.spans]
            event = labelled(number, text.text, spans, created_at=at, updated_at=at, updated_by=1)
            event["project"] |= {"label_config": self.config, "updated_at": at}
            events.append(event)
            trainable += number % AUDIT != 0
            self.labelled += 1
        store_events(self.store, events)
        self.worker._due.clear()  # as if a while had passed
        self.worker.drain()

    def change_config(self, config: str) -> None:
        """Change the labels of the project, as its settings in Label Studio do."""
        self.config, self.changes = config, self.changes + 1
        at = (NOON + timedelta(minutes=self.labelled, seconds=self.changes)).isoformat()
        about = project_object(31) | {"label_config": self.config, "updated_at": at}
        store_events(self.store, [{"action": "PROJECT_UPDATED", "project": about}])
        self.worker.drain()

    def page(self) -> str:
        """The page of the project."""
        app = create_app(self.worker.settings)
        try:
            return app.test_client().get(f"/dashboard/projects/{PROJECT}?tab=running").text
        finally:
            service_of(app).close()

    def exported(self) -> list[str]:
        """What everybody has labelled, a line for each task."""
        with self.store.read() as session:
            lines, _ = export(session, self.project, form=Format.JSONL)
            return list(lines)

    @property
    def models(self) -> list[ProjectModel]:
        with self.store.read() as session:
            return list_models(session, self.project.id)

    @property
    def serving(self) -> ProjectModel | None:
        with self.store.read() as session:
            return serving_model(session, self.project.id)

    def jobs(self, kind: Kind) -> list[tuple[str, dict[str, object]]]:
        with self.store.read() as session:
            return [(job.state, dict(job.result or {})) for job in list_jobs(session) if job.kind == kind]


@pytest.fixture
def desk(make_worker: MakeWorker) -> Desk:
    return Desk(make_worker(learn="auto", learn_from="nothing", refit_every_labels=1000))


def purposes(store: Store) -> dict[str, dict[str, str]]:
    """Read from the tables alone what each model has seen: by model, task and purpose. Shares no code with training."""
    seen: dict[str, dict[str, str]] = {}
    with store.read() as session:
        rows = session.execute(
            sa.text(
                "SELECT m.model_hash, t.external_id, m.purpose FROM training_tasks m JOIN tasks t ON t.id = m.task_id"
            )
        )
        for model, task, purpose in rows:
            seen.setdefault(model, {})[task] = purpose
    return seen


def test_a_project_learns_at_twenty_forty_and_eighty_labels(desk: Desk) -> None:
    desk.label(19)
    assert desk.models == []
    desk.label(1)
    (first,) = desk.models
    assert (first.state, first.classes, first.asked_by) == (State.SERVING, ("Drug", "Symptom"), "the schedule")
    assert first.why == "the first model that knows the project's labels"
    desk.label(20)
    assert len(desk.models) == 2
    desk.label(39)
    assert len(desk.models) == 2
    desk.label(1)
    assert len(desk.models) == 3
    assert desk.models[0].labels > 3 * first.labels


def test_no_blind_label_is_ever_learnt_from_and_what_was_learnt_never_calibrates(desk: Desk) -> None:
    desk.label(20)
    desk.label(20)
    seen = purposes(desk.store)
    assert len(seen) == 2
    blind = {str(number) for number in range(0, len(TEXTS), AUDIT)}
    for tasks in seen.values():
        assert tasks
        assert not set(tasks) & blind
        assert {task for task, purpose in tasks.items() if purpose == "choice"} == {
            task for task in tasks if is_for_choice(PROJECT, task)
        }
    with desk.store.read() as session:
        evidence = session.execute(
            sa.text(
                "SELECT o.hash, t.external_id FROM calibration_scores s JOIN tasks t ON t.id = s.task_id "
                "JOIN models o ON o.id = s.model_id JOIN calibration_cells c ON c.id = s.cell_id "
                "WHERE s.removed_at_revision IS NULL AND c.exclusion = ''"
            )
        ).all()
    assert evidence
    first = min(seen.values(), key=len)
    assert {task for _, task in evidence} & blind
    assert not {task for _, task in evidence} & set(first)


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_it_serves_at_once_and_is_scored_when_the_labels_were(desk: Desk) -> None:
    desk.label(20)
    serving = desk.serving
    assert serving is not None
    view = desk.worker.views.view(PROJECT, CONFIG)
    assert view.model_version.startswith(serving.version)
    (prediction,) = view.predictor.predict(["Bakomol caused lire in two of them ."])
    assert {span.label for span in prediction.labelings[0].spans} == {"Drug", "Symptom"}
    assert {state for state, _ in desk.jobs(Kind.RESCORE)} == {"done"}
    ((state, result),) = desk.jobs(Kind.TRAIN)
    assert (state, result["serves"], result["model"]) == ("done", True, serving.version)


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("learn", "queued"), [("auto", True), ("manual", False), ("off", False)], ids=["auto", "manual", "off"]
)
def test_the_setting_says_who_may_ask(make_worker: MakeWorker, learn: str, queued: bool) -> None:
    desk = Desk(make_worker(learn="off"))
    desk.label(20)
    settings = desk.worker.settings.model_copy(update={"learn": learn})
    with desk.store.write() as session:
        assert queue_due_training(session, desk.project, settings=settings) is queued
        assert is_pending(session, Kind.TRAIN, desk.project) is queued
        assert not queue_due_training(session, desk.project, settings=settings)  # one waits already
    desk.worker.drain()
    assert desk.models == []
    assert all(result == {"skipped": "SURESPAN_LEARN is off"} for _, result in desk.jobs(Kind.TRAIN))


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_an_empty_project_and_one_that_lost_its_labels_say_why(desk: Desk) -> None:
    with desk.store.write() as session:
        queue_train(session, desk.project, who="ann")
    desk.worker.drain()
    ((state, result),) = desk.jobs(Kind.TRAIN)
    assert state == "done"
    assert "expected confirmed labels to train on" in str(result["skipped"])
    desk.label(20)
    serving = desk.serving
    assert serving is not None
    for config in (config_of("Other"), config_of()):
        with desk.store.write() as session:
            ensure_project(session, PROJECT, label_config=config)
            queue_train(session, desk.project, who="ann")
        desk.worker.drain()
        _, result = desk.jobs(Kind.TRAIN)[0]
        assert "expected" in str(result["skipped"])
        assert desk.serving == serving
    with desk.store.write() as session:
        ensure_project(session, PROJECT, label_config=CONFIG)
        queue_train(session, desk.project, who="ann")
    desk.worker.drain()
    assert desk.jobs(Kind.TRAIN)[0][1]["labels"]


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_the_same_labels_give_the_same_model_and_it_is_kept_once(desk: Desk) -> None:
    desk.label(20)
    (only,) = desk.models
    for _ in range(2):
        with desk.store.write() as session:
            queue_train(session, desk.project, who="ann")
        desk.worker.drain()
    assert desk.models == [only]


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_new_label_of_the_config_is_known_after_the_next_training(desk: Desk) -> None:
    desk.config = config_of("Drug")
    desk.label(20)  # half of the texts have a label that the config does not know: they are left out
    (first,) = desk.models
    assert first.classes == ("Drug",)
    desk.config = CONFIG
    desk.label(20)
    newest, _ = desk.models
    assert newest.classes == ("Drug", "Symptom")
    assert newest.state is State.SERVING
    assert newest.why == f"knows 1 more of the project's labels than {first.version}"


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_label_that_is_replaced_is_kept_and_the_page_says_what_happened(desk: Desk) -> None:
    desk.label(20)
    assert "Known to the model: Drug, Symptom. When" in desk.page()
    before = desk.exported()
    assert sum("Symptom" in line for line in before) > 3

    desk.change_config(config_of("Drug", "Dose"))
    page = desk.page()
    assert (
        "Known to the model: Drug; Waiting for the next training: Dose; No longer in the label config: Symptom." in page
    )
    assert "what was labelled so is kept and exported" in page
    assert desk.exported() == before

    desk.names = {"Symptom": "Dose"}
    desk.label(20)
    newest, first = desk.models
    assert (newest.state, set(newest.classes), set(first.classes)) == (
        State.SERVING,
        {"Drug", "Dose"},
        {"Drug", "Symptom"},
    )
    assert "Known to the model: Dose, Drug; No longer in the label config: Symptom." in desk.page()
    assert desk.exported()[: len(before)] == before, "nothing is lost"
    lost = read_project(desk.store, PROJECT).left_out["has a label that the label config no longer has"]

    desk.change_config(config_of("Drug", "Dose", "Symptom"))
    again = read_project(desk.store, PROJECT)
    assert lost > 3
    assert len(again.texts) == 40, "all are learnt from once the label is back"
    assert "Waiting for the next training: Symptom. When" in desk.page()
    desk.change_config(config_of("Drug", "Dose").replace('value="Dose"', 'value="Dose" predicted_values="Symptom"'))
    assert "now called Dose" in desk.page()
    assert len(read_project(desk.store, PROJECT).texts) == 40


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_it_begins_with_a_network_of_ones_own_and_says_how_far_it_is(
    make_worker: MakeWorker, served_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(make_worker(learn="auto", learn_from=str(served_model), refit_every_labels=1000))
    app = create_app(desk.worker.settings)
    seen: list[str] = []

    def beat(session: Session, job: JobRecord, **how: Any) -> None:
        heartbeat(session, job, **how)
        if job.kind == Kind.TRAIN and how.get("note"):
            seen.append(how["note"])

    monkeypatch.setattr(worker, "heartbeat", beat)
    try:
        desk.label(20)
        answer = app.test_client().get(f"/api/v1/jobs?project={PROJECT}").json
    finally:
        service_of(app).close()
    (first,) = desk.models
    base = read_header(served_model)
    assert base is not None
    assert (first.state, first.base, first.recipe["ancestors"]) == (State.SERVING, base.hash, [base.hash])
    far = rf"{first.labels} labels: learning from all labels, F1 \d\.\d\d on held-out labels, about \d+ s left"
    assert any(re.fullmatch(far, note) for note in seen)
    (job,) = [job for job in answer["jobs"] if job["kind"] == Kind.TRAIN]
    assert (job["done"], job["total"], job["note"]) == (100, 100, seen[-1])


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_people_and_programs_can_ask_for_a_training(
    url: str, desk: Desk, served_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = Desk(desk.worker)
    quiet.worker.settings = desk.worker.settings.model_copy(update={"learn": "manual"})
    quiet.label(12)
    assert quiet.models == []
    settings = quiet.worker.settings
    app = create_app(settings)
    try:
        client = app.test_client()
        page = client.get(f"/dashboard/projects/{PROJECT}?tab=running").text
        assert "12 labels to learn from; a model is trained when somebody asks for it." in page
        assert "Train now" in page
        asked = client.post(f"/api/v1/projects/{PROJECT}/train")
        assert asked.status_code == 200
        report = client.get(f"/api/v1/projects/{PROJECT}/models").json
        assert report["serving"] is None
        assert report["learning"]["training"]["job"] == asked.json["job"]
        assert report["learning"]["training"]["state"] == "queued"
        assert "a training waits for its turn" in client.get(f"/dashboard/projects/{PROJECT}?tab=running").text
    finally:
        service_of(app).close()
    quiet.worker.drain()
    (first,) = quiet.models
    assert (first.state, first.asked_by) == (State.SERVING, "a program")

    quiet.label(20)
    monkeypatch.setenv("SURESPAN_LEARN", "manual")
    monkeypatch.setenv("SURESPAN_LEARN_FROM", "nothing")
    monkeypatch.setenv("SURESPAN_DATABASE_URL", url)
    monkeypatch.setenv("SURESPAN_MODEL", str(served_model))
    run = CliRunner().invoke(main, ["train", "--project", "31", "--serve"])
    assert run.exit_code == 0, run.output
    newest = quiet.models[0]
    assert newest.model_hash != first.model_hash
    assert f"{newest.version} learnt from {newest.labels:,} labels" in run.output
    for wrong, said in (
        (["--serve"], "--serve is used with --project ID alone"),
        (["--project", "31", "--serve", "--epochs", "3"], "--serve is used with --project ID alone"),
        (["--project", "31"], "give --out DIR"),
        (["--project", "99", "--serve"], "expected the id of a project that the database knows, got '99'"),
    ):
        refused = CliRunner().invoke(main, ["train", *wrong])
        assert refused.exit_code
        assert said in refused.output
        assert "Traceback" not in refused.output
