"""A project's own model in the loop: labels scored under it, the word none until there is evidence, the way back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from backend.calibration.promotion import add_model, promote
from backend.domain.project_model import ProjectModel
from backend.domain.records import AnnotationRecord, Draw, ProjectRecord, TextSpan
from backend.errors import ModelUnavailable
from backend.jobs.kinds import Kind
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.settings import Settings
from backend.store import Store
from backend.store.handover import active_models, handover_target
from backend.store.jobs import list_jobs
from backend.store.labels import record_annotation
from backend.store.project_models import store_file
from backend.store.projects import ensure_project, ensure_task
from backend.store.tables import CalibrationCell, CalibrationScore, ModelFile
from backend.tagger.readers import read_labelled
from backend.worker.worker import Worker
from tests.support.own_models import config_of, learn_own
from tests.support.paths import SAMPLE
from tests.support.toy_texts import toy_texts

UID = "7.1"
NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
CONFIG = config_of("Drug", "Symptom")
MIXED = config_of("Drug", "Symptom", "PER")


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    with Store(settings.database_url) as opened:
        yield opened


def label(store: Store, begin: int, end: int, config: str = CONFIG) -> tuple[ProjectRecord, list[int]]:
    """Confirm labels of the toy language, drawn blind; return the project and the tasks."""
    tasks = []
    with store.write() as session:
        project = ensure_project(session, UID, label_config=config)
        for i, text in enumerate(toy_texts(end, seed=5)[begin:end], begin):
            draw = Draw("file", (i % 100) / 100, 1.0, blind=True)
            task = ensure_task(session, project.id, external_id=f"L{i}", text=f"{text.text} {i}", draw=draw)
            made = AnnotationRecord(i + 1, NOON + timedelta(seconds=i), tuple(TextSpan(*span) for span in text.spans))
            record_annotation(session, task.id, made)
            tasks.append(task.id)
    return project, tasks


def worker_of(store: Store, settings: Settings, **changes: Any) -> Worker:
    chosen = settings.model_copy(update={"sync_every_minutes": 0.0, "evidence": "all"} | changes)
    loader = ModelLoader(chosen)
    loader.start()
    return Worker(chosen, store, loader=loader, views=Views(chosen, store, loader, poll=0.0))


def add(store: Store, settings: Settings, project: ProjectRecord, out: Path, tasks: list[int], *, seed: int) -> str:
    learn_own(out, seed=seed)
    with store.write() as session:
        made = add_model(
            session,
            project,
            out,
            settings=settings,
            base="nothing",
            labels=len(tasks),
            trained_on={"training": tasks},
            asked_by="ann",
        )
    return made.model_hash


def serve(store: Store, settings: Settings, project: ProjectRecord, digest: str) -> ProjectModel:
    with store.write() as session:
        return promote(session, project, digest, settings=settings, who="ann", why="next")


def guarantee(worker: Worker, config: str = CONFIG) -> tuple[str, str]:
    """Return the model and the word of a set that is made now."""
    view = worker.views.view(UID, config)
    prediction = view.predictor.predict(["Bakomol caused lire in two of them ."])[0]
    return view.model.version, prediction.as_dict()["guarantee"]


def exclusions(store: Store, name: str) -> dict[str, int]:
    """Return how many tasks have live rows under a model, by what keeps them from calibrating it."""
    with store.read() as session:
        rows = session.execute(
            sa.select(CalibrationCell.exclusion, sa.func.count(CalibrationScore.task_id.distinct()))
            .join(CalibrationScore, CalibrationScore.cell_id == CalibrationCell.id)
            .where(CalibrationScore.removed_at_revision.is_(None))
            .where(sa.text("calibration_scores.model_id IN (SELECT id FROM models WHERE name = :name)"))
            .group_by(CalibrationCell.exclusion),
            {"name": name},
        )
        return {exclusion or "": count for exclusion, count in rows}


def test_the_word_is_none_until_labels_that_it_did_not_learn_from_are_there(
    settings: Settings, store: Store, tmp_path: Path
) -> None:
    project, tasks = label(store, 0, 30)
    worker = worker_of(store, settings)
    worker.drain()
    assert guarantee(worker)[0].startswith("blank@")
    first = add(store, settings, project, tmp_path / "first", tasks, seed=1)
    serve(store, settings, project, first)
    assert guarantee(worker) == (f"own@{first[:8]}", "none")  # before anything was scored
    made = worker.views.view(UID, CONFIG).predictor.predict(["Bakomol caused lire in two of them ."])[0].as_dict()
    predicted = {(span["start"], span["end"]) for span in made["labelings"][0]["spans"]}
    flagged = {(span["start"], span["end"]) for span in made["spans"] if span["flagged"]}
    assert len(predicted) == 2
    assert predicted <= flagged  # nothing may be left alone while nothing is known of its errors
    worker.drain()
    with store.read() as session:
        states = {job.kind: (job.state, job.error) for job in list_jobs(session)}
        assert handover_target(session, project.id) is None
    assert states[Kind.RESCORE] == ("done", None)
    assert exclusions(store, "own") == {"trained": 30}  # what it learnt from is no evidence
    assert guarantee(worker) == (f"own@{first[:8]}", "none")

    label(store, 30, 90)
    worker.drain()
    worker._due.clear()  # the next look at labels, without waiting five minutes for it
    worker.drain()
    assert exclusions(store, "own") == {"trained": 30, "": 60}
    assert guarantee(worker) == (f"own@{first[:8]}", "own")

    later = add(store, settings, project, tmp_path / "later", tasks, seed=2)
    serve(store, settings, project, later)
    # The first one has thresholds: it goes on, promise and all, until the later one has some.
    assert guarantee(worker) == (f"own@{first[:8]}", "own")
    worker.drain()
    assert guarantee(worker) == (f"own@{later[:8]}", "own")
    with store.read() as session:
        before = {each.model.hash: each.version_id for each in active_models(session, project.id)}
    serve(store, settings, project, first)
    assert guarantee(worker) == (f"own@{first[:8]}", "own")  # back at once, with the thresholds it had
    assert worker.views.model_version(UID, CONFIG).endswith(f"+cal.{before[first]}")
    worker.drain()
    assert guarantee(worker) == (f"own@{first[:8]}", "own")
    worker.loader.close()


def test_a_model_with_thresholds_goes_on_until_the_labels_are_scored_and_is_not_gone_back_to(
    settings: Settings, store: Store, tmp_path: Path
) -> None:
    with store.write() as session:
        project = ensure_project(session, UID, label_config=MIXED)
        tasks = []
        for i, text in enumerate(read_labelled(SAMPLE).texts[:40]):
            task = ensure_task(
                session, project.id, external_id=f"P{i}", text=text.text, draw=Draw("file", i / 40, 1.0, blind=True)
            )
            spans = tuple(TextSpan(*span) for span in text.spans if span.label == "PER")
            record_annotation(session, task.id, AnnotationRecord(i + 1, NOON + timedelta(seconds=i), spans))
            tasks.append(task.id)
    worker = worker_of(store, settings)
    worker.drain()
    base, word = guarantee(worker, MIXED)
    assert base.startswith("tiny@")
    assert word == "own"
    first = add(store, settings, project, tmp_path / "first", tasks, seed=1)
    serve(store, settings, project, first)
    assert guarantee(worker, MIXED) == (base, "own")
    worker.drain()
    assert guarantee(worker, MIXED) == (f"own@{first[:8]}", "none")  # it has learnt from all labels there are
    later = add(store, settings, project, tmp_path / "later", tasks, seed=2)
    serve(store, settings, project, later)
    # Nothing is promised that would be lost: neither does the first one go on, nor does the settings' model come back.
    assert guarantee(worker, MIXED) == (f"own@{later[:8]}", "none")
    worker.drain()
    assert guarantee(worker, MIXED) == (f"own@{later[:8]}", "none")
    worker.loader.close()


def test_no_label_is_scored_under_anything_else_while_a_model_cannot_be_loaded(
    settings: Settings, store: Store, tmp_path: Path
) -> None:
    project, tasks = label(store, 0, 10, MIXED)
    worker = worker_of(store, settings, model_wait=5.0)
    first = add(store, settings, project, tmp_path / "first", tasks, seed=1)
    serve(store, settings, project, first)
    with store.write() as session:
        store_file(session, first, b"no model at all")
    assert guarantee(worker, MIXED)[0].startswith("tiny@")
    with pytest.raises(ModelUnavailable):
        worker.context().model_of(project)
    assert exclusions(store, "tiny") == {}
    worker.loader.close()


def test_a_model_promoted_while_another_waits_to_be_scored_is_the_one_that_is_scored(
    settings: Settings, store: Store, tmp_path: Path
) -> None:
    project, tasks = label(store, 0, 12)
    worker = worker_of(store, settings)
    hashes = [add(store, settings, project, tmp_path / str(seed), tasks[:5], seed=seed) for seed in (1, 2)]
    for digest in hashes:
        serve(store, settings, project, digest)
    with store.read() as session:
        (job,) = [job for job in list_jobs(session) if job.kind == Kind.RESCORE]
    assert job.payload == {"model": hashes[1]}
    worker.drain()
    with store.read() as session:
        assert [each.model.hash for each in active_models(session, project.id)] == [hashes[1]]
        assert handover_target(session, project.id) is None
    worker.loader.close()


def test_housekeeping_removes_files_that_nothing_names(settings: Settings, store: Store, tmp_path: Path) -> None:
    project, tasks = label(store, 0, 3)
    worker = worker_of(store, settings)
    hashes = [add(store, settings, project, tmp_path / str(seed), tasks, seed=seed) for seed in range(1, 6)]
    for digest in hashes:
        serve(store, settings, project, digest)
    with store.write() as session:
        session.execute(sa.update(ModelFile).values(stored_at=NOON - timedelta(days=300)))
    worker.step_jobs()
    with store.read() as session:
        kept = set(session.execute(sa.select(ModelFile.model_hash)).scalars())
    assert kept == set(hashes[1:])  # the serving one and the three before it
    worker.loader.close()
