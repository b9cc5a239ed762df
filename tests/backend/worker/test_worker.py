"""The worker inside the real service, and its decisions."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from backend.calibration.order import declare_shuffled
from backend.calibration.schedule import last_fit, queue_due_refit, refit_is_due
from backend.cli import main
from backend.domain.records import Draw, Served
from backend.errors import NotFound
from backend.jobs.kinds import Kind
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.settings import Settings, load_settings
from backend.store import Store, open_store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.events import inbox_depth, list_events, store_events
from backend.store.jobs import acquire_job, enqueue_job, load_job
from backend.store.projects import ensure_model, ensure_project, find_project
from backend.store.served import record_served
from backend.store.state import set_state
from backend.store.tables import CalibrationCell, CalibrationScore, Event, Job, ThresholdVersion
from backend.store.training import record_training_tasks
from backend.worker.handlers import HANDLERS
from backend.worker.worker import Worker
from tests.support.paths import ROOT
from tests.support.payload_shapes import TEXTS, annotation, project_object, region, task
from tests.support.running import WAIT, environment, running
from tests.support.waiting import wait_for

BUNDLED = ROOT / "backend" / "tagger" / "bundled"
MADE = datetime(2026, 11, 2, 9, tzinfo=UTC)
UID = "31.1793610000"


def created(number: int, *, sampling: str = "Uniform sampling", label: str = "Person", **more: Any) -> dict[str, Any]:
    when = (MADE + timedelta(hours=number)).isoformat()
    text = f"{TEXTS[0]} Nummer {number}."
    made = annotation(number, task_id=number, updated_by=1, created_at=when, updated_at=when, **more)
    made["result"] = [region(0, 9, text, label, origin="manual")]
    project = project_object() | {"sampling": sampling, "updated_at": MADE.isoformat()}
    return {"action": "ANNOTATION_CREATED", "annotation": made, "task": task(number, text), "project": project}


@pytest.fixture(scope="module")
def loader() -> ModelLoader:
    made = ModelLoader(load_settings())
    made.start()
    made.tagger(120.0)
    return made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(
        database_url=f"sqlite:///{tmp_path / 'store.db'}", refit_every_labels=3, n_min=5, sync_every_minutes=0
    )


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    with open_store(settings.database_url) as opened:
        yield opened


@pytest.fixture
def make(settings: Settings, store: Store, loader: ModelLoader) -> Callable[..., Worker]:
    def made(**more: Any) -> Worker:
        return Worker(settings, store, loader=loader, views=Views(settings, store, loader), **more)

    return made


def cells(store: Store) -> dict[tuple[str, str], int]:
    with store.read() as session:
        rows = session.execute(sa.select(CalibrationCell)).scalars().all()
        return {(row.evidence, row.exclusion): row.tasks for row in rows if row.tasks}


def states(store: Store, kind: str) -> list[str]:
    with store.read() as session:
        return list(session.execute(sa.select(Job.state).where(Job.kind == kind).order_by(Job.id)).scalars())


def test_events_become_rows_and_rows_a_version(store: Store, make: Callable[..., Worker]) -> None:
    worker = make()
    store_events(store, [created(number) for number in (1, 2)])
    worker.drain()
    assert cells(store) == {("assisted", ""): 2}
    assert states(store, "refit") == []  # fewer than three
    store_events(store, [created(3), created(4, label="Planet"), created(5, was_cancelled=True)])
    worker.drain()
    assert cells(store) == {("assisted", ""): 4}
    assert states(store, "refit") == ["done"]
    with store.read() as session:
        first = sa.select(CalibrationScore.nll).where(CalibrationScore.unit == 0).order_by(CalibrationScore.task_id)
        scores = session.execute(first).scalars().all()
        assert [score == float("inf") for score in scores] == [False, False, False, True]
        version = session.execute(sa.select(ThresholdVersion)).scalars().one()
        assert (version.guarantee, version.n) == ("assisted", 4)
        project = find_project(session, UID)
        assert project is not None
        assert last_fit(session, project.id, model_id=version.model_id).rows == 4
    worker.drain()
    assert states(store, "refit") == ["done"]


def test_rows_change_sides_when_news_of_the_order_come_late(store: Store, make: Callable[..., Worker]) -> None:
    worker = make()
    store_events(store, [created(number) for number in (1, 2, 8)])
    worker.drain()
    assert cells(store) == {("assisted", ""): 3}
    review = created(5, sampling="Uncertainty sampling")
    review["project"]["updated_at"] = (MADE + timedelta(hours=4)).isoformat()
    store_events(store, [review])
    worker.drain()
    assert cells(store) == {("assisted", ""): 2, ("assisted", "queue"): 2}
    with store.write() as session:
        project = find_project(session, UID)
        assert project is not None
        declare_shuffled(session, project.id, shuffled=True)
    worker.drain()
    assert cells(store) == {("assisted", ""): 2, ("assisted", "queue"): 2}
    assert states(store, "reconsider") == ["done"] * 3


def test_a_sequential_collection_counts_once_it_is_declared_shuffled(store: Store, make: Callable[..., Worker]) -> None:
    worker = make()
    store_events(store, [created(number, sampling="Sequential sampling") for number in (1, 2)])
    worker.drain()
    assert cells(store) == {("assisted", "sequential"): 2}
    with store.write() as session:
        project = find_project(session, UID)
        assert project is not None
        declare_shuffled(session, project.id, shuffled=True)
    worker.drain()
    assert cells(store) == {("assisted", ""): 2}


def test_labels_that_trained_the_model_are_no_evidence(
    store: Store, make: Callable[..., Worker], loader: ModelLoader
) -> None:
    store_events(store, [created(1), created(2)])
    worker = make()
    with store.write() as session:
        project = ensure_project(session, UID)
    worker.step_events()
    with store.write() as session:
        numbers = session.execute(sa.select(CalibrationScore.task_id)).scalars().all()
        session.execute(sa.delete(CalibrationScore))
        session.execute(sa.update(CalibrationCell).values(n=0, n_infinite=0, tasks=0))
        record_training_tasks(session, loader.tagger(1.0).base_hash, numbers[:1], purpose="training")
    worker._turns.note_all(project.id)  # a catch-up without waiting for its time
    worker.step_events()
    assert cells(store) == {("assisted", ""): 1, ("assisted", "trained"): 1}
    # Judging again leaves it so: what trained a model is no matter of order.
    with store.write() as session:
        declare_shuffled(session, project.id, shuffled=True)
    worker.drain()
    assert cells(store) == {("assisted", ""): 1, ("assisted", "trained"): 1}


def test_a_poisonous_event_is_set_aside_and_the_rest_goes_on(store: Store, make: Callable[..., Worker]) -> None:
    bad = created(2)
    bad["annotation"]["result"] = "none"
    store_events(store, [created(1), bad, {"action": "ANNOTATION_CREATED"}, created(3)])
    make().drain()
    assert cells(store) == {("assisted", ""): 2}
    with store.read() as session:
        assert inbox_depth(session) == {"pending": 0, "dead": 2}
        assert all(each.attempts == 1 for each in list_events(session, "dead"))


def test_a_restart_takes_over_what_its_name_held(store: Store, make: Callable[..., Worker]) -> None:
    from backend.store.events import claim_event  # noqa: PLC0415 - only here

    store_events(store, [created(1)])
    with store.write() as session:
        assert claim_event(session, worker="serve:9090") is not None
        project = ensure_project(session, UID)
        enqueue_job(session, "reconsider", key=f"reconsider:{UID}", project_id=project.id)
        assert acquire_job(session, holder="serve:9090") is not None
    make(name="another", takeover=True).drain()
    assert cells(store) == {}
    make(name="serve:9090", takeover=True).drain()
    assert cells(store) == {("assisted", ""): 1}
    assert set(states(store, "reconsider")) == {"done"}


def test_a_failing_job_is_tried_again_and_one_without_a_project_is_not(
    store: Store, make: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def run(context: Any, job: Any) -> dict[str, Any]:
        calls.append(job.kind)
        context.heartbeat(done=1, total=2, note="half")
        raise NotFound("gone") if job.payload.get("gone") else RuntimeError("Bob lives in Paris")

    monkeypatch.setitem(HANDLERS, "sync", run)
    with store.write() as session:
        again = enqueue_job(session, "sync", key="sync:1")
        never = enqueue_job(session, "sync", key="sync:2", payload={"gone": True})
    worker = make()
    assert worker.step_jobs()
    assert worker.step_jobs()
    assert not worker.step_jobs()  # the pause before the next try is not over
    with store.read() as session:
        first, second = load_job(session, again), load_job(session, never)
    assert first is not None
    assert second is not None
    assert (first.state, first.progress_done, first.progress_note) == ("queued", 1, "half")
    assert second.state == "failed"
    worker.stop()
    with store.write() as session:
        session.execute(sa.update(Job).where(Job.id == again).values(run_after=MADE))
    worker.step_jobs()
    with store.read() as session:
        stopped = load_job(session, again)
    assert stopped is not None
    assert stopped.state == "queued"
    assert "told to stop" in str(stopped.error)
    assert len(calls) == 3


def test_every_kind_of_job_has_its_handler() -> None:
    assert set(HANDLERS) == set(Kind)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"rows": 19, "rows_then": 0}, False),
        ({"rows": 20, "rows_then": 0}, True),
        ({"rows": 1099, "rows_then": 1000}, False),
        ({"rows": 1100, "rows_then": 1000}, True),
        ({"rows": 1, "rows_then": 0, "every_labels": 1}, True),
        ({"rows": 900, "rows_then": 1000}, False),  # withdrawn: time will tell
        ({"rows": 900, "rows_then": 1000, "since": timedelta(hours=2)}, True),
        ({"rows": 1000, "rows_then": 1000, "since": timedelta(hours=2)}, True),  # edited
        ({"rows": 1000, "rows_then": 1000, "since": timedelta(hours=2), "revision": 7}, False),
        ({"rows": 1, "rows_then": 0, "since": None}, False),
    ],
)
def test_when_to_refit(given: dict[str, Any], expected: bool) -> None:
    usual = {
        "revision": 8,
        "revision_then": 7,
        "since": timedelta(minutes=5),
        "every_labels": None,
        "every_minutes": 60.0,
    }
    assert refit_is_due(**(usual | given)) is expected


def test_no_refit_while_labels_are_scored_under_a_new_model(
    store: Store, settings: Settings, make: Callable[..., Worker]
) -> None:
    worker = make()
    store_events(store, [created(number) for number in range(1, 5)])
    with store.write() as session:
        project = ensure_project(session, UID)
        waits = timedelta(hours=1)
        job = enqueue_job(session, "rescore", key=f"rescore:{UID}", project_id=project.id, delay=waits)
    worker.drain()
    assert cells(store) == {("assisted", ""): 4}
    assert states(store, "refit") == []
    header = worker.views.model_of(project)
    with store.write() as session:
        session.execute(sa.delete(Job).where(Job.id == job))
        with_config = find_project(session, UID)
        assert with_config is not None
        header = worker.views.model_of(with_config)
        assert queue_due_refit(session, with_config, header=header, settings=settings)
        assert not queue_due_refit(session, with_config, header=header, settings=settings)


def test_syncs_are_queued_for_connected_projects_and_old_events_are_removed(
    store: Store, loader: ModelLoader, settings: Settings
) -> None:
    timely = settings.model_copy(update={"sync_every_minutes": 5.0})
    with store.write() as session:
        for uid in ("1.5", "2.5"):
            ensure_project(session, uid)
        project = find_project(session, "2.5")
        assert project is not None
        set_state(session, project.id, "connection", {"number": 2})
    store_events(store, [{"action": "NOTHING"}], received_at=MADE - timedelta(days=365))
    with store.write() as session:
        session.execute(sa.update(Event).values(state="done"))
    worker = Worker(timely, store, loader=loader, views=Views(timely, store, loader), label_studio=lambda: None)
    worker._keep_time()  # what the clock asks for, without running it
    with store.read() as session:
        assert [job.key for job in session.execute(sa.select(Job)).scalars()] == ["sync:2.5"]
        assert session.execute(sa.select(sa.func.count()).select_from(Event)).scalar_one() == 0


def test_a_publication_that_left_something_is_asked_for_again_without_any_sync(
    store: Store, make: Callable[..., Worker]
) -> None:
    now = datetime.now(UTC)
    with store.write() as session:
        later, due = (ensure_project(session, uid).id for uid in ("1.5", "2.5"))
        set_state(session, later, "publish", {"again_at": (now + timedelta(hours=1)).isoformat()})
        set_state(session, due, "publish", {"again_at": (now - timedelta(seconds=1)).isoformat()})
    make().step_jobs()
    with store.read() as session:
        assert session.execute(sa.select(Job.key)).scalars().all() == ["publish:2.5"]


def test_a_label_after_a_prelabel_is_not_blind_whatever_the_draw_says(
    store: Store, make: Callable[..., Worker]
) -> None:
    """Two replicas drew the tasks under different orders while the database was away, and one showed its prediction."""
    worker = make()
    with store.write() as session:
        project = ensure_project(session, UID)
        model = worker.views.model_of(project)
        known = ensure_model(session, model.name, model.hash, classes=model.classes).id
        draw = Draw("uniform", 0.5, 1.0, blind=True)
        kept = ensure_tasks(
            session, project.id, [NewTask(str(n), f"{TEXTS[0]} Nummer {n}.", draw=draw) for n in (1, 2, 3)]
        )
        shown = Served(0, known, None, False, "de/1-10", "de/*", "own", 9, 1.0, False, 1, 1, b"", MADE)
        blank = replace(shown, task_id=kept[0].id, shadow=True)
        led = replace(shown, task_id=kept[1].id)
        late = replace(shown, task_id=kept[2].id, served_at=MADE + timedelta(days=1))
        record_served(session, [blank, led, late])
    store_events(store, [created(number) for number in (1, 2, 3)])
    worker.drain()
    assert cells(store) == {("blind", ""): 2, ("assisted", ""): 1}


def versions(store: Store) -> int:
    with store.read() as session:
        return session.execute(sa.select(sa.func.count()).select_from(ThresholdVersion)).scalar_one()


@pytest.mark.e2e
def test_the_service_works_by_itself_and_stops_cleanly(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'served.db'}"
    with running(tmp_path, BUNDLED, SURESPAN_WORKER="", SURESPAN_REFIT_EVERY_LABELS="4") as service:
        service.wait_until_up()
        for number in range(1, 7):
            assert service.call("/webhook", created(number))[0] == 200
        with Store(url) as store:
            _until(lambda: versions(store) > 0 and sum(cells(store).values()) == 6, service.log)
        assert service.stop() == 0
    assert "Nummer" not in service.log.read_text()


@pytest.mark.e2e
def test_the_command_does_what_waits_and_ends_when_told(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'served.db'}"
    with open_store(url) as store:
        store_events(store, [created(number) for number in (1, 2)])
        log = (tmp_path / "worker.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "backend", "worker"],
            env=environment(tmp_path, BUNDLED),
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
        try:
            _until(lambda: sum(cells(store).values()) == 2, tmp_path / "worker.log")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=WAIT) == 0
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            log.close()


def test_help_says_what_a_worker_is() -> None:
    result = CliRunner().invoke(main, ["worker", "--help"])
    assert result.exit_code == 0
    assert "a worker that is" in " ".join(result.output.split())


def _until(done: Callable[[], bool], log: Path) -> None:
    wait_for(done, f"what {log} tells of")
