"""The review queue on both databases: its order, what leaves it and comes back, blind tasks, leases."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from backend.calibration.order import record_order, record_sampling
from backend.domain.priority import priority_of, review_value
from backend.domain.ranked import Candidate, RankedList, one_unit
from backend.domain.records import AnnotationRecord, Draw, ProjectRecord, Served
from backend.domain.streams import Order, uniforms
from backend.errors import StoreConflict
from backend.review.queue import claim, fill_queue, review_queue
from backend.settings import load_settings
from backend.store import Store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.labels import delete_annotation, delete_tasks, record_annotation
from backend.store.packed_lists import pack_ranked
from backend.store.projects import ensure_model, ensure_project
from backend.store.queue import QueuedTask, claim_tasks, next_tasks, release_claims
from backend.store.sampling import current_order
from backend.store.schema import downgrade, upgrade
from backend.store.served import record_served
from backend.store.state import ensure_salt
from backend.store.tables import QueueEntry
from tests.support.earlier_lists import pack_as_earlier

NOW = datetime.now(UTC)
BEFORE, LATER = NOW - timedelta(hours=2), NOW + timedelta(hours=1)
SETTINGS = load_settings(at_work_minutes=60)


@dataclass(frozen=True)
class Desk:
    """A project with tasks that nobody has labelled."""

    store: Store
    project: ProjectRecord
    model: int
    tasks: list[int]

    def serve(self, number: int, p: float = 0.5, **changes: Any) -> None:
        with self.store.write() as session:
            opened = [self.tasks[number]] if changes.pop("opened", False) else []
            record_served(session, [served(self.tasks[number], self.model, p, **changes)], opened=opened)

    def queue(self, limit: int = 50, idle_since: datetime = NOW) -> list[QueuedTask]:
        with self.store.read() as session:
            return next_tasks(session, self.project.id, model_id=self.model, limit=limit, idle_since=idle_since)

    def names(self, idle_since: datetime = NOW) -> list[str]:
        return [each.task for each in self.queue(idle_since=idle_since)]

    def label(self, number: int, annotation: int | None = None, **changes: Any) -> None:
        with self.store.write() as session:
            task = self.tasks[number]
            record_annotation(
                session, task, AnnotationRecord(annotation or task, changes.pop("at", NOW), (), **changes)
            )


def served(task: int, model: int, p: float = 0.5, **changes: Any) -> Served:
    # As an earlier release wrote it, so that it is still there after a way down and up.
    ranked = pack_as_earlier(one_unit(RankedList(("PER",), (math.log(p),), ((),), exhausted=False)))
    row = Served(task, model, None, False, "de/1-10", "de/*", "own", 100, 1.0, False, 1, 1, ranked, BEFORE)
    return replace(row, **changes)


@pytest.fixture
def desk(store: Store) -> Desk:
    with store.write() as session:
        project = ensure_project(session, "1.1")
        model = ensure_model(session, "m", "ab", classes=["PER"]).id
        tasks = [NewTask(str(i), f"text {i}", draw=Draw("queue", i / 10, 0.9, blind=False)) for i in range(8)]
        ids = [kept.id for kept in ensure_tasks(session, project.id, tasks)]
    return Desk(store, project, model, ids)


def test_the_most_worth_a_look_comes_first_and_empty_and_open_sets_before_all(desk: Desk) -> None:
    candidates = (Candidate(0, 3, (0.4,)),)
    doubtful = RankedList(("PER",), (math.log(0.5),), ((),), exhausted=False, candidates=candidates)
    desk.serve(0, 0.4)
    desk.serve(1, ranked=pack_ranked(one_unit(doubtful)))
    desk.serve(2, 0.99, set_size=0)
    desk.serve(3, 0.9, is_open=True, set_size=None)
    desk.serve(4, 0.1)
    desk.serve(4, 0.95)  # the last one counts
    desk.serve(5, 0.01, priority=priority_of(0.2, first=False))  # what it was served with, flags and all
    queue = desk.queue()
    assert [each.task for each in queue] == ["3", "2", "1", "0", "5", "4"]
    assert queue[2].value == pytest.approx(review_value(one_unit(doubtful))) == pytest.approx(math.log(2) + 0.4)
    assert queue[2].probability == pytest.approx(0.5)
    assert (queue[0].is_open, queue[0].set_size, queue[1].set_size) == (True, None, 0)
    assert [each.task for each in desk.queue(limit=2)] == ["3", "2"]
    with desk.store.read() as session:
        assert next_tasks(session, desk.project.id, model_id=desk.model + 1, limit=9, idle_since=NOW) == []


def test_flags_and_novelty_add_to_the_worth() -> None:
    ranked = RankedList(("PER",), (math.log(0.5),), ((),), exhausted=False)
    plain = review_value(one_unit(ranked))
    assert plain < review_value(one_unit(ranked), novelty=0.9) < review_value(one_unit(ranked), flags=2, novelty=0.9)


def test_labels_deletions_and_withdrawals_move_tasks_out_and_back(desk: Desk) -> None:
    for number in range(4):
        desk.serve(number, 0.2 + number / 10)
    assert desk.names() == ["0", "1", "2", "3"]
    desk.label(0)
    desk.label(1, was_cancelled=True)  # skipped: nobody has looked at it in earnest, but not at once again
    assert desk.names() == ["2", "3"]
    assert desk.names(LATER) == ["1", "2", "3"]
    desk.serve(0, 0.01)  # served again: it stays done
    assert desk.names() == ["2", "3"]
    with desk.store.write() as session:
        delete_annotation(session, desk.project.id, annotation_id=desk.tasks[0], at=LATER)
        delete_tasks(session, desk.project.id, external_ids=["2"], at=LATER)
    assert desk.names(LATER) == ["0", "1", "3"]
    assert desk.queue()[0].probability == pytest.approx(0.01)  # as it was served last
    desk.serve(2, 0.001)
    assert desk.names(LATER) == ["0", "1", "3"]


def test_a_skipped_task_leaves_its_lease_and_rests(desk: Desk) -> None:
    for number in range(3):
        desk.serve(number, 0.1 + number / 10)

    def lease(who: str, at_work: float = 60) -> list[str]:
        settings = load_settings(at_work_minutes=at_work)
        options: dict[str, Any] = {"model_id": desk.model, "settings": settings, "who": who, "limit": 1}
        return [each.task for each in claim(desk.store, desk.project, **options, accept_review=True)]

    assert lease("ann") == ["0"]
    desk.label(0, was_cancelled=True)
    assert lease("ann") == ["1"]
    desk.label(1, was_cancelled=True, annotation=77)
    desk.label(1, was_cancelled=True, annotation=78)  # by another annotator: the label is a skip still
    assert lease("bob") == ["2"]
    assert lease("ann") == []
    assert lease("ann", at_work=0) == ["0"], "nothing rests, and a lease is one nevertheless"
    assert lease("cem", at_work=0) == ["1"]


def test_an_edited_task_stands_there_once(desk: Desk) -> None:
    desk.serve(0, 0.3)
    with desk.store.write() as session:
        (new,) = ensure_tasks(session, desk.project.id, [NewTask("0", "another text")])
        record_served(session, [served(new.id, desk.model, 0.9)])
    (row,) = desk.queue()
    assert (row.task, row.probability) == ("0", pytest.approx(0.9))


def test_a_blind_task_stands_where_it_was_placed_and_nothing_of_it_is_kept(desk: Desk) -> None:
    desk.serve(0, 0.2)
    desk.serve(1, 0.9)
    place = priority_of(0.5, first=False)
    for p, size in ((0.0001, 0), (0.9999, 1)):  # whatever the model thinks of it
        desk.serve(2, p, shadow=True, set_size=size, priority=place)
        queue = desk.queue()
        assert [each.task for each in queue] == ["0", "2", "1"]
        row = queue[1]
        assert row.blind
        assert (row.value, row.probability, row.set_size, row.is_open, row.stratum) == (None,) * 5
    with desk.store.read() as session:
        kept = session.execute(sa.select(QueueEntry).where(QueueEntry.blind.is_(True))).scalar_one()
        assert (kept.probability, kept.set_size, kept.is_open, kept.stratum) == (None,) * 4


def test_tasks_that_somebody_has_open_are_left_out_for_a_while(desk: Desk) -> None:
    desk.serve(0, 0.2, opened=True, served_at=NOW)
    desk.serve(1, 0.3, opened=True, served_at=NOW - timedelta(minutes=90))
    with desk.store.read() as session:
        found = review_queue(session, desk.project.id, model_id=desk.model, settings=SETTINGS, limit=9)
    assert [each.task for each in found] == ["1"]
    desk.serve(0, 0.2, served_at=NOW + timedelta(seconds=1))  # refreshed in bulk: whoever has it open has it still
    with desk.store.read() as session:
        found = review_queue(session, desk.project.id, model_id=desk.model, settings=SETTINGS, limit=9)
    assert [each.task for each in found] == ["1"]


def test_leases_keep_annotators_apart_and_run_out(desk: Desk) -> None:
    for number in range(6):
        desk.serve(number, 0.1 + number / 10)

    def lease(who: str, limit: int, until: datetime = LATER) -> list[str]:
        with desk.store.write() as session:
            found = claim_tasks(
                session, desk.project.id, model_id=desk.model, who=who, limit=limit, until=until, idle_since=NOW
            )
            assert all(each.claimed_by == who and each.claimed_until == until for each in found)
            return [each.task for each in found]

    assert lease("ann", 2) == ["0", "1"]
    assert lease("bob", 2) == ["2", "3"]
    assert lease("ann", 2) == ["0", "1"]  # asked again: the same
    assert lease("ann", 3) == ["0", "1", "4"]
    assert desk.names() == ["5"]
    desk.serve(0, 0.15)
    desk.serve(5, 0.01)  # served anew: leases stay
    desk.label(1)  # done
    assert lease("ann", 2, NOW - timedelta(minutes=1)) == ["0", "4"]  # a lease that is over already
    assert desk.names() == ["5", "0", "4"]
    assert lease("bob", 5) == ["5", "0", "2", "3", "4"]
    with desk.store.write() as session:
        assert release_claims(session, desk.project.id, who="bob") == 5
        assert release_claims(session, desk.project.id, who="bob") == 0
    assert desk.names() == ["5", "0", "2", "3", "4"]


def test_annotators_who_ask_at_once_get_different_tasks(desk: Desk) -> None:
    with desk.store.write() as session:
        tasks = ensure_tasks(session, desk.project.id, [NewTask(f"n{i}", f"n {i}") for i in range(60)])
        record_served(session, [served(kept.id, desk.model, 0.5) for kept in tasks])
        record_order(session, desk.project.id, order=Order.REVIEW, at=NOW, source="test")
    got: dict[str, list[str]] = {}
    start = threading.Barrier(4)

    def ask(who: str) -> None:
        with Store(desk.store.url) as own:  # as another process would
            start.wait()
            for limit in (5, 10, 15):
                found = claim(own, desk.project, model_id=desk.model, settings=SETTINGS, who=who, limit=limit)
                got[who] = [each.task for each in found]

    threads = [threading.Thread(target=ask, args=(who,)) for who in ("ann", "bob", "cem", "dee")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(found) for found in got.values()] == [15] * 4
    assert len({task for found in got.values() for task in found}) == 60


def test_who_follows_the_queue_gives_up_the_random_order_and_must_say_so(desk: Desk) -> None:
    desk.serve(0)
    with desk.store.write() as session:
        record_order(session, desk.project.id, order=Order.UNIFORM, at=BEFORE, source="test")
    wanted: dict[str, Any] = {"model_id": desk.model, "settings": SETTINGS, "who": "ann", "limit": 1}
    with pytest.raises(StoreConflict, match=r"got uniform order.*only blind tasks"):
        claim(desk.store, desk.project, **wanted)
    assert [each.task for each in claim(desk.store, desk.project, **wanted, accept_review=True)] == ["0"]
    assert [each.task for each in claim(desk.store, desk.project, **wanted)] == ["0"]  # known by now


def test_the_order_of_the_queue_stays_whatever_the_project_says_later(desk: Desk) -> None:
    with desk.store.write() as session:
        record_sampling(session, desk.project.id, sampling="Uniform sampling", at=BEFORE, source="webhook")
    desk.serve(0)
    options: dict[str, Any] = {"model_id": desk.model, "settings": SETTINGS, "who": "ann", "limit": 1}
    assert claim(desk.store, desk.project, **options, accept_review=True)
    with desk.store.write() as session:
        record_sampling(session, desk.project.id, sampling="Uniform sampling", at=LATER, source="webhook")
        assert current_order(session, desk.project.id) is Order.REVIEW
    assert claim(desk.store, desk.project, **options)


def test_tasks_that_waited_before_the_upgrade_are_filled_in(desk: Desk) -> None:
    """Rows of the previous release have no score; blind ones get the place that was drawn for them."""
    with desk.store.write() as session:
        salt = ensure_salt(session, desk.project.id)
        tasks = [NewTask(f"b{i}", f"b {i}", draw=Draw("audit", i / 50, 0.1, blind=True)) for i in range(30)]
        blind = [kept.id for kept in ensure_tasks(session, desk.project.id, tasks)]
        record_served(session, [served(task, desk.model, 0.001, shadow=True) for task in blind])
    for number in range(6):
        desk.serve(number, 0.1 + number / 10, is_open=number == 5, set_size=None if number == 5 else 1)
    desk.label(4)
    before = [each for each in desk.names() if not each.startswith("b")]
    downgrade(desk.store, "0007")
    upgrade(desk.store)
    assert desk.queue() == []
    assert fill_queue(desk.store, page=7) == 35
    assert fill_queue(desk.store) == 0
    queue = desk.queue()
    assert [each.task for each in queue if not each.blind] == before == ["5", "0", "1", "2", "3"]
    scores = sorted(priority_of(-math.log(0.1 + n / 10), first=n == 5) for n in (0, 1, 2, 3, 4, 5))
    with desk.store.read() as session:
        columns = sa.select(QueueEntry.task_id, QueueEntry.priority, QueueEntry.probability)
        rows = session.execute(columns.where(QueueEntry.task_id.in_(blind))).all()
    for row in rows:
        place = uniforms(salt, "1.1", f"b{blind.index(row.task_id)}").v
        assert row.priority == pytest.approx(scores[int(place * 6)])
        assert row.probability is None
