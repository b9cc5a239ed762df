"""The worker: events to labels, labels to calibration rows, rows to refits, and the jobs beside them.

Four loops, each of small steps. One takes events from the inbox, scores the labels they changed and decides by counts
and time alone whether to refit (METHODS 8.5). The second scores labels of long texts, one at a time and in pieces
between which short work goes first. The third runs jobs, the fourth waits for trainings, which are processes of their
own. So neither a long text nor a long job ever holds up an event.
A worker that is killed loses nothing: an event is finished in the transaction that writes what it brought, a label
without a row is found by the next catch-up, and a job's lease runs out.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count

from sqlalchemy.orm import Session

from backend.acceptance.watch import watch_accepted, withdraw_drifted
from backend.calibration.model_change import queue_rescores
from backend.calibration.schedule import queue_due_refit
from backend.calibration.score_labels import CaughtUp, class_names, score_unscored
from backend.domain.precedence import LONG
from backend.domain.records import JobRecord, LabelChange, ProjectRecord
from backend.errors import (
    DATABASE_TROUBLE,
    BackendError,
    InvalidLabelConfig,
    LabelStudioError,
    LeaseLost,
    ModelUnavailable,
    NotFound,
    StoreError,
)
from backend.intake.ingest import Ingest
from backend.jobs.context import WorkContext, no_heartbeat
from backend.jobs.kinds import Kind, queue_publish, queue_sync
from backend.labelstudio.client import LabelStudio
from backend.labelstudio.payloads import InvalidPayload, read_moment
from backend.learning.choice import consider_candidate, has_candidate
from backend.learning.schedule import queue_due_training
from backend.learning.training import rival_of
from backend.logs import stack_of
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.monitoring.monitor import Monitor
from backend.prediction.starter import starter_calibration
from backend.review.queue import fill_queue
from backend.settings import Settings
from backend.store import Store
from backend.store.events import Turn, process_events, release_claims
from backend.store.jobs import MAX_TRIES, acquire_job, fail_job, finish_job, heartbeat, release_jobs
from backend.store.project_models import prune_models, serving_model
from backend.store.projects import LOCAL, list_projects, load_project
from backend.store.retention import purge_events, purge_served, purge_texts
from backend.store.state import CONNECTION, PUBLISH, get_state
from backend.tagger.blank import BlankTagger
from backend.worker.handlers import HANDLERS
from backend.worker.turns import Share, Turns
from backend.worth.measure import queue_due_worth

_log = logging.getLogger(__name__)

BATCH = 50  # events in one step, or as many as there are seconds for:
BATCH_SECONDS = 2.0  # on a slow machine too, labels that wait to be scored need not wait long
PAUSE = 0.5  # seconds between two looks at an empty inbox
AWAY = 5.0  # seconds after trouble with the database or the model
CATCH_UP = 300.0
LOOK = 60.0
PUBLISH_LOOK = 60.0
LEARN_LOOK = 5.0  # seconds between two counts of the labels that a project may learn from
ACCEPTED_LOOK = 60.0  # seconds between two looks at what later labels say about accepted tasks
KEEP_HOUSE = 3600.0
JOB_LEASE = timedelta(minutes=2)
EVENTS_KEPT = timedelta(days=30)
MAX_RETRY = timedelta(minutes=10)


class Stopping(BackendError):
    """The worker was told to stop while a job ran; it is taken up again later."""


class Worker:
    """Works on one database. `step_events`, `step_long` and `step_jobs` do one step each; `start` runs them in threads.

    Args:
        name: claims and leases are made under it; `takeover` gives those of an earlier worker of this name back, for
            the one worker of a service, whose restart need not wait for leases to end.
        clock: says when a turn or a batch has had its time.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        loader: ModelLoader,
        views: Views,
        label_studio: Callable[[], LabelStudio | None] | None = None,
        name: str | None = None,
        takeover: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.store, self.loader, self.views = settings, store, loader, views
        self.name = name or f"worker:{socket.gethostname()}:{os.getpid()}"
        self._label_studio = label_studio or (lambda: client_of(settings))
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._turn = Turn()
        self._clock = clock
        self._turns, self._long_turns = Turns(clock=clock), Turns(clock=clock, labels=1)
        self._ingest = Ingest(self._classes, labels_control=settings.labels_control, on_change=self._note)
        self._monitor: Monitor | None = None
        self._due: dict[str, float] = {}
        self._heard: set[int] = set()  # projects with labels that may make a training due
        self._preparing = threading.Lock()
        self._ready = not takeover

    def start(self) -> None:
        """Work in the background until `close`."""
        steps = {
            "events": self.step_events,
            "long": self.step_long,
            "jobs": self.step_jobs,
            "training": self.step_training,
        }
        for name, step in steps.items():
            thread = threading.Thread(target=self._loop, args=(step,), name=f"worker-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Ask all loops to end after the step under way; returns at once."""
        self._stop.set()

    def close(self, timeout: float = 30.0) -> None:
        """Stop, and wait for the step under way."""
        self.stop()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def wait(self, timeout: float) -> bool:
        """Wait until the worker is asked to end; returns whether it was."""
        return self._stop.wait(timeout)

    def drain(self) -> None:
        """Work until nothing is due, in this thread."""
        while not self._stop.is_set():
            busy = self.step_events()
            busy |= self.step_long()
            busy |= self.step_jobs()
            busy |= self.step_training()
            if not busy:
                return

    def hurry(self) -> None:
        """Let everything but housekeeping be due now, as if its time had passed: for whoever steps by hand."""
        self._due = {what: due for what, due in self._due.items() if what == "house"}

    def step_events(self) -> bool:
        """Process a batch of events, score what they changed, refit if it is time; returns whether there is more.

        Projects take turns in both: one with a flood of events delays itself alone. Labels of long texts are left to
        `step_long`.

        Raises:
            StoreError, ModelUnavailable: nothing is lost; try again later.
        """
        self._prepare()
        self.loader.header()  # which control of a label config is ours depends on the model's classes
        tried = process_events(
            self.store,
            self._ingest.process,
            worker=self.name,
            limit=BATCH,
            stop=self._batch_end(),
            hopeless=(InvalidPayload, RecursionError),
            turn=self._turn,
        )
        scored = sum(self._take_turn(share) for share in self._turns.round())
        if self._is_time_for("catch up", CATCH_UP):
            rescored = queue_rescores(self.store, self.views)  # a new model: long work, done by a job
            for project in self._projects():
                if project.id not in rescored:
                    self._turns.note_all(project.id)
            scored += sum(self._take_turn(share) for share in self._turns.round())
        if scored or self._is_time_for("look", LOOK):
            for project in self._projects():
                self._watch(project)
                self._decide(project)
        for project in self._projects() if self._heard else ():
            # Labels that no model knows yet are not scored, and must not wait for a look to be learnt from.
            if project.id in self._heard and self._is_time_for(f"learn:{project.id}", LEARN_LOOK):
                self._heard.discard(project.id)
                self._learn(project)
        return tried > 0 or bool(self._turns)

    def step_long(self) -> bool:
        """Score one label of a long text for each project that has some; returns whether there is more."""
        if sum(self._take_turn(share, long=True) for share in self._long_turns.round()):
            self._due.pop("look", None)  # the other loop has new rows to look at
        return bool(self._long_turns)

    def step_jobs(self) -> bool:
        """Queue what the clock asks for, and run one job other than a training; returns whether there was one."""
        self._prepare()
        self._keep_time()
        return self._run_job([kind for kind in HANDLERS if kind is not Kind.TRAIN])

    def step_training(self) -> bool:
        """Run one training, which waits for a process of its own; returns whether there was one."""
        self._prepare()
        return self._run_job([Kind.TRAIN])

    def _run_job(self, kinds: Sequence[Kind]) -> bool:
        job = self.store.run(
            lambda session: acquire_job(
                session, holder=self.name, kinds=[kind.value for kind in kinds], lease=JOB_LEASE
            )
        )
        if job is None:
            return False
        begun = time.monotonic()
        try:
            result = HANDLERS[Kind(job.kind)](self.context(job), job)
            self.store.run(lambda session: finish_job(session, job, result=result))
            seconds = round(time.monotonic() - begun, 2)
            _log.info("job done", extra={"kind": job.kind, "job": job.id, "seconds": seconds})
            if job.kind in {Kind.RESCORE, Kind.RECONSIDER}:
                # Rows have come or changed sides: a refit may be due at once.
                self._due.pop("look", None)
        except Stopping as error:
            self._give_back(job, error, timedelta(0), attempts=job.attempts - 1)
        except LeaseLost:
            _log.warning("job was taken over", extra={"kind": job.kind, "job": job.id})
        except Exception as error:  # noqa: BLE001 - any failure belongs into the job's record
            self._failed(job, error)
        return True

    def context(self, job: JobRecord | None = None) -> WorkContext:
        """Return what handlers work with."""

        def beat(done: int | None = None, total: int | None = None, note: str | None = None) -> None:
            assert job is not None  # noqa: S101 - see below
            if self._stop.is_set():
                raise Stopping("the worker was told to stop; the job is taken up again later")
            afresh = job.kind == Kind.TRAIN
            self.store.run(
                lambda session: heartbeat(
                    session, job, lease=JOB_LEASE, done=done, total=total, note=note, afresh=afresh
                )
            )

        return WorkContext(
            settings=self.settings,
            store=self.store,
            loader=self.loader,
            views=self.views,
            label_studio=self._label_studio,
            heartbeat=no_heartbeat if job is None else beat,
            log=_log,
        )

    def _loop(self, step: Callable[[], bool]) -> None:
        while not self._stop.is_set():
            pause = PAUSE
            try:
                if step():
                    continue
            except (StoreError, ModelUnavailable) as error:
                _log.warning("worker waits", extra={"reason": type(error).__name__})
                pause = AWAY
            except Exception as error:  # noqa: BLE001 - the loop must outlive whatever it was
                _log.error("worker step failed", extra={"reason": type(error).__name__, "stack": stack_of(error)})
                pause = AWAY
            self._stop.wait(pause)

    def _batch_end(self) -> Callable[[], bool]:
        """Return what says that a batch of events has had its time: not before one of them was looked at."""
        asked, end = count(), self._clock() + BATCH_SECONDS
        return lambda: self._stop.is_set() or (next(asked) > 0 and self._clock() >= end)

    def _prepare(self) -> None:
        def take(session: Session) -> int:
            return release_claims(session, worker=self.name) + release_jobs(session, holder=self.name)

        with self._preparing:
            if not self._ready:
                self.store.run(take)
                self._ready = True

    def _classes(self, session: Session, project: ProjectRecord) -> tuple[str, ...]:
        own = serving_model(session, project.id)
        return self.loader.header().classes if own is None else own.classes

    def _note(self, project: ProjectRecord, change: LabelChange) -> None:
        self._turns.note(project.id, change.task_id)
        self._heard.add(project.id)

    def _projects(self) -> list[ProjectRecord]:
        with self.store.read() as session:
            return [project for project in list_projects(session) if project.uid != LOCAL]

    def _take_turn(self, share: Share, *, long: bool = False) -> int:
        """Score a project's share of labels; what is wrong with one project stays there. Returns how many were."""
        if self._stop.is_set():
            return 0
        turns = self._long_turns if long else self._turns
        turns.begin(share)
        try:
            done = self._score(share, longest=None if long else LONG)
        except (*DATABASE_TROUBLE, ModelUnavailable):
            raise  # what is noted stays noted
        except Exception as error:  # noqa: BLE001 - the other projects go on, and the next catch-up looks again
            reason = {"project": share.project_id, "reason": type(error).__name__, "stack": stack_of(error)}
            _log.error("labels cannot be scored", extra=reason)
            turns.drop(share)
            return 0
        for task in done.long:
            self._long_turns.note(share.project_id, task)
        turns.end(share, left=None if long else done.left)  # a turn of a long text is over with that text
        return done.scored

    def _score(self, share: Share, *, longest: int | None) -> CaughtUp:
        with self.store.read() as session:
            project = load_project(session, share.project_id)
        try:
            model, tagger = self.context().model_of(project)
        except InvalidLabelConfig as error:
            _log.warning("labels cannot be scored", extra={"project": project.uid, "reason": str(error)})
            return CaughtUp()
        if isinstance(tagger, BlankTagger):
            return CaughtUp()  # they wait, stored, for a model that knows their labels
        done = score_unscored(
            self.store,
            project,
            model=model,
            tagger=tagger,
            task_ids=share.tasks,
            max_text=self.settings.max_text,
            longest=longest,
            begin=share.begin,
            most=share.most,
            stop=lambda: share.is_over() or self._stop.is_set(),
        )
        if done.scored:
            _log.info("labels scored", extra={"project": project.uid, "labels": done.scored})
        return done

    def _watch(self, project: ProjectRecord) -> None:
        """Let the monitors see the rows that are new; trouble with them holds up nothing else."""
        settings = self.settings
        if self._monitor is None:
            self._monitor = Monitor(self.store, method=settings.method, alpha=settings.alpha, on_drift=withdraw_drifted)
        try:
            context = self.context()
            model, tagger = context.model_of(project)
            if isinstance(tagger, BlankTagger):
                return
            directory = context.starter_directory(project)
            watched = self._monitor.watch(
                project,
                model=model,
                names=class_names(project.label_config, tagger.space.classes),
                starter=lambda method: starter_calibration(
                    tagger, directory, method=method, n_min=settings.n_min, flags=settings.risk_rule
                ),
            )
            withdrawn = None
            # Later labels are looked at now and then, and at once beside an alarm; one of drift has withdrawn already.
            if watched.alarms or self._is_time_for(f"accepted:{project.id}", ACCEPTED_LOOK):
                withdrawn = watch_accepted(self.store, project, model=model)
        except InvalidLabelConfig:
            return  # said where labels are scored
        except BackendError as error:
            _log.error("monitors not fed", extra={"project": project.uid, "reason": str(error)})
            return
        except Exception as error:  # noqa: BLE001 - of this project alone
            reason = {"project": project.uid, "reason": type(error).__name__, "stack": stack_of(error)}
            _log.error("monitors not fed", extra=reason)
            return
        for alarm in watched.alarms:
            _log.warning("alarm", extra={"project": project.uid, "alarm": alarm})
        if withdrawn is not None:
            _log.warning("acceptance is withdrawn", extra={"project": project.uid, "reason": withdrawn})

    def _decide(self, project: ProjectRecord) -> None:
        header = self.views.model_of(project)
        self.store.run(lambda session: queue_due_refit(session, project, header=header, settings=self.settings))
        self.store.run(lambda session: queue_due_worth(session, project, header=header))
        self._heard.discard(project.id)
        self._learn(project)

    def _learn(self, project: ProjectRecord) -> None:
        """Queue a training that is due, and let a model serve that was waiting for labels to calibrate it by."""
        self.store.run(lambda session: queue_due_training(session, project, settings=self.settings))
        with self.store.read() as session:
            if not has_candidate(session, project):
                return
        try:
            rival = rival_of(self.context(), project)
        except InvalidLabelConfig:
            return  # said where labels are scored
        version = self.store.run(lambda session: consider_candidate(session, project, rival, settings=self.settings))
        if version is not None:
            _log.info(
                "a candidate has enough labels to serve", extra={"project": project.uid, "model_version": version}
            )

    def _failed(self, job: JobRecord, error: Exception) -> None:
        reason = str(error) if isinstance(error, BackendError) else type(error).__name__
        _log.error("job failed", extra={"kind": job.kind, "job": job.id, "reason": reason, "stack": stack_of(error)})
        pause: timedelta | None = min(MAX_RETRY, timedelta(seconds=5.0 * 2 ** min(job.attempts, 10)))
        attempts = None
        if isinstance(error, (*DATABASE_TROUBLE, LabelStudioError, ModelUnavailable)):
            attempts = min(job.attempts, MAX_TRIES - 2)  # not the job's fault: it goes on trying, however long
        elif isinstance(error, NotFound) or job.attempts >= MAX_TRIES:
            pause = None
        self._give_back(job, error, pause, attempts=attempts)

    def _give_back(
        self, job: JobRecord, error: Exception, retry: timedelta | None, *, attempts: int | None = None
    ) -> None:
        try:
            self.store.run(lambda session: fail_job(session, job, error, retry_after=retry, attempts=attempts))
        except LeaseLost:
            _log.warning("job was taken over", extra={"kind": job.kind, "job": job.id})

    def _keep_time(self) -> None:
        if self.settings.sync_every_minutes and self._is_time_for("sync", self.settings.sync_every_minutes * 60):
            self._queue_syncs()
        if self._is_time_for("publish", PUBLISH_LOOK):
            self._queue_publications()
        if self._is_time_for("house", KEEP_HOUSE):
            self._keep_house()

    def _queue_syncs(self) -> None:
        for project in self._projects():

            def queue(session: Session, project: ProjectRecord = project) -> None:
                if get_state(session, project.id, CONNECTION):
                    queue_sync(session, project)

            self.store.run(queue)

    def _queue_publications(self) -> None:
        """Ask for publishing where the last one had to leave something for later."""
        for project in self._projects():

            def queue(session: Session, project: ProjectRecord = project) -> None:
                again = (get_state(session, project.id, PUBLISH) or {}).get("again_at")
                if again is not None and read_moment(again) <= datetime.now(UTC):
                    queue_publish(session, project)

            self.store.run(queue)

    def _keep_house(self) -> None:
        fill_queue(self.store)
        now = datetime.now(UTC)
        if self.settings.text_retention is not None:
            texts = timedelta(days=self.settings.text_retention)
            purge_texts(self.store, before=now - texts)
            purge_events(self.store, before=now - texts, dead=True)  # events carry texts too
        purge_events(self.store, before=now - EVENTS_KEPT)
        if self.settings.served_retention is not None:
            purge_served(self.store, before=now - timedelta(days=self.settings.served_retention))
        for file in self.store.run(prune_models):
            _log.info("the file of a retired model is removed: nothing names it", extra={"model": file.model_hash[:8]})
        self.views.models.stored.sweep()

    def _is_time_for(self, what: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, float("-inf")):
            return False
        self._due[what] = now + every
        return True


def client_of(settings: Settings) -> LabelStudio | None:
    """Return a client of the Label Studio that the settings name, None when they name none."""
    if not settings.label_studio_url or settings.label_studio_api_key is None:
        return None
    return LabelStudio(settings.label_studio_url, settings.label_studio_api_key.get_secret_value())
