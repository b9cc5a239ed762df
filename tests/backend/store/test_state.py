from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import permutations

import sqlalchemy as sa

from backend.calibration.order import declare_shuffled, record_order, record_sampling
from backend.domain.streams import Order
from backend.store import Store
from backend.store.projects import ensure_project, ensure_task
from backend.store.sampling import QUEUE, current_order, follows_queue, load_history
from backend.store.state import ensure_salt, get_state, set_state, update_state
from backend.store.tables import Job, SamplingPeriod
from backend.store.training import record_training_tasks, training_tasks

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def project(store: Store, uid: str = "1.2") -> int:
    return store.run(lambda session: ensure_project(session, uid).id)


def test_state_is_kept_by_project_and_name(store: Store) -> None:
    one, two = project(store), project(store, "2.3")
    with store.write() as session:
        assert get_state(session, one, "sync") is None
        set_state(session, one, "sync", {"cursor": [1, "a"]})
        set_state(session, one, "sync", {"cursor": 2})
        set_state(session, two, "sync", {"cursor": 3})
        assert update_state(session, one, "sync", lambda value: value | {"runs": value.get("runs", 0) + 1})["runs"] == 1
        assert update_state(session, one, "new", lambda value: {"was": value}) == {"was": {}}
    with store.read() as session:
        assert get_state(session, one, "sync") == {"cursor": 2, "runs": 1}
        assert get_state(session, two, "sync") == {"cursor": 3}


def test_the_salt_is_made_once(store: Store) -> None:
    one, two = project(store), project(store, "2.3")
    salts = [store.run(lambda session, each=each: ensure_salt(session, each)) for each in (one, one, two)]
    assert salts[0] == salts[1] != salts[2]
    assert len(salts[0]) == 32


def test_labels_used_in_training_are_remembered_once(store: Store) -> None:
    number = project(store)
    with store.write() as session:
        tasks = [ensure_task(session, number, external_id=str(i), text=f"text {i}").id for i in range(5)]
        assert record_training_tasks(session, "hash", tasks[:3], purpose="training") == 3
        assert record_training_tasks(session, "hash", tasks[1:4], purpose="stopping") == 1
        assert training_tasks(session, "hash", tasks) == frozenset(tasks[:4])
        assert training_tasks(session, "other", tasks) == frozenset()
        assert training_tasks(session, "other", tasks[2:], ancestors=["older", "hash"]) == frozenset(tasks[2:4])
        assert training_tasks(session, "hash", []) == frozenset()


def test_sightings_of_an_order_do_not_depend_on_their_own_order(store: Store) -> None:
    news = [(0, "Uniform sampling"), (30, "Uniform sampling"), (40, "Uncertainty sampling"), (100, "Uniform sampling")]
    seen = set()
    for number, order in enumerate(permutations(news)):
        uid = f"{number}.7"
        with store.write() as session:
            row = ensure_project(session, uid)
            for minutes, sampling in order:
                record_sampling(
                    session, row.id, sampling=sampling, at=START + timedelta(minutes=minutes), source="webhook"
                )
            seen.add(load_history(session, row.id).sightings)
            assert current_order(session, row.id) is Order.UNIFORM
    assert len(seen) == 1
    assert [each.order for each in seen.pop()] == [Order.UNIFORM, Order.UNIFORM, Order.REVIEW, Order.UNIFORM]


def test_rows_are_judged_again_when_the_past_looks_different(store: Store) -> None:
    number = project(store)

    def saw(minutes: float, sampling: str) -> bool:
        moment = START + timedelta(minutes=minutes)
        with store.write() as session:
            changed = record_sampling(session, number, sampling=sampling, at=moment, source="webhook")
            waiting = session.execute(sa.select(Job).where(Job.kind == "reconsider", Job.state == "queued"))
            assert bool(waiting.scalars().all()) == changed
            session.execute(sa.delete(Job))
        return changed

    assert saw(0, "Uniform sampling")  # the first word about what was labelled before it
    assert not saw(0, "Uniform sampling")
    assert not saw(10, "Uniform sampling")
    assert not saw(5, "Uniform sampling")
    assert not saw(500, "Uniform sampling")
    assert not saw(300, "Uniform sampling")
    assert not saw(600, "Sampling by moon")
    assert saw(200, "Uncertainty sampling")
    assert not saw(700, "Uniform sampling")
    assert saw(-10, "Uniform sampling")
    assert saw(800, "Sequential sampling")


def test_a_declaration_is_judged_once(store: Store) -> None:
    number = project(store)
    with store.write() as session:
        record_order(session, number, order=Order.SEQUENTIAL, at=START, source="connect")
        session.execute(sa.delete(Job))
        assert current_order(session, number) is Order.SEQUENTIAL
        declare_shuffled(session, number, shuffled=False)
        assert session.execute(sa.select(Job)).scalars().all() == []
        declare_shuffled(session, number, shuffled=True)
        assert [job.key for job in session.execute(sa.select(Job)).scalars()] == ["reconsider:1.2"]
        assert current_order(session, number) is Order.SHUFFLED
        assert load_history(session, number).shuffled


def test_who_follows_the_queue_works_in_review_order_whatever_the_project_says(store: Store) -> None:
    number = project(store)
    with store.write() as session:
        record_sampling(session, number, sampling="Uncertainty sampling", at=START, source="webhook")
        assert not follows_queue(session, number)
        record_order(session, number, order=Order.REVIEW, at=START, source=QUEUE)  # within a slot that is known
        assert follows_queue(session, number)
        for minutes in (0, 1, 30):
            moment = START + timedelta(minutes=minutes)
            record_sampling(session, number, sampling="Uncertainty sampling", at=moment, source="webhook")
            record_sampling(session, number, sampling="Uniform sampling", at=moment, source="webhook")
        assert follows_queue(session, number)
        assert current_order(session, number) is Order.REVIEW
        declare_shuffled(session, number, shuffled=True)
        assert current_order(session, number) is Order.REVIEW


def test_a_busy_time_is_one_row(store: Store) -> None:
    number = project(store)
    with store.write() as session:
        for second in range(0, 600, 10):
            moment = START + timedelta(seconds=second)
            record_sampling(session, number, sampling="Uniform sampling", at=moment, source="webhook")
        rows = session.execute(sa.select(SamplingPeriod)).scalars().all()
        assert [(row.first_at, row.last_at) for row in rows] == [(START, START + timedelta(seconds=590))]
