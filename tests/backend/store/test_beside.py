"""Processes that write beside one another: whatever a deadlock undoes is done again, and nothing is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from backend.calibration.order import record_sampling
from backend.calibration.reconsider import reconsider
from backend.domain.records import AnnotationRecord, Draw, SequenceScores
from backend.errors import StoreAgain
from backend.serving.measures import Measures
from backend.serving.recording import Recorder
from backend.store import Store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.calibration import record_scores, recount_cells
from backend.store.labels import delete_tasks, record_annotation
from backend.store.projects import ensure_model, ensure_project
from backend.store.tables import CalibrationCell, CalibrationScore, ServedSet, Task
from tests.backend.serving.test_recording import batch
from tests.support.waiting import WAIT

BEFORE = datetime.now(UTC) - timedelta(hours=2)


def together(*works: Callable[[], Any]) -> None:
    """Run these at once; the first error of any of them is raised."""
    errors: list[BaseException] = []
    ready = threading.Barrier(len(works))

    def run(work: Callable[[], Any]) -> None:
        try:
            ready.wait(WAIT)
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if errors:
        raise errors[0]


def test_replicas_that_show_the_same_tasks_in_other_orders_record_them_all(url: str, store: Store) -> None:
    with store.write() as session:
        project = ensure_project(session, "5.6", label_config="<View/>").id
    draw = Draw("audit", 0.2, 0.1, blind=True)
    rounds, count = 4, 40
    measures = [Measures(), Measures()]
    with Store(url) as other:
        recorders = [Recorder(each, measure) for each, measure in zip((store, other), measures, strict=True)]
        for number in range(rounds):
            names = [f"{number}-{i}" for i in range(count)]
            if number % 2:  # known without a draw, as after an import
                with store.write() as session:
                    ensure_tasks(session, project, [NewTask(name, f"Bob {name}") for name in names])
            there, back = batch(*names, draw=draw), batch(*reversed(names), draw=draw)
            together(lambda there=there: recorders[0].record(there), lambda back=back: recorders[1].record(back))  # type: ignore[misc]
        for each in recorders:
            each.close(WAIT)
    with store.read() as session:
        served = session.execute(sa.select(sa.func.count()).select_from(ServedSet)).scalar_one()
        undrawn = session.execute(sa.select(sa.func.count()).where(Task.random_order.is_(None))).scalar_one()
    assert (served, undrawn) == (2 * rounds * count, 0)
    refused = [
        each.registry.get_sample_value("surespan_served_sets_total", {"outcome": "refused"}) for each in measures
    ]
    assert sum(each or 0.0 for each in refused) == 0


def test_a_record_that_the_database_undid_is_written_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(store, Measures())

    def undo(*_: object, **__: object) -> None:
        raise StoreAgain("deadlock")

    with monkeypatch.context() as patched:
        patched.setattr("backend.serving.recording.ensure_project", undo)
        recorder.record(batch("1"))
    assert recorder.backlog == 1
    recorder.record(batch("2"))
    assert recorder.backlog == 0
    with store.read() as session:
        assert session.execute(sa.select(sa.func.count()).select_from(ServedSet)).scalar_one() == 2


def test_rows_are_judged_again_while_their_tasks_are_deleted(url: str, store: Store) -> None:
    with store.write() as session:
        project = ensure_project(session, "1.5", label_config="<View/>")
        model = ensure_model(session, "m", "ab" * 32, classes=["PER"]).id
        drawn = [
            NewTask(str(i), f"text {i}", draw=Draw("uniform", i / 200, 1.0, blind=False), created_at=BEFORE)
            for i in range(120)
        ]
        for number, kept in enumerate(ensure_tasks(session, project.id, drawn)):
            record_annotation(session, kept.id, AnnotationRecord(number, BEFORE + timedelta(minutes=10), ()))
            record_scores(
                session, project.id, model_id=model, task_id=kept.id, label_revision=1, stratum="en/1-10",
                evidence="assisted", scores=SequenceScores(1.0, 1.0, 0.5), exclusion="queue",
            )  # fmt: skip
        for at in (BEFORE - timedelta(days=1), BEFORE + timedelta(hours=1)):
            record_sampling(session, project.id, sampling="Uniform sampling", at=at, source="webhook")
    gone = [str(i) for i in range(20, 120)]
    with Store(url) as other:
        delete = partial(delete_tasks, project_id=project.id, external_ids=gone, at=datetime.now(UTC))
        together(lambda: reconsider(store, project), lambda: other.run(delete))
    with store.read() as session:
        live = session.execute(
            sa.select(CalibrationCell.exclusion, sa.func.count())
            .join(CalibrationScore, CalibrationScore.cell_id == CalibrationCell.id)
            .where(CalibrationScore.removed_at_revision.is_(None))
            .group_by(CalibrationCell.exclusion)
        ).all()
        kept = {
            row.id: (row.n, row.n_infinite, row.tasks) for row in session.execute(sa.select(CalibrationCell)).scalars()
        }
        assert kept == recount_cells(session, project.id, model_id=model)
    assert [tuple(row) for row in live] == [("", 20)]
