"""A training asked for on the command line: the worker's job, done in this process at once."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from backend.domain.records import JobRecord
from backend.errors import BackendError, NotFound
from backend.jobs.context import WorkContext
from backend.jobs.kinds import Kind, job_key
from backend.learning.training import run_train
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.settings import Settings
from backend.store import Store
from backend.store.jobs import fail_job, finish_job, heartbeat, take_job
from backend.store.projects import find_project

_LEASE = timedelta(minutes=2)


class TrainingRuns(BackendError):
    """Another process trains a model for the project."""


def train_now(store: Store, key: str, *, settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Train a model for the project of this id or uid, and let it serve if it is better.

    Raises:
        NotFound: when there is no such project.
        TrainingRuns: when another process is at it.
    """
    with store.read() as session:
        project = find_project(session, key)
    if project is None:
        raise NotFound(f"expected the id of a project that the database knows, got {key!r}")
    holder = f"command:{socket.gethostname()}:{os.getpid()}"
    job = store.run(
        lambda session: take_job(
            session,
            Kind.TRAIN.value,
            key=job_key(Kind.TRAIN, project),
            holder=holder,
            project_id=project.id,
            lease=_LEASE,
        )
    )
    if job is None:
        raise TrainingRuns(f"expected no training of project {project.uid} to run, got one: wait for its end")
    loader = ModelLoader(settings)
    loader.start()
    try:
        result = run_train(_context(store, job, settings, loader, say), job)
    except BaseException as error:
        failed = error
        store.run(lambda session: fail_job(session, job, failed))
        raise
    finally:
        loader.close()
    store.run(lambda session: finish_job(session, job, result=result))
    return result


def _context(
    store: Store, job: JobRecord, settings: Settings, loader: ModelLoader, say: Callable[[str], None]
) -> WorkContext:
    said = ""

    def beat(done: int | None = None, total: int | None = None, note: str | None = None) -> None:
        nonlocal said

        def renew(session: Session) -> None:
            heartbeat(session, job, lease=_LEASE, done=done, total=total, note=note)

        store.run(renew)
        if note and note != said:
            said = note
            say(note)

    return WorkContext(
        settings=settings,
        store=store,
        loader=loader,
        views=Views(settings, store, loader),
        label_studio=lambda: None,
        heartbeat=beat,
        log=logging.getLogger(__name__),
    )
