from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.records import EventRecord
from backend.errors import InvalidEvent, LeaseLost, NotFound
from backend.store import Store
from backend.store.events import (
    MAX_ATTEMPTS,
    MAX_CLAIMS,
    EventOutcome,
    Turn,
    claim_event,
    fail_event,
    finish_event,
    inbox_depth,
    list_events,
    load_event,
    process_events,
    release_claims,
    replay_dead,
    replay_event,
    store_event,
    store_events,
)
from backend.store.redact import REDACTED
from backend.store.tables import Event


def about(
    annotation: int | list[int], *, project: object = 1, action: str = "ANNOTATION_UPDATED", **more: Any
) -> dict[str, Any]:
    subject: Any = {"id": annotation} if isinstance(annotation, int) else [{"id": each} for each in annotation]
    return {"action": action, "annotation": subject, "project": {"id": project}} | more


def done(_session: Session, _event: EventRecord) -> EventOutcome:
    return EventOutcome.DONE


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause ends by itself, however long the test takes."""
    monkeypatch.setattr("backend.store.events.database_now", lambda _session: datetime(2026, 6, 1, tzinfo=UTC))


def claim(store: Store, worker: str = "w", **options: Any) -> EventRecord | None:
    with store.write() as session:
        return claim_event(session, worker=worker, **options)


def make_due(store: Store) -> None:
    with store.write() as session:
        session.execute(sa.update(Event).values(due_at=datetime(2026, 1, 1, tzinfo=UTC)))


def recorder(seen: list[int]) -> Callable[[Session, EventRecord], EventOutcome]:
    def process(_session: Session, event: EventRecord) -> EventOutcome:
        seen.append(event.id)
        return EventOutcome.DONE

    return process


def test_a_delivery_is_kept_word_for_word_without_secrets(store: Store) -> None:
    payload = {
        "action": "ANNOTATION_CREATED",
        "zeta": [1, 1.5, -0.30000000000000004, 1e-300, True, None, "\x00\ud800 é 🙂\r\n", {"b": 1, "a": 2}],
        "annotation": {"id": 7, "result": [{"value": {"text": "the password is token", "token": "kept"}}]},
        "task": {"id": 3, "data": {"text": "x", "password": "kept: this is the annotator's text"}},
        "project": {
            "id": 1,
            "token": "T0KEN",
            "task_data_password": "pw",
            "task_data_login": "ann",
            "show_token": False,
        },
        "headers": [{"Authorization": "Basic x", "X-Api-Key": "k", "Accept": "*/*"}, {"cookie": None}],
    }
    event_id = store_event(store, payload)
    with store.read() as session:
        event = load_event(session, event_id)
        raw = session.execute(sa.select(Event.payload)).scalar_one()
    assert event is not None
    expected = json.loads(json.dumps(payload))
    expected["project"] |= {"token": REDACTED, "task_data_password": REDACTED}
    expected["headers"][0] |= {"Authorization": REDACTED, "X-Api-Key": REDACTED}
    assert event.payload == expected
    assert list(event.payload) == list(payload)
    assert "T0KEN" not in raw
    assert (event.action, event.project_key, event.ordering_key) == ("ANNOTATION_CREATED", "1", "a7")
    assert event.received_at.tzinfo is not None


@pytest.mark.parametrize("payload", [[], "text", 1, None])
def test_only_objects_are_events(store: Store, payload: object) -> None:
    with pytest.raises(InvalidEvent, match="expected a JSON object, got"):
        store_event(store, payload)


def test_too_deep_an_object_is_refused_not_crashed(store: Store) -> None:
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidEvent, match="nested too deeply"):
        store_event(store, {"x": deep})
    # Taken apart step by step: freeing so deep a list at once would recurse.
    while isinstance(deep, list):
        deep = deep.pop()


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"action": 3},
        {"project": None},
        {"project": []},
        {"action": "\x00\ud800", "project": "9.17"},
        {"annotation": {"id": "x"}},
    ],
)
def test_odd_objects_are_kept(store: Store, payload: dict[str, Any]) -> None:
    event_id = store_event(store, payload)
    with store.read() as session:
        event = load_event(session, event_id)
    assert event is not None
    assert event.payload == payload


@pytest.mark.parametrize(
    ("payload", "key"),
    [
        (about(5), "a5"),
        (about([5]), "a5"),
        (about([5, 6]), None),
        ({"action": "ANNOTATIONS_DELETED", "annotations": [{"id": 5}]}, "a5"),
        ({"action": "ANNOTATIONS_DELETED", "annotations": [{"id": 5}, {"id": 6}]}, None),
        ({"action": "TASKS_DELETED", "tasks": [{"id": 5}]}, "t5"),
        ({"action": "TASKS_CREATED", "tasks": [{"id": 5}, {"id": 6}]}, None),
        ({"action": "START_TRAINING"}, "project"),
    ],
)
def test_what_an_event_is_about(store: Store, payload: dict[str, Any], key: str | None) -> None:
    event_id = store_event(store, payload)
    with store.read() as session:
        event = load_event(session, event_id)
    assert event is not None
    assert event.ordering_key == key


def test_events_of_one_annotation_come_one_after_another(store: Store) -> None:
    first, second, other = (store_event(store, about(each)) for each in (1, 1, 2))
    held = claim(store)
    assert held is not None
    assert held.id == first
    beside = claim(store, "v")
    assert beside is not None
    assert beside.id == other
    assert claim(store, "u") is None
    finish_event(store, held, done)
    after = claim(store, "u")
    assert after is not None
    assert after.id == second


def test_an_event_about_several_waits_and_is_waited_for(store: Store) -> None:
    before, several, after = (store_event(store, about(each)) for each in (1, [1, 2], 3))
    elsewhere = store_event(store, about(3, project=2))
    first, other = claim(store), claim(store)
    assert first is not None
    assert other is not None
    assert (first.id, other.id) == (before, elsewhere)
    assert claim(store) is None
    finish_event(store, first, done)
    second = claim(store)
    assert second is not None
    assert second.id == several
    assert claim(store) is None
    finish_event(store, second, done)
    third = claim(store)
    assert third is not None
    assert third.id == after


@pytest.mark.usefixtures("stopped_clock")
def test_processing_and_its_effect_are_one(store: Store) -> None:
    event_id = store_event(store, about(1))

    def half(session: Session, _event: EventRecord) -> EventOutcome:
        session.execute(sa.update(Event).values(action="changed by a half-done handler"))
        raise RuntimeError("the model \x00 fell over")

    assert process_events(store, half, worker="w") == 1
    with store.read() as session:
        event = load_event(session, event_id)
    assert event is not None
    assert (event.state, event.attempts, event.action) == ("pending", 1, "ANNOTATION_UPDATED")
    assert event.error == "RuntimeError: the model ? fell over"


@pytest.mark.usefixtures("stopped_clock")
def test_failures_are_repeated_after_a_pause_then_set_aside_and_replayed(store: Store) -> None:
    poison, later = store_event(store, about(1, note="kept")), store_event(store, about(1))
    other = store_event(store, about(2))
    seen: list[int] = []

    def process(_session: Session, event: EventRecord) -> EventOutcome:
        if event.id == poison:
            raise ValueError("cannot be read")
        seen.append(event.id)
        return EventOutcome.DONE

    for attempt in range(1, MAX_ATTEMPTS + 1):
        process_events(store, process, worker="w")
        with store.read() as session:
            event = load_event(session, poison)
            due = session.get_one(Event, poison).due_at
            assert event is not None
            assert event.attempts == attempt
            if attempt < MAX_ATTEMPTS:
                assert seen == [other], "the same annotation's next event waits, others do not"
                assert due > event.received_at
        make_due(store)
    process_events(store, process, worker="w")
    assert seen == [other, later]
    with store.read() as session:
        assert inbox_depth(session) == {"pending": 0, "dead": 1}
        (dead,) = list_events(session, "dead")
    assert dead.payload == about(1, note="kept")
    assert dead.error == "ValueError: cannot be read"
    with store.write() as session:
        replay_event(session, poison)
    assert process_events(store, recorder(seen), worker="w") == 1
    assert seen == [other, later, poison]
    with store.write() as session, pytest.raises(NotFound):
        replay_event(session, 10**6)


def test_unknown_events_are_kept_and_skipped(store: Store) -> None:
    event_id = store_event(store, {"action": "BRAND_NEW", "project": {"id": 1}})
    process_events(store, lambda _session, _event: EventOutcome.SKIPPED, worker="w")
    with store.read() as session:
        event = load_event(session, event_id)
    assert event is not None
    assert event.state == "skipped"


def test_a_worker_that_was_replaced_cannot_commit(store: Store) -> None:
    event_id = store_event(store, about(1))
    slow = claim(store, "slow", lease=timedelta(seconds=0))
    assert slow is not None
    quick = claim(store, "quick")
    assert quick is not None
    assert (quick.id, quick.claims) == (event_id, 2)
    ran = []

    def process(_session: Session, event: EventRecord) -> EventOutcome:
        ran.append(event.claims)
        return EventOutcome.DONE

    with pytest.raises(LeaseLost, match="another worker took it over"):
        finish_event(store, slow, process)
    with store.write() as session:
        assert fail_event(session, slow, ValueError("late")) == "lost"
    finish_event(store, quick, process)
    with pytest.raises(LeaseLost):
        finish_event(store, quick, process)
    assert ran == [2]


def test_an_event_that_kills_its_workers_is_set_aside(store: Store) -> None:
    event_id = store_event(store, about(1))
    for _ in range(MAX_CLAIMS):
        assert claim(store, lease=timedelta(seconds=0)) is not None
        make_due(store)
    assert claim(store) is None
    with store.read() as session:
        event = load_event(session, event_id)
    assert event is not None
    assert event.state == "dead"
    assert event.error == f"the worker died {MAX_CLAIMS} times while it processed this event"


def test_a_worker_that_starts_again_gets_its_claims_back(store: Store) -> None:
    event_id = store_event(store, about(1))
    assert claim(store, "one") is not None
    assert claim(store, "one") is None
    with store.write() as session:
        assert release_claims(session, worker="two") == 0
        assert release_claims(session, worker="one") == 1
    again = claim(store, "one")
    assert again is not None
    assert again.id == event_id


@pytest.mark.usefixtures("stopped_clock")
def test_what_killed_its_workers_twice_rests_and_others_come_first(store: Store) -> None:
    poison, other = store_event(store, about(1)), store_event(store, about(2))
    for claims in (1, 2):
        held = claim(store, "one")
        assert held is not None
        assert (held.id, held.claims) == (poison, claims)
        assert store.run(lambda session: release_claims(session, worker="one")) == 1
    after = claim(store, "one")
    assert after is not None
    assert after.id == other
    assert claim(store, "one") is None
    with store.write() as session:
        rest = session.get_one(Event, poison).due_at - session.get_one(Event, poison).received_at
    assert rest == timedelta(seconds=4)
    make_due(store)
    again = claim(store, "two")
    assert again is not None
    assert (again.id, again.claims) == (poison, 3)


def test_projects_take_turns(store: Store) -> None:
    for number in range(6):
        store_event(store, about(number, project=1))
    for number, project in ((10, 3), (11, 3), (12, 2)):
        store_event(store, about(number, project=project))
    keys: list[str] = []

    def process(_session: Session, event: EventRecord) -> EventOutcome:
        keys.append(event.project_key)
        return EventOutcome.DONE

    turn = Turn()
    assert process_events(store, process, worker="w", limit=2, turn=turn) == 2
    assert process_events(store, process, worker="w", turn=turn) == 7
    assert keys == ["1", "2", "3", "1", "3", "1", "1", "1", "1"]


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_claiming_walks_no_other_project(store: Store) -> None:
    store_events(store, [about(number, project=1) for number in range(50)])
    store_events(store, [about(number, project=2) for number in range(5)])
    plans: list[str] = []

    def explain(connection: Any, _cursor: Any, statement: str, given: Any, *_: Any) -> None:
        if statement.startswith("SELECT"):
            cursor = connection.connection.cursor()
            cursor.execute(f"EXPLAIN QUERY PLAN {statement}", given)
            plans.extend(row[3] for row in cursor.fetchall())

    sa.event.listen(store.engine, "before_cursor_execute", explain)
    turn = Turn()
    for key in ("1", "2", "1"):
        event = claim(store, turn=turn)
        assert event is not None
        assert event.project_key == key
    steps = [plan for plan in plans if "SUBQUERY" not in plan]
    assert steps
    for step in steps:
        assert "ix_events_turns" in step or "ix_events_order" in step, step


def test_an_event_about_several_that_rests_holds_up_its_project_alone(store: Store) -> None:
    several = store_event(store, about([1, 2]))
    for number in range(3):
        store_event(store, about(number))
    elsewhere = store_event(store, about(1, project=2))
    held = claim(store)
    assert held is not None
    assert held.id == several
    other = claim(store)
    assert other is not None
    assert other.id == elsewhere
    assert claim(store) is None


def test_limit_and_stop(store: Store) -> None:
    for each in range(5):
        store_event(store, about(each))
    seen: list[int] = []
    assert process_events(store, recorder(seen), worker="w", limit=2) == 2
    assert process_events(store, recorder(seen), worker="w", stop=lambda: len(seen) >= 4) == 2
    assert process_events(store, recorder(seen), worker="w") == 1
    assert seen == sorted(seen)


def test_dead_events_are_replayed_together_whatever_killed_them(store: Store) -> None:
    refused, worn = store_event(store, about(1)), store_event(store, about(2, project=8))

    def process(_session: Session, event: EventRecord) -> EventOutcome:
        raise ValueError(event.action)

    with store.write() as session:
        session.get_one(Event, worn).claims = MAX_CLAIMS  # its workers died, one after the other
    process_events(store, process, worker="w", hopeless=(ValueError,))
    with store.read() as session:
        assert inbox_depth(session) == {"pending": 0, "dead": 2}
    assert store.run(lambda session: replay_dead(session, project_key="8")) == 1
    seen: list[int] = []
    assert process_events(store, recorder(seen), worker="w") == 1
    assert seen == [worn]
    with store.write() as session:
        session.get_one(Event, worn).state = "dead"
        session.get_one(Event, worn).claims = MAX_CLAIMS
    with store.write() as session:
        replay_event(session, worn)
    assert process_events(store, recorder(seen), worker="w") == 1
    assert store.run(replay_dead) == 1
    assert process_events(store, recorder(seen), worker="w") == 1
    assert seen == [worn, worn, refused]
    assert store.run(replay_dead) == 0
