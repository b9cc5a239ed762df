"""A new model: the earlier one serves until the labels were scored under the new one, then that does, unasked."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import torch

from backend.app import create_app, service_of
from backend.calibration.model_change import queue_rescores
from backend.calibration.refit import refit
from backend.calibration.score_labels import score_unscored
from backend.domain.records import AnnotationRecord, Draw, JobRecord, TextSpan, VersionRecord
from backend.jobs.kinds import Kind
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.serving.presenting import Present
from backend.serving.service import Service
from backend.settings import Settings
from backend.store import Store
from backend.store.calibration import withdraw_scores
from backend.store.handover import handover_target
from backend.store.jobs import list_jobs
from backend.store.labels import record_annotation
from backend.store.projects import ensure_model, ensure_project, ensure_task, find_project, find_task, lookup_model
from backend.store.served import served_before
from backend.store.tables import CalibrationCell, CalibrationScore, Job, Task
from backend.store.training import record_training_tasks
from backend.tagger.identity import origin_of
from backend.tagger.loading import load_tagger
from backend.tagger.model import load_model, save_model
from backend.tagger.readers import read_labelled
from backend.worker.worker import Stopping, Worker
from tests.support import payload_shapes as shapes
from tests.support.paths import SAMPLE
from tests.support.waiting import wait_for

LABELS = 40
NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)


@pytest.fixture(scope="session")
def other_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model with other weights, under another name."""
    network, info, seen = load_model(tiny_model)
    with torch.no_grad():
        for weights in network.parameters():
            weights.mul_(0.9)
    out = tmp_path_factory.mktemp("other") / "model"
    save_model(network, out, info=replace(info, name="other"), seen=seen)
    return out


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    with Store(settings.database_url) as opened:
        yield opened


def label_tasks(store: Store) -> list[int]:
    """Confirm labels of the sample, drawn blind from a file's stream; returns the tasks."""
    numbers = []
    with store.write() as session:
        project = ensure_project(session, shapes.PROJECT, label_config=shapes.CONFIG)
        for i, text in enumerate(read_labelled(SAMPLE).texts[:LABELS]):
            draw = Draw("file", i / LABELS, 1.0, blind=True)
            task = ensure_task(session, project.id, external_id=f"L{i}", text=text.text, draw=draw)
            names = {"PER": "Person"}
            spans = tuple(TextSpan(start, end, names.get(label, label)) for start, end, label in text.spans)
            record_annotation(session, task.id, AnnotationRecord(i + 1, NOON + timedelta(seconds=i), spans))
            numbers.append(task.id)
    return numbers


def worker_of(store: Store, settings: Settings, **changes: Any) -> Worker:
    chosen = settings.model_copy(update={"sync_every_minutes": 0.0, "evidence": "all"} | changes)
    loader = ModelLoader(chosen)
    loader.start()
    return Worker(chosen, store, loader=loader, views=Views(chosen, store, loader, poll=0.0))


def fit_first(store: Store, settings: Settings) -> VersionRecord:
    """Score the labels and fit thresholds under the first model, as its worker does."""
    worker = worker_of(store, settings)
    context = worker.context()
    with store.read() as session:
        project = find_project(session, shapes.PROJECT)
    assert project is not None
    model, tagger = context.model_of(project)
    assert score_unscored(store, project, model=model, tagger=tagger).scored == LABELS
    made = refit(store, project, model=model, alpha="0.1", n_min=20)
    worker.loader.close()
    return made.version


def rows_under(store: Store, model_hash: str) -> dict[int, str]:
    """Return the exclusion of each live row, by task, under a model."""
    with store.read() as session:
        model = session.execute(sa.text("SELECT id FROM models WHERE hash = :hash"), {"hash": model_hash}).scalar_one()
        rows = session.execute(
            sa.select(CalibrationScore.task_id, CalibrationCell.exclusion)
            .join(CalibrationCell, CalibrationCell.id == CalibrationScore.cell_id)
            .where(CalibrationScore.model_id == model, CalibrationScore.removed_at_revision.is_(None))
        )
        return {row.task_id: row.exclusion for row in rows}


def serve(settings: Settings, model: Path) -> Service:
    app = create_app(settings.model_copy(update={"model": str(model)}), present=Present())
    service = service_of(app)
    service.views.polled.every = 0.0
    service.app = app  # type: ignore[attr-defined]
    return service


def predict(service: Service, number: int) -> str:
    """Predict a task and return the version that its entry and its record name; they must agree."""
    client = service.app.test_client()  # type: ignore[attr-defined]
    text = f"{shapes.TEXTS[0]} {number}"
    answer = client.post("/predict", json=shapes.predict([shapes.task(number, text)]), buffered=True)
    assert answer.status_code == 200, answer.json
    name = str(answer.json["results"][0][-1]["model_version"])
    with service.reads.read() as session:
        project = find_project(session, shapes.PROJECT)
        assert project is not None
        task = find_task(session, project.id, external_id=str(number))
        assert task is not None
        served = served_before(session, task.id, at=datetime.now(UTC) + timedelta(hours=1))
        assert served is not None
        model = session.execute(sa.text("SELECT name, hash FROM models WHERE id = :id"), {"id": served.model_id}).one()
    assert name == f"{model.name}@{model.hash[:8]}+cal.{served.version_id or 0}"
    setup = client.post("/setup", json=shapes.setup()).json["model_version"]
    assert setup == name
    return name


def jobs_of(store: Store) -> list[JobRecord]:
    with store.read() as session:
        return [job for job in list_jobs(session) if job.kind == Kind.RESCORE]


def test_hand_over(
    settings: Settings,
    store: Store,
    other_model: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = label_tasks(store)
    first = fit_first(store, settings)
    base = load_tagger(other_model).hash
    with store.write() as session:
        # Two of the labels went into the new model; the text of another is gone.
        record_training_tasks(session, base, tasks[:2], purpose="training")
        session.execute(sa.update(Task).where(Task.id == tasks[2]).values(text=None))
    caplog.set_level(logging.INFO)
    service = serve(settings, other_model)
    try:
        assert predict(service, 1).startswith("tiny@")
        assert predict(service, 2).endswith(f"+cal.{first.id}")
        said = [record for record in caplog.records if "that one serves until" in record.message]
        assert len(said) == 1
        (job,) = wait_for(lambda: jobs_of(store), "the service's start queues the job, once")
        assert job.state == "queued"
        messages = [record.message for record in caplog.records]
        loaded = [r.model for r in caplog.records if r.message == "model loaded"]  # type: ignore[attr-defined]
        assert any(name.startswith("tiny@") for name in loaded)
        assert messages.index("model loaded") < messages.index("version serves")

        worker = worker_of(store, settings, model=str(other_model))
        assert queue_rescores(store, worker.views)  # asked again: still the same job
        assert len(jobs_of(store)) == 1
        too_early(store, worker)
        assert queue_rescores(store, worker.views)
        assert predict(service, 3).startswith("tiny@")  # a few rows under the new model do not make it ready
        broken_off(store, worker, monkeypatch)
        assert predict(service, 4).startswith("tiny@")
        while worker.step_jobs():
            pass
        (done,) = jobs_of(store)
        assert done.state == "done", done.error
        assert done.result is not None
        # The three that were scored by `too_early` and the pages before the break are not scored again.
        assert done.result["without_text"] == 1
        with store.read() as session:
            project = find_project(session, shapes.PROJECT)
            assert project is not None
            assert handover_target(session, project.id) is None
        name = predict(service, 5)
        assert name.startswith("other@")
        assert name.endswith(f"+cal.{done.result['threshold_version']}")
        model = service.views.model_of(project)
        exclusions = rows_under(store, model.hash)
        assert set(exclusions) == set(tasks) - {tasks[2]}
        assert {task for task, reason in exclusions.items() if reason == "trained"} == set(tasks[:2])
        assert "trained" not in rows_under(store, _hash_of(store, "tiny")).values()
        assert any("without their text cannot be scored" in record.message for record in caplog.records)
        assert queue_rescores(store, worker.views) == set()
        worker.loader.close()
    finally:
        service.close()


def _hash_of(store: Store, name: str) -> str:
    with store.read() as session:
        found = session.execute(sa.text("SELECT hash FROM models WHERE name = :name"), {"name": name}).one()
    return str(found.hash)


def too_early(store: Store, worker: Worker) -> None:
    """Score three labels under the new model and fit on them, as if annotators had just confirmed these."""
    with store.read() as session:
        project = find_project(session, shapes.PROJECT)
        assert project is not None
        some = session.execute(sa.select(Task.id).where(Task.external_id.in_(["L5", "L6", "L7"]))).scalars().all()
    model, tagger = worker.context().model_of(project)
    assert score_unscored(store, project, model=model, tagger=tagger, task_ids=list(some)).scored == 3
    refit(store, project, model=model, alpha="0.1", n_min=20)


def broken_off(store: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the job run until it has scored two pages, and stop the worker then."""
    monkeypatch.setattr("backend.calibration.score_labels._PAGE", 5)
    looked = []
    real = worker.context

    def stopping(job: JobRecord | None = None) -> Any:
        context = real(job)

        def beat(done: int | None = None, total: int | None = None, note: str | None = None) -> None:
            looked.append(done)
            if len(looked) > 3:
                raise Stopping("enough")
            context.heartbeat(done, total, note)

        return replace(context, heartbeat=beat)

    monkeypatch.setattr(worker, "context", stopping)
    assert worker.step_jobs()
    (job,) = jobs_of(store)
    assert (job.state, job.progress_done) == ("queued", 10)
    monkeypatch.setattr(worker, "context", real)
    with store.write() as session:
        session.execute(sa.update(Job).where(Job.kind == Kind.RESCORE).values(run_after=NOON))


def test_a_model_that_is_gone_is_said_and_the_new_one_serves(
    settings: Settings,
    store: Store,
    other_model: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    moved = tmp_path / "first"
    shutil.copytree(settings.model or "", moved)
    first = settings.model_copy(update={"model": str(moved)})
    label_tasks(store)
    fit_first(store, first)
    with store.read() as session:
        row = session.execute(sa.text("SELECT name, hash FROM models")).one()
        kept = lookup_model(session, row.name, row.hash)
    assert kept is not None
    origin = origin_of(kept.details)
    assert origin is not None
    assert origin.source == str(moved)
    shutil.rmtree(moved)
    service = serve(settings, other_model)
    try:
        name = predict(service, 1)
        assert name.startswith("other@")
        assert name.endswith("+cal.0")
        assert sum("cannot be loaded any more" in record.message for record in caplog.records) == 1
    finally:
        service.close()
    # A model kept by an earlier release does not say where it came from.
    with store.write() as session:
        session.execute(sa.text("UPDATE models SET details = '{}'"))
    service = serve(settings, other_model)
    try:
        assert predict(service, 2).startswith("other@")
        assert sum("not known where that came from" in record.message for record in caplog.records) == 1
    finally:
        service.close()


def test_another_model_in_the_same_place_is_not_taken_for_the_old_one(
    settings: Settings,
    other_model: Path,
) -> None:
    loader = ModelLoader(settings, name=str(other_model), wanted="ab" * 32)
    loader.start()
    loader.close()
    assert loader.state == "failed"


def test_a_project_that_collects_its_first_rows_is_left_alone(
    settings: Settings,
    store: Store,
) -> None:
    worker = worker_of(store, settings)
    assert queue_rescores(store, worker.views) == set()  # no project at all
    label_tasks(store)
    with store.read() as session:
        project = find_project(session, shapes.PROJECT)
    assert project is not None
    model, tagger = worker.context().model_of(project)
    score_unscored(store, project, model=model, tagger=tagger, task_ids=[1])
    assert queue_rescores(store, worker.views) == set()  # its other labels are for the catch-up
    with store.write() as session:
        withdraw_scores(session, project.id, task_id=1)
        session.execute(sa.delete(CalibrationScore))
    assert queue_rescores(store, worker.views) == {project.id}  # labels and no rows: scored in the background
    while worker.step_jobs():
        pass
    assert len(rows_under(store, model.hash)) == LABELS
    assert queue_rescores(store, worker.views) == set()
    with store.write() as session:
        again = ensure_model(session, model.name, model.hash, classes=model.classes, details={"source": "elsewhere"})
    assert again.details["source"] == "elsewhere"
    assert again.details["hash"] == tagger.base_hash
    worker.loader.close()
