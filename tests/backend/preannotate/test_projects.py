"""The lease that a run of `surespan preannotate --project` holds; what it does on a server is in tests/e2e."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from backend.domain.records import JobRecord, ProjectRecord
from backend.errors import LabelStudioError, LeaseLost
from backend.preannotate import projects
from backend.store import Store, open_store
from backend.store.jobs import finish_job, heartbeat, list_jobs, release_jobs, take_job
from backend.store.projects import ensure_project

KEY = "publish:7.1"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path / 'surespan.db'}") as made:
        yield made


@pytest.fixture
def project(store: Store) -> ProjectRecord:
    return store.run(lambda session: ensure_project(session, "7.1"))


def take(store: Store, holder: str) -> JobRecord:
    job = store.run(lambda session: take_job(session, "publish", key=KEY, holder=holder, lease=timedelta(minutes=5)))
    assert job is not None
    return job


def said_nothing(text: str) -> None:
    raise AssertionError(text)


def test_it_waits_for_a_worker_and_shows_how_far_that_is(store: Store, project: ProjectRecord) -> None:
    other = take(store, "worker:there:1")
    store.run(lambda session: heartbeat(session, other, done=30, total=50))
    said: list[str] = []
    told: list[tuple[str, int, int | None]] = []
    shown = threading.Event()

    def progress(stage: str, done: int, total: int | None) -> None:
        told.append((stage, done, total))
        if not shown.is_set():
            store.run(lambda session: finish_job(session, other))
            shown.set()

    with projects._held(store, project, progress=progress, say=said.append) as beat:
        beat(done=1, total=2)
    assert said == ["Another process (worker:there:1) is publishing this project: waiting for it."]
    assert told == [("the other process", 30, 50)]
    with store.read() as session:
        assert [(job.state, job.progress_done) for job in list_jobs(session)] == [("done", 1), ("done", 30)]


def test_a_run_that_was_killed_here_is_not_waited_for(store: Store, project: ProjectRecord) -> None:
    child = multiprocessing.get_context("spawn").Process(target=os.getpid)
    child.start()
    child.join()
    take(store, f"preannotate:{socket.gethostname()}:{child.pid}")
    with projects._held(store, project, progress=lambda *_: None, say=said_nothing) as beat:
        beat()


@pytest.mark.parametrize(
    "holder",
    [f"preannotate:{socket.gethostname()}:{os.getpid()}", "preannotate:elsewhere:1", "worker:x:1", "odd"],
    ids=["this", "elsewhere", "worker", "odd"],
)
def test_others_may_be_alive(holder: str) -> None:
    assert not projects._is_dead(holder)


def test_trouble_ends_the_job_with_its_reason(store: Store, project: ProjectRecord) -> None:
    with (
        pytest.raises(LabelStudioError),
        projects._held(store, project, progress=lambda *_: None, say=said_nothing),
    ):
        raise LabelStudioError("the server is away", status=None, asked="GET /")
    with (
        pytest.raises(KeyboardInterrupt),
        projects._held(store, project, progress=lambda *_: None, say=said_nothing),
    ):
        raise KeyboardInterrupt
    with store.read() as session:
        assert [(job.state, job.error) for job in list_jobs(session)] == [
            ("failed", "Stopped: KeyboardInterrupt"),
            ("failed", "LabelStudioError: the server is away"),
        ]


def test_who_lost_the_lease_stops(store: Store, project: ProjectRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projects, "BEAT", 0.01)

    def steal(session: Session) -> None:
        release_jobs(session, holder=f"preannotate:{socket.gethostname()}:{os.getpid()}")
        assert take_job(session, "publish", key=KEY, holder="worker:there:1") is not None

    def work(beat: projects._Beat) -> None:
        store.run(steal)
        beat._thread.join()  # it notices by itself
        beat()

    with (
        pytest.raises(LeaseLost),
        projects._held(store, project, progress=lambda *_: None, say=said_nothing) as beat,
    ):
        work(beat)
