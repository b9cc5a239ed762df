"""All unlabelled tasks of a project of Label Studio: the job `publish`, run here and now, with helpers that tag ahead.

Everything that touches the server and the record is the job's own code: draws and blindness, what counts as served,
what may be removed. The job's lease is held meanwhile, so the service's worker never does the same at the same time.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

from sqlalchemy.orm import Session

from backend.calibration.order import record_sampling
from backend.connection.connect import know_project
from backend.domain.records import JobRecord, ProjectRecord
from backend.errors import BackendError, LeaseLost, NotFound, StoreError
from backend.jobs.context import WorkContext
from backend.jobs.kinds import Kind, job_key
from backend.labelstudio.client import Json, LabelStudio
from backend.models.loading import ModelLoader
from backend.models.own import stored_hash
from backend.models.packing import pack
from backend.models.stored import StoredModels
from backend.models.views import Views
from backend.preannotate.engine import Engine, Group
from backend.preannotate.recipe import Item, recipe_of
from backend.publish import Bulk, Published, publish_project
from backend.publish.fresh import FreshPredictions, Ready, Unknown
from backend.settings import Settings
from backend.store import Store
from backend.store.jobs import fail_job, finish_job, heartbeat, release_jobs, running_job, take_job
from backend.store.republish import count_blind
from backend.tagger.identity import Origin

_log = logging.getLogger(__name__)

LEASE = timedelta(minutes=2)
LOADING = 1800.0  # seconds
BEAT = 20.0  # seconds between two renewals of the lease
MOST_VERSIONS = 3  # runs, when a new version appears during each
_NAME = "preannotate"

Progress = Callable[[str, int, int | None], None]
Page = list[Json]


@dataclass
class ProjectReport:
    """What was done, and what is left. `blank` tasks are drawn for the blind audit."""

    project: str
    version: str
    tasks: int
    predicted: int
    from_lists: int
    removed: int
    refused: int
    lacking: list[int]
    at_work: int
    blank: int
    seconds: dict[str, float]
    agrees: bool


class Stopped(BackendError):
    """The command was told to stop."""


def preannotate_project(
    settings: Settings,
    store: Store,
    client: LabelStudio,
    number: int,
    *,
    engine: Engine,
    batch: int,
    progress: Progress,
    say: Callable[[str], None],
) -> ProjectReport:
    """Give every unlabelled task of a project its predictions; goes on where an earlier run was ended.

    Raises:
        LabelStudioError: when the server cannot be asked or refuses; the same command goes on from there.
        InvalidLabelConfig: when the label config has no place for any class of the model.
    """
    project = _known(store, client.project(number))
    loader = ModelLoader(settings)
    loader.start()
    loader.tagger(LOADING)  # nobody waits for an answer: a large model, or a busy machine, may take its time
    begun = time.monotonic()
    with _held(store, project, progress=progress, say=say) as beat:
        context = WorkContext(
            settings=settings,
            store=store,
            loader=loader,
            views=Views(settings, store, loader),
            label_studio=lambda: client,
            heartbeat=beat,
            log=_log,
        )
        bulk = Bulk(ahead=_Ahead(settings, engine, context.views.models.stored), page=batch, progress=progress)
        published = _publish(context, client, project, bulk)
        for _ in range(MOST_VERSIONS - 1):
            if _version_now(context, project, client) == published.version:
                break
            say("The thresholds have changed meanwhile: once more with the new version.")
            published = _publish(context, client, project, bulk)
        with store.read() as session:
            blank = count_blind(session, project.id)
    seconds = published.seconds | {"all": round(time.monotonic() - begun, 2)}
    return _report(published, blank, seconds)


def _publish(context: WorkContext, client: LabelStudio, project: ProjectRecord, bulk: Bulk) -> Published:
    published = publish_project(context, client, project, bulk=bulk)
    assert published is not None  # noqa: S101 - in bulk there is always a run
    return published


def _report(published: Published, blank: int, seconds: dict[str, float]) -> ProjectReport:
    return ProjectReport(
        project=published.project,
        version=published.version,
        tasks=published.looked_at,
        predicted=published.refreshed,
        from_lists=published.reused,
        removed=published.removed,
        refused=published.refused,
        lacking=published.lacking,
        at_work=published.at_work,
        blank=blank,
        seconds=seconds,
        agrees=published.agrees and not published.refused,
    )


def _known(store: Store, remote: Json) -> ProjectRecord:
    """Return the project, written down as connecting would if it is not known yet."""

    def work(session: Session) -> ProjectRecord:
        project = know_project(session, remote)
        record_sampling(session, project.id, sampling=remote["sampling"], at=datetime.now(UTC), source="sync")
        return project

    return store.run(work)


def _version_now(context: WorkContext, project: ProjectRecord, client: LabelStudio) -> str:
    views = Views(context.settings, context.store, context.loader, poll=0.0, models=context.views.models)
    return views.view(project.uid, str(client.project(int(project.key))["label_config"])).model_version


class _Ahead:
    """Has the engine predict what no list is remembered of, some pages ahead of the one that is being stored."""

    def __init__(self, settings: Settings, engine: Engine, stored: StoredModels) -> None:
        self._settings, self._engine, self._stored = settings, engine, stored

    def __call__(self, fresh: FreshPredictions, pages: Iterator[tuple[Page, Page]]) -> Iterator[tuple[Page, Ready]]:
        view, settings = fresh.view, self._settings
        if view.model.origin is None:
            raise NotFound("expected to know where the model came from, got nothing: restart with SURESPAN_MODEL set")
        recipe = recipe_of(
            view.predictor,
            origin=view.model.origin,
            label_config=fresh.label_config,
            control=settings.labels_control,
            device=settings.device,
            threads=settings.torch_threads,
            packed=self._packed(view.model.origin),
        )
        waiting: deque[tuple[Page, list[Unknown]]] = deque()

        def groups() -> Iterator[Group]:
            for page, wanted in pages:
                unknown = fresh.unknown(wanted) if wanted else []
                waiting.append((page, unknown))
                yield [Item(each.task, each.text, each.language) for each in unknown]

        for answers in self._engine.run(recipe, groups(), own=view.predictor):
            page, unknown = waiting.popleft()
            pairs = zip(unknown, answers, strict=True)
            yield page, {(each.task, each.digest): answer for each, answer in pairs if answer is not None}

    def _packed(self, origin: Origin) -> bytes | None:
        digest = stored_hash(origin)
        if digest is None:
            return None
        content = BytesIO()
        pack(self._stored.fetch(digest), content.write)
        return content.getvalue()


@contextmanager
def _held(store: Store, project: ProjectRecord, *, progress: Progress, say: Callable[[str], None]) -> Iterator[_Beat]:
    """Hold the project's job `publish` as long as the block runs; waits for whoever holds it now."""
    job = _take(store, project, progress=progress, say=say)
    beat = _Beat(store, job)
    beat.start()
    try:
        yield beat
    except BaseException as error:
        beat.stop()
        _give_up(store, job, error)
        raise
    beat.stop()
    store.run(lambda session: finish_job(session, job, result={"by": _NAME}))


def _take(store: Store, project: ProjectRecord, *, progress: Progress, say: Callable[[str], None]) -> JobRecord:
    key = job_key(Kind.PUBLISH, project)
    holder = f"{_NAME}:{socket.gethostname()}:{os.getpid()}"
    told = False
    while True:
        job = store.run(
            lambda session: take_job(
                session, Kind.PUBLISH.value, key=key, holder=holder, project_id=project.id, lease=LEASE
            )
        )
        if job is not None:
            return job
        with store.read() as session:
            other = running_job(session, key=key)
        if other is None:
            continue
        if other.holder is not None and _is_dead(other.holder):
            gone = other.holder
            store.run(lambda session, gone=gone: release_jobs(session, holder=gone))  # type: ignore[misc]
            continue
        if not told:
            say(f"Another process ({other.holder}) is publishing this project: waiting for it.")
            told = True
        progress("the other process", other.progress_done, other.progress_total)
        time.sleep(1.0)


def _is_dead(holder: str) -> bool:
    """Whether a holder is a run of this command, on this machine, whose process is gone.

    >>> _is_dead("worker:here:1")
    False
    """
    name, _, rest = holder.partition(":")
    host, _, number = rest.rpartition(":")
    if name != _NAME or host != socket.gethostname() or not number.isdigit():
        return False  # its lease will run out
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _give_up(store: Store, job: JobRecord, error: BaseException) -> None:
    reason = error if isinstance(error, BackendError) else Stopped(type(error).__name__)
    try:
        store.run(lambda session: fail_job(session, job, reason))
    except StoreError as trouble:
        _log.warning("the job was not given back: its lease runs out", extra={"reason": type(trouble).__name__})


class _Beat:
    """Renews the lease: at every word of progress, and by a thread while there is none."""

    def __init__(self, store: Store, job: JobRecord) -> None:
        self._store, self._job = store, job
        self._done = threading.Event()
        self._lost: LeaseLost | None = None
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def __call__(self, done: int | None = None, total: int | None = None, note: str | None = None) -> None:
        if self._lost is not None:
            raise self._lost
        more: dict[str, Any] = {"done": done, "total": total, "note": note}
        self._store.run(lambda session: heartbeat(session, self._job, lease=LEASE, **more))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(BEAT):
            try:
                self()
            except LeaseLost as error:
                self._lost = error
                return
            except StoreError as error:
                _log.warning("lease not renewed", extra={"reason": type(error).__name__})
