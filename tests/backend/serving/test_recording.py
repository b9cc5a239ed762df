"""What was served is recorded; a busy database delays the record and nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import event

from backend.domain.ranked import Labeling, RankedList, one_unit
from backend.domain.records import Draw, Served, TextSpan
from backend.prediction.answer import Answer
from backend.serving.measures import Measures
from backend.serving.recording import Recorder, ServedBatch, ServedTask
from backend.store import Store, open_store
from backend.store.packed_lists import pack_ranked, unpack_ranked
from backend.store.projects import find_project, find_task, lookup_model
from backend.store.served import served_before
from backend.tagger.identity import ModelHeader

MODEL = ModelHeader("m", "ab" * 32, ("LOC", "PER"))
RANKED = RankedList(("LOC", "PER"), (-0.1, -2.5), ((TextSpan(0, 3, "PER"),), ()), exhausted=False)


def answer(version: int = 0) -> Answer:
    return Answer(
        language="en",
        length=2,
        stratum="en/1-10",
        pool="en/1-10",
        alpha="0.05",
        n=100,
        tau=1.5,
        guarantee="borrowed",
        threshold_version=version,
        model_version="m@abababab+cal.0",
        open=False,
        set_size=1,
        labelings=(Labeling(1, 0.9, 1.0, (TextSpan(0, 3, "PER"),)),),
        spans=(),
        ranked=pack_ranked(one_unit(RANKED)),
        value=0.1,
    )


def batch(*names: str, draw: Draw | None = None) -> ServedBatch:
    tasks = tuple(ServedTask(name, f"Bob {name}", None, draw, answer()) for name in names)
    return ServedBatch.of("5.6", "<View/>", MODEL, tasks)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    open_store(f"sqlite:///{tmp_path / 'store.db'}").close()
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{path}", wait=0.2) as opened:
        yield opened


def last_served(store: Store, task: str) -> Served | None:
    with store.read() as session:
        project = find_project(session, "5.6")
        assert project is not None
        assert project.label_config == "<View/>"
        found = find_task(session, project.id, external_id=task)
        if found is None:
            return None
        later = datetime.now(UTC) + timedelta(hours=1)
        return served_before(session, found.id, at=later)


def test_a_batch_is_there_when_record_returns(store: Store) -> None:
    measures = Measures()
    recorder = Recorder(store, measures)
    recorder.record(batch("1", "2"))
    served = last_served(store, "2")
    assert served is not None
    assert (served.version_id, served.shadow, served.set_size, served.shown, served.tau) == (None, False, 1, 1, 1.5)
    assert unpack_ranked(served.ranked) == one_unit(RANKED)
    with store.read() as session:
        model = lookup_model(session, MODEL.name, MODEL.hash)
    assert model is not None
    assert served.model_id == model.id
    assert measures.registry.get_sample_value("surespan_served_sets_total", {"outcome": "recorded"}) == 2


def test_blind_tasks_are_recorded_as_shadow_with_their_draw(store: Store) -> None:
    draw = Draw("audit", 0.25, 0.1, blind=True)
    Recorder(store, Measures()).record(batch("1", draw=draw))
    served = last_served(store, "1")
    assert served is not None
    assert served.shadow
    with store.read() as session:
        project = find_project(session, "5.6")
        assert project is not None
        task = find_task(session, project.id, external_id="1")
    assert task is not None
    assert task.draw == draw


def test_a_locked_database_postpones_the_record_and_keeps_the_order(store: Store, path: Path) -> None:
    measures = Measures()
    recorder = Recorder(store, measures)
    recorder.record(batch("0"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    recorder.record(batch("1"))  # waits 0.2 s for the lock, then gives way
    recorder.record(batch("2", "3"))
    assert recorder.backlog == 3
    assert last_served(store, "1") is None
    other.execute("ROLLBACK")
    other.close()
    recorder.start()
    recorder.close()
    assert recorder.backlog == 0
    assert all(last_served(store, name) is not None for name in "0123")
    assert measures.registry.get_sample_value("surespan_served_sets_total", {"outcome": "recorded"}) == 4


def test_the_backlog_is_bounded_and_says_what_it_drops(store: Store, path: Path) -> None:
    measures = Measures()
    recorder = Recorder(store, measures, max_backlog=3)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for name in "12345":
        recorder.postpone(batch(name))
    assert recorder.backlog == 3
    assert measures.registry.get_sample_value("surespan_served_sets_total", {"outcome": "dropped"}) == 2
    other.execute("ROLLBACK")
    other.close()
    recorder.close()
    assert last_served(store, "2") is None
    assert last_served(store, "3") is not None


def test_a_version_that_does_not_exist_blocks_nobody(store: Store) -> None:
    measures = Measures()
    recorder = Recorder(store, measures)
    wrong = ServedBatch.of("5.6", "<View/>", MODEL, (ServedTask("1", "Bob", None, None, answer(version=99)),))
    recorder.record(wrong)
    recorder.record(batch("2"))
    assert recorder.backlog == 0
    assert last_served(store, "1") is None
    assert last_served(store, "2") is not None
    assert measures.registry.get_sample_value("surespan_served_sets_total", {"outcome": "refused"}) == 1


def test_batches_that_wait_are_written_together(store: Store, path: Path) -> None:
    recorder = Recorder(store, Measures())
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    done = [recorder.postpone(batch(str(i))) for i in range(50)]
    other.execute("ROLLBACK")
    before = store.engine.pool.checkedout()
    commits = 0

    def count(_: object) -> None:
        nonlocal commits
        commits += 1

    event.listen(store.engine, "commit", count)
    recorder.start()
    assert all(each.wait(20) for each in done)
    recorder.close()
    other.close()
    assert commits == 1
    assert store.engine.pool.checkedout() == before
    assert all(last_served(store, str(i)) is not None for i in range(50))
