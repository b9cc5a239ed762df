"""Decisions, plans and shadows in either database; who made an annotation; what becomes of labels of acceptance."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backend.calibration.order import record_order
from backend.domain.records import AcceptanceRecord, AnnotationRecord, Draw, Served, TextSpan
from backend.domain.streams import LEFT_OVER, Order, exclusion_of
from backend.errors import StoreConflict
from backend.store import Store
from backend.store.acceptance import (
    PLANNED,
    SENT,
    TAKEN_BACK,
    Shadow,
    acceptable,
    accepted_page,
    act_on,
    blind_lists,
    count_accepted,
    count_undrawn,
    first_acceptance,
    is_accepted,
    leave_alone,
    list_acceptances,
    load_doubts,
    load_shadows,
    mark_withdrawn,
    name_annotation,
    passed_over,
    record_acceptance,
    take_back,
)
from backend.store.batches import NewTask, ensure_tasks
from backend.store.labels import current_label, delete_annotation, record_annotation, unscored_labels
from backend.store.projects import ensure_model, ensure_project
from backend.store.queue import claim_tasks, next_tasks
from backend.store.sampling import load_history
from backend.store.served import record_served
from tests.support.populated import LIST

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TOMORROW = NOON + timedelta(days=1)
PER = (TextSpan(0, 1, "PER"),)
DECISION: dict[str, Any] = {
    "version_id": 3,
    "promise": "all",
    "max_error": "0.05",
    "delta": 0.025,
    "labels": 125,
    "tasks": 8,
    "level": 0.5,
    "share": 0.7,
    "below": 80,
    "lost": 1.0,
    "bound": 0.04,
    "why": "",
    "decided_by": "me",
}


@dataclass(frozen=True)
class World:
    store: Store
    project: int
    model: int
    tasks: list[int]

    def decide(self, **changes: Any) -> AcceptanceRecord:
        with self.store.write() as session:
            number = len(list_acceptances(session, self.project)) + 1
            values = DECISION | {"number": number, "model_id": self.model} | changes
            return record_acceptance(session, self.project, values)

    def acceptable(self, level: float = 0.5, idle_since: datetime = TOMORROW) -> list[str]:
        with self.store.read() as session:
            found = acceptable(
                session, self.project, model_id=self.model, version_id=None, level=level, idle_since=idle_since
            )
        return [name for _, name in found]

    def annotate(self, task: int, number: int = 1, *, at: datetime = NOON, **more: Any) -> None:
        with self.store.write() as session:
            record_annotation(session, task, AnnotationRecord(number, at, PER, created_at=at, **more))

    def label(self, task: int) -> Any:
        with self.store.read() as session:
            return current_label(session, task)


@pytest.fixture
def world(store: Store) -> World:
    """Eight tasks that were shown: number 1 has a flag, 2 is doubtful, 3 is blind, 4 was never drawn."""
    with store.write() as session:
        project = ensure_project(session, "1.1")
        model = ensure_model(session, "m", "ab" * 32, classes=["PER"])
        record_order(session, project.id, order=Order.UNIFORM, at=NOON, source="sync")
        draws = [Draw("uniform", i / 8, 1.0, blind=i == 3) if i != 4 else None for i in range(8)]
        kept = ensure_tasks(
            session, project.id, [NewTask(str(i), f"a{i}", draw=draws[i], created_at=NOON) for i in range(8)]
        )
        served = [
            Served(
                task_id=task.id,
                model_id=model.id,
                version_id=None,
                shadow=i == 3,
                stratum="en/1-10",
                pool="en/*",
                guarantee="own",
                n=100,
                tau=1.0,
                is_open=False,
                set_size=1,
                shown=1,
                ranked=LIST,
                served_at=NOON,
                priority=0.5,
                flags=int(i == 1),
                doubt=0.9 if i == 2 else 0.1 + i / 100,
            )
            for i, task in enumerate(kept)
        ]
        record_served(session, served)
    return World(store, project.id, model.id, [task.id for task in kept])


def test_left_alone_are_flagged_doubtful_blind_undrawn_labelled_skipped_and_leased_tasks(world: World) -> None:
    assert world.acceptable() == ["0", "5", "6", "7"]
    world.annotate(world.tasks[5])
    world.annotate(world.tasks[6], 2, was_cancelled=True)
    assert world.acceptable() == ["0", "7"]
    with world.store.write() as session:
        until = datetime.now(UTC) + timedelta(hours=1)
        claimed = claim_tasks(
            session, world.project, model_id=world.model, who="a", limit=1, until=until, idle_since=NOON
        )
    assert set(world.acceptable()) == {"0", "7"} - {claimed[0].task}


def test_only_sets_of_the_version_that_serves_are_accepted(world: World) -> None:
    with world.store.read() as session:
        options = {"model_id": world.model, "level": 0.5, "idle_since": NOON}
        assert not acceptable(session, world.project, version_id=4, **options)  # type: ignore[arg-type]
        assert sorted(load_doubts(session, world.project, model_id=world.model)) == pytest.approx(
            [0.1, 0.11, 0.13, 0.14, 0.15, 0.16, 0.17, 0.9]
        )
        assert sorted(passed_over(session, world.project)) == ["0", "1", "2", "5", "6", "7"]
        assert count_undrawn(session, world.project) == 1
        assert [task for task, _ in blind_lists(session, world.project, model_id=world.model, level=0.5)] == [
            world.tasks[3]
        ]
        assert not blind_lists(session, world.project, model_id=world.model, level=0.12)


def test_a_number_is_spent_once(world: World) -> None:
    first = world.decide()
    assert (first.number, first.level, first.delta) == (1, 0.5, 0.025)
    with pytest.raises(StoreConflict), world.store.write() as session:
        record_acceptance(session, world.project, DECISION | {"number": 1, "model_id": world.model})
    with world.store.read() as session:
        assert [each.number for each in list_acceptances(session, world.project)] == [1]
        assert first_acceptance(session, world.project) is None


def act(world: World, decision: AcceptanceRecord, numbers: list[int]) -> dict[int, str]:
    unique = {world.tasks[i]: str(uuid.uuid5(uuid.NAMESPACE_URL, f"{decision.id}/{i}")) for i in numbers}
    with world.store.write() as session:
        act_on(session, decision, tasks=unique, shadows=[Shadow(world.tasks[3], PER, 1)], account=9)
    return unique


def test_planning_twice_is_planning_once_and_a_task_is_accepted_once_at_a_time(world: World) -> None:
    first, second = world.decide(), world.decide()
    unique = act(world, first, [0, 5])
    act(world, first, [0, 5, 6])
    act(world, second, [0, 7])
    with world.store.read() as session:
        assert count_accepted(session, world.project) == {first.id: {PLANNED: 3}, second.id: {PLANNED: 1}}
        assert [each.unique_id for each in accepted_page(session, first.id, state=PLANNED)][:2] == list(unique.values())
        assert load_shadows(session, first.id) == [Shadow(world.tasks[3], PER, 1)]
    assert world.acceptable() == []
    with world.store.write() as session:
        leave_alone(session, first.id, [world.tasks[5]])
        name_annotation(session, unique[world.tasks[0]], annotation_id=70)
        leave_alone(session, first.id, [world.tasks[0]])  # it is on the server: too late
        take_back(session, first.id, world.tasks[6])
        mark_withdrawn(session, [first.id], why="drift")
    with world.store.read() as session:
        assert count_accepted(session, world.project)[first.id] == {SENT: 1, TAKEN_BACK: 1}
        assert [each.withdrawn_why for each in list_acceptances(session, world.project)] == ["drift", None]
    assert world.acceptable() == ["5", "6"]


def test_an_annotation_is_known_by_its_number_its_unique_id_or_who_made_it(world: World) -> None:
    unique = act(world, world.decide(), [0])[world.tasks[0]]

    def ours(
        task: str = "0", annotation: int = 70, uid: str | None = None, by: int | None = None, *, timed: bool
    ) -> bool:
        with world.store.read() as session:
            return is_accepted(
                session, world.project, task=task, annotation_id=annotation, unique_id=uid, by=by, timed=timed
            )

    assert ours(uid=unique, timed=True)
    assert not ours(uid="\x00\ud800", timed=True)
    assert ours(by=9, timed=False)
    assert not ours(by=9, timed=True)  # somebody works with the service's account
    assert not ours(by=8, timed=False)
    assert not ours(task="5", by=9, timed=False)
    with world.store.write() as session:
        name_annotation(session, unique, annotation_id=70)
    assert ours(timed=True)
    assert not ours(annotation=71, by=9, timed=False)  # another one of the same task
    with world.store.write() as session:
        take_back(session, 1, world.tasks[0])
    assert not ours(timed=True)  # its number may be given again
    assert ours(uid=unique, timed=True)


def test_an_accepted_annotation_is_nobodys_label_also_after_an_edit(world: World) -> None:
    task = world.tasks[0]
    world.annotate(task, 70, accepted=True)
    assert world.label(task).exclusion == "accepted"
    world.annotate(task, 70, at=NOON + timedelta(hours=1), lead_time=3.0)  # a person edited it; the event says nothing
    assert world.label(task).exclusion == "accepted"
    assert world.label(task).annotation.accepted
    with world.store.read() as session:
        waiting = next_tasks(
            session, world.project, model_id=world.model, limit=20, idle_since=NOON + timedelta(days=1)
        )
        assert "0" not in {each.task for each in waiting}
        assert not unscored_labels(session, world.project, model_id=world.model)
    world.annotate(task, 71, at=NOON + timedelta(hours=2))  # a person's own
    assert world.label(task).exclusion is None
    assert world.label(task).annotation.annotation_id == 71


def test_a_withdrawn_annotation_leaves_the_task_waiting_and_its_number_free(world: World) -> None:
    task = world.tasks[0]
    world.annotate(task, 70, accepted=True)
    with world.store.write() as session:
        delete_annotation(session, world.project, annotation_id=70, at=NOON + timedelta(minutes=1))
    assert world.label(task).exclusion == "withdrawn"
    with world.store.read() as session:
        waiting = next_tasks(
            session, world.project, model_id=world.model, limit=20, idle_since=NOON + timedelta(days=1)
        )
        assert "0" in {each.task for each in waiting}
    world.annotate(task, 70, at=NOON + timedelta(hours=1))
    assert world.label(task).exclusion is None


def test_after_the_first_acceptance_only_drawn_blind_tasks_are_evidence(world: World) -> None:
    with world.store.read() as session:
        before = load_history(session, world.project)
    act(world, world.decide(), [0])
    with world.store.read() as session:
        history = load_history(session, world.project)
    assert history.accepted is not None
    later = history.accepted + timedelta(minutes=1)
    plain, blind = Draw("uniform", 0.1, 1.0, blind=False), Draw("uniform", 0.1, 1.0, blind=True)
    assert exclusion_of(plain, before, later) is None
    assert exclusion_of(plain, history, later) == LEFT_OVER
    assert exclusion_of(blind, history, later) is None
    assert exclusion_of(plain, history, history.accepted - timedelta(minutes=1)) is None
