"""Labels that are odd and disks that are full: the job says what happened, and the model that served goes on."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from backend.domain.project_model import ProjectModel
from backend.jobs.kinds import Kind, queue_train
from backend.models.stored import StoredModels
from backend.store.batches import NewTask, ensure_tasks
from backend.store.events import store_events
from backend.store.jobs import MAX_TRIES, list_jobs
from backend.tagger.loading import load_tagger
from tests.backend.learning.test_training import NOON, Desk
from tests.support.own_models import config_of
from tests.support.paths import ROOT
from tests.support.workers import MakeWorker, labelled

pytestmark = [pytest.mark.heavy, pytest.mark.parametrize("kind", ["sqlite"], indirect=True)]

DRUG, SYMPTOM = (5, 12, "Drug"), (5, 12, "Symptom")
TEXT = "Take bakomol now ."
LONG = "mol " * 10_000


@pytest.fixture
def desk(make_worker: MakeWorker) -> Desk:
    config = config_of("Drug", "Symptom", "Dose")
    return Desk(make_worker(learn="manual", learn_from="nothing", refit_every_labels=1000), config=config)


def train(desk: Desk) -> dict[str, object]:
    """Ask for a training and return what became of it."""
    with desk.store.write() as session:
        queue_train(session, desk.project, who="ann")
    desk.worker.drain()
    _, result = desk.jobs(Kind.TRAIN)[0]
    return result


def deliver(desk: Desk, *labels: tuple[str, list[tuple[int, int, str]]]) -> None:
    """Import texts as tasks, and deliver a label of each."""
    events, tasks = [], []
    for number, (text, spans) in enumerate(labels, start=1_000):
        at = (NOON + timedelta(hours=2, minutes=number)).isoformat()
        event = labelled(number, text, spans, created_at=at, updated_at=at, updated_by=1)
        event["project"] |= {"label_config": desk.config, "updated_at": at}
        events.append(event)
        tasks.append(NewTask(str(number), text, created_at=NOON))
    with desk.store.write() as session:
        ensure_tasks(session, desk.project.id, tasks)
    store_events(desk.store, events)
    look(desk)


def loads(desk: Desk, place: Path) -> ProjectModel:
    """Return the serving model, which loads."""
    serving = desk.serving
    assert serving is not None
    assert load_tagger(StoredModels(desk.store, place).fetch(serving.model_hash)).hash == serving.model_hash
    return serving


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([(TEXT, [DRUG])], ("Drug",)),
        ([(TEXT, [DRUG]), (TEXT, [SYMPTOM]), (TEXT, [])], ("Drug", "Symptom")),
        ([(TEXT, [DRUG]), (TEXT, [DRUG, (0, 12, "Symptom")])], ("Drug", "Symptom")),
        ([(LONG, [(4 * i, 4 * i + 3, "Drug") for i in range(10_000)])], ("Drug",)),
    ],
    ids=["one class, one example", "contradictory duplicates", "overlap", "10,000 labels in a task"],
)
def test_a_project_of_odd_labels_has_a_model_that_loads(
    desk: Desk, tmp_path: Path, labels: list[tuple[str, list[tuple[int, int, str]]]], classes: tuple[str, ...]
) -> None:
    deliver(desk, *labels)
    result = train(desk)
    serving = loads(desk, tmp_path)
    assert (serving.version, serving.classes) == (result["model"], classes)


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([(TEXT, [])], "expected at least one labelled entity, got none"),
        ([(TEXT, [(5, 12, "Dosis")])], "expected confirmed labels to train on"),
    ],
    ids=["no entity", "a label that the config does not have"],
)
def test_labels_that_teach_nothing_leave_the_tasks_blank_and_the_page_says_why(
    desk: Desk, labels: list[tuple[str, list[tuple[int, int, str]]]], reason: str
) -> None:
    deliver(desk, *labels)
    assert reason in str(train(desk)["skipped"])
    assert desk.serving is None
    assert "nothing was trained the last time: expected" in desk.page()


def test_odd_labels_beside_usable_ones_leave_a_model_that_loads(desk: Desk, tmp_path: Path) -> None:
    desk.label(20)
    train(desk)
    before = loads(desk, tmp_path / "before")
    assert before.classes == ("Drug", "Symptom")
    overlap, nothing, one_dose = [DRUG, (0, 12, "Symptom")], [(7, 7, "Drug")], [(13, 16, "Dose")]
    deliver(desk, (TEXT, [DRUG]), (TEXT, [SYMPTOM]), (TEXT, overlap), (TEXT, nothing), (TEXT, one_dose))
    result = train(desk)
    after = loads(desk, tmp_path / "after")
    assert (after.version, set(after.classes)) == (result["model"], {"Drug", "Symptom", "Dose"})
    assert after.why == f"knows 1 more of the project's labels than {before.version}"


def test_a_disk_that_is_full_while_a_model_is_saved_leaves_the_one_that_serves(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file may grow beyond a few kilobytes in the process that trains: the texts fit, the model does not."""
    desk.label(20)
    train(desk)
    before = loads(desk, tmp_path / "before")
    desk.label(20)
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    )
    desk.worker.settings = desk.worker.settings.model_copy(update={"learn": "auto"})
    with monkeypatch.context() as full:
        full.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
        look(desk)
        ((state, attempts, error),) = failures(desk)
        assert (state, attempts) == ("queued", 1)
        assert "expected a trained model, got" in error
        assert "a training failed and is tried again: TrainingFailed: expected a trained model, got" in desk.page()
        # It begins again each time, so however far it comes, it is given up in the end; until more labels come.
        for expected in (("queued", MAX_TRIES - 1), ("failed", MAX_TRIES)):
            with desk.store.write() as session:
                again = "UPDATE jobs SET run_after = '2026-01-01 00:00:00', attempts = :tries WHERE state = 'queued'"
                session.execute(sa.text(again), {"tries": expected[1] - 1})
            look(desk)
            ((state, attempts, _),) = failures(desk)
            assert (state, attempts) == expected
        look(desk)
    assert len(failures(desk)) == 1
    assert "the last training failed, and the model before it serves" in desk.page()
    assert loads(desk, tmp_path / "meanwhile") == before
    assert desk.models == [before]


def look(desk: Desk) -> None:
    """Let the worker look at what is due, as if a while had passed."""
    desk.worker._due.clear()
    desk.worker.drain()


def failures(desk: Desk) -> list[tuple[str, int, str]]:
    """Return the jobs that were tried in vain: state, how often, and what they say, the newest first."""
    with desk.store.read() as session:
        jobs = [job for job in list_jobs(session) if job.kind == Kind.TRAIN and job.error]
    return [(job.state, job.attempts, str(job.error)) for job in jobs]
