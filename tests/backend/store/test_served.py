from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from backend.cli import main
from backend.domain.ranked import Candidate, RankedList, one_unit
from backend.domain.records import Served, TextSpan
from backend.errors import StoreConflict
from backend.store import Store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.events import EventOutcome, process_events, store_event
from backend.store.packed_lists import pack_ranked, unpack_ranked
from backend.store.projects import ensure_model, ensure_project, ensure_task, list_projects, load_project, load_tasks
from backend.store.retention import forget_project, purge_events, purge_served, purge_texts
from backend.store.served import record_served, served_before
from backend.store.tables import Event, ServedSet, Task

START = datetime(2026, 1, 1, tzinfo=UTC)
CLASSES = ("PER", "LOC", "日本")

SPANS = st.builds(TextSpan, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.sampled_from(CLASSES))
NUMBERS = st.floats(allow_nan=False)
RANKED = st.lists(st.tuples(NUMBERS, st.lists(SPANS, max_size=4)), max_size=6).flatmap(
    lambda rows: st.builds(
        RankedList,
        classes=st.just(CLASSES),
        log_probabilities=st.just(tuple(number for number, _ in rows)),
        labelings=st.just(tuple(tuple(spans) for _, spans in rows)),
        exhausted=st.booleans(),
        candidates=st.lists(
            st.builds(Candidate, st.integers(0, 99), st.integers(0, 99), st.tuples(*[NUMBERS] * 3)), max_size=3
        ).map(tuple),
    )
)


@given(RANKED)
def test_ranked_lists_come_back_exactly(ranked: RankedList) -> None:
    (unit,) = unpack_ranked(pack_ranked(one_unit(ranked))).units
    back = unit.ranked
    assert back == ranked
    assert np.array_equal(
        np.array(back.log_probabilities).view(np.uint64), np.array(ranked.log_probabilities).view(np.uint64)
    )


def test_ranked_lists_are_compact() -> None:
    spans = [TextSpan(10 * i, 10 * i + 5, CLASSES[i % 3]) for i in range(20)]
    labelings = tuple(tuple(span for j, span in enumerate(spans) if j != i) for i in range(20)) * 5
    ranked = RankedList(CLASSES, tuple(-0.1 * i for i in range(100)), labelings, exhausted=False)
    assert len(pack_ranked(one_unit(ranked))) < 2000  # 1,900 spans in 100 labelings


@pytest.mark.parametrize(
    "damaged", [b"", b"\x07" * 40, pack_ranked(one_unit(RankedList((), (), (), exhausted=True)))[:-3]]
)
def test_damaged_lists_are_refused(damaged: bytes) -> None:
    with pytest.raises(StoreConflict, match="expected a ranked list of format"):
        unpack_ranked(damaged)


def test_a_list_needs_a_probability_per_labeling() -> None:
    with pytest.raises(ValueError, match="expected one probability per labeling, got 1 for 0"):
        pack_ranked(one_unit(RankedList(("PER",), (0.0,), (), exhausted=True)))


def prepare(store: Store, tasks: int) -> tuple[int, int, list[int]]:
    with store.write() as session:
        project = ensure_project(session, "1.1").id
        model = ensure_model(session, "m", "0" * 64, classes=["PER"]).id
        ids = [ensure_task(session, project, external_id=str(i), text=f"text {i}").id for i in range(tasks)]
    return project, model, ids


def served(task: int, model: int, day: float, **more: object) -> Served:
    plain = Served(
        task_id=task,
        model_id=model,
        version_id=None,
        shadow=False,
        stratum="en/1-10",
        pool="en",
        guarantee="borrowed",
        n=12,
        tau=math.inf,
        is_open=True,
        set_size=None,
        shown=3,
        ranked=b"\x00\x01",
        served_at=START + timedelta(days=day),
    )
    return dataclasses.replace(plain, **more)  # type: ignore[arg-type]


def test_what_the_annotator_had_in_view(store: Store) -> None:
    _, model, (one, two) = prepare(store, 2)
    first, blind, last = (
        served(one, model, 1),
        served(one, model, 2, shadow=True),
        served(one, model, 3, set_size=0, is_open=False, tau=0.5),
    )
    with store.write() as session:
        assert record_served(session, [first, blind, last, served(two, model, 2)]) == 4
        assert record_served(session, []) == 0
    with store.read() as session:
        assert served_before(session, one, at=START) is None
        found = served_before(session, one, at=START + timedelta(days=2))
        assert found is not None
        assert dataclasses.replace(found, id=None) == blind
        shown = served_before(session, one, at=START + timedelta(days=2.5), shadow=False, model_id=model)
        assert shown is not None
        assert dataclasses.replace(shown, id=None) == first
        newest = served_before(session, one, at=START + timedelta(days=9))
        assert newest is not None
        assert dataclasses.replace(newest, id=None) == last


def test_old_sets_go_in_batches_along_the_index(store: Store) -> None:
    _, model, (task,) = prepare(store, 1)
    with store.write() as session:
        record_served(session, [served(task, model, day) for day in range(25)])
    assert purge_served(store, before=START + timedelta(days=20), batch=7) == 20
    assert purge_served(store, before=START + timedelta(days=20)) == 0
    with store.read() as session:
        assert session.execute(sa.select(sa.func.count()).select_from(ServedSet)).scalar_one() == 5


def test_texts_go_and_the_task_stays(store: Store) -> None:
    project, _, tasks = prepare(store, 5)
    with store.write() as session:
        session.execute(sa.update(Task).where(Task.id.in_(tasks[:3])).values(created_at=START))
    assert purge_texts(store, before=START + timedelta(days=1), batch=2) == 3
    assert purge_texts(store, before=START + timedelta(days=1)) == 0
    with store.write() as session:
        again = ensure_task(session, project, external_id="0", text="text 0")
        assert (again.id, again.text) == (tasks[0], None)
        assert [task.text for task in load_tasks(session, tasks).values()].count(None) == 3


def fail(*_: object) -> EventOutcome:
    raise ValueError("never")


def test_dead_events_go_when_texts_must(store: Store) -> None:
    for number in range(2):
        store_event(store, {"action": "X", "annotation": {"id": number}}, received_at=START + timedelta(days=number))
    process_events(store, fail, worker="w", hopeless=(ValueError,))
    assert purge_events(store, before=START + timedelta(days=9)) == 0
    assert purge_events(store, before=START + timedelta(days=1), dead=True) == 1


def test_a_project_is_forgotten_with_all_that_names_it(store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    project, model, tasks = prepare(store, 2)
    with store.write() as session:
        record_served(session, [served(tasks[0], model, 1)])
        record = load_project(session, project)
        other = ensure_project(session, "88.1").id
        ensure_tasks(session, other, [NewTask("1", "kept")])
    for key in (record.key, "88"):
        store_event(store, {"action": "X", "annotation": {"id": 1}, "project": {"id": int(key)}})
    monkeypatch.setenv("SURESPAN_DATABASE_URL", url)
    asked = CliRunner().invoke(main, ["db", "forget", "--project", record.key], input="n\n")
    assert asked.exit_code == 1
    done = CliRunner().invoke(main, ["db", "forget", "--project", record.key, "--yes"])
    assert done.exit_code == 0, done.output
    assert "has been deleted, with 1 deliveries" in done.output
    with store.read() as session:
        assert [each.id for each in list_projects(session)] == [other]
        assert session.execute(sa.select(Task.text)).scalars().all() == ["kept"]
        assert session.execute(sa.select(Event.project_key)).scalars().all() == ["88"]
        assert session.execute(sa.select(sa.func.count()).select_from(ServedSet)).scalar_one() == 0
    again = CliRunner().invoke(main, ["db", "forget", "--project", record.key, "--yes"])
    assert again.exit_code == 1
    assert "expected a project of this database" in again.output
    with store.write() as session:
        twin = ensure_project(session, "88.2")
        forgotten = forget_project(session, load_project(session, other))
    assert forgotten == 0, "what waits may be the newer project's"
    with store.read() as session:
        assert [each.id for each in list_projects(session)] == [twin.id]


def test_only_finished_events_go(store: Store) -> None:
    for number in range(6):
        store_event(store, {"action": "X", "annotation": {"id": number}}, received_at=START + timedelta(days=number))
    process_events(
        store, lambda _s, event: EventOutcome.DONE if event.id % 2 else EventOutcome.SKIPPED, worker="w", limit=4
    )
    assert purge_events(store, before=START + timedelta(days=3), batch=1) == 3
    with store.read() as session:
        assert session.execute(sa.select(Event.state).order_by(Event.id)).scalars().all() == [
            "skipped",
            "pending",
            "pending",
        ]
