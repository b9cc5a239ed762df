from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from backend.domain.records import Draw, LabelRecord, TextSpan
from backend.domain.streams import Order
from backend.intake.ingest import Ingest, read_project_uid
from backend.labelstudio.payloads import InvalidPayload
from backend.store import Store
from backend.store.events import inbox_depth, list_events, process_events, store_event, store_events
from backend.store.labels import current_label
from backend.store.projects import ensure_task, find_project, find_task, list_task_versions
from backend.store.sampling import load_history
from backend.store.schema import upgrade
from backend.store.state import get_state
from backend.store.tables import Annotation, Event, Job, Label, Task
from tests.support.data import require_benchmark_data
from tests.support.payload_shapes import CONFIG, STAMP, TEXTS, annotation, events, project_object, region, task

UID = "31.1793610000"
MADE = datetime(2026, 11, 2, 9, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as opened:
        upgrade(opened)
        yield opened


INGEST = Ingest(lambda *_: ("LOC", "MISC", "ORG", "PER"))


def deliver(store: Store, *payloads: Any, received_at: datetime | None = None) -> None:
    store_events(store, payloads, received_at=received_at)
    while process_events(store, INGEST.process, worker="t", hopeless=(InvalidPayload,)):
        pass


def said(store: Store, number: int) -> LabelRecord | None:
    with store.read() as session:
        project = find_project(session, UID)
        assert project is not None
        found = find_task(session, project.id, external_id=str(number))
        return None if found is None else current_label(session, found.id)


def event(action: str = "ANNOTATION_CREATED", *, number: int = 1, about: int = 4, **more: Any) -> dict[str, Any]:
    made = annotation(number, task_id=about, updated_by=1, **more)
    project = project_object() | {"updated_at": STAMP}
    return {"action": action, "annotation": made, "task": task(about, TEXTS[0]), "project": project}


def test_every_kind_of_event_is_processed(store: Store) -> None:
    deliver(store, *events())
    with store.read() as session:
        assert inbox_depth(session) == {"pending": 0, "dead": 0}
        skipped = [each.action for each in list_events(session, "skipped")]
        assert skipped == ["SOMETHING_OF_NEXT_YEAR"]
        jobs = session.execute(sa.select(Job.key)).scalars().all()
        assert sorted(jobs) == [f"reconsider:{UID}", f"refit:{UID}", f"train:{UID}"]
        project = find_project(session, "31")
        assert project is not None
        assert (project.uid, project.title) == (UID, "Letters")
        assert project.label_config == CONFIG
        assert find_task(session, project.id, external_id="5") is None


def test_the_uid_is_that_of_setup() -> None:
    captured = require_benchmark_data().parent / "labelstudio"
    setup = json.loads((captured / "setup.json").read_text(encoding="utf-8"))["body"]
    hooks = sorted(captured.glob("webhook_*.json"))
    assert len(hooks) == 8
    for path in hooks:
        project = json.loads(path.read_text(encoding="utf-8"))["body"]["project"]
        assert read_project_uid(project) == setup["project"], path.name


def test_captured_webhooks(store: Store) -> None:
    captured = require_benchmark_data().parent / "labelstudio"
    hooks = [json.loads(path.read_text(encoding="utf-8"))["body"] for path in sorted(captured.glob("webhook_*.json"))]
    deliver(store, *hooks)
    with store.read() as session:
        assert inbox_depth(session) == {"pending": 0, "dead": 0}
        rows = {row.annotation_id: row for row in session.execute(sa.select(Annotation)).scalars()}
        assert set(rows) == {1, 3, 5, 6, 7}
        assert [rows[number].bulk for number in (1, 3, 5, 6, 7)] == [False, False, True, True, True]
        assert rows[1].spans == [[0, 5, "PER"], [11, 15, "ORG"], [20, 26, "LOC"], [30, 35, "LOC"]]
        assert rows[3].deleted_at is not None
        text = session.get_one(Task, rows[5].task_id).text
        assert text is not None
        assert [text[start:end] for start, end, _ in rows[5].spans or []] == ["Bob", "Amazon", "Berlin", "Alice"]


def test_a_person_s_labels_as_they_change(store: Store) -> None:
    deliver(store, event())
    label = said(store, 4)
    assert label is not None
    assert label.spans == (TextSpan(0, 4, "Person"),)
    later = (MADE + timedelta(minutes=5)).isoformat()
    deliver(store, event("ANNOTATION_UPDATED", result=[], updated_at=later))
    label = said(store, 4)
    assert label is not None
    assert (label.spans, label.exclusion) == ((), None)
    deliver(store, event("ANNOTATION_UPDATED", result=[], updated_at=later, was_cancelled=True, number=2))
    assert (said(store, 4) or label).voters == 1
    deliver(store, {"action": "ANNOTATIONS_DELETED", "annotations": [{"id": 1}], "project": project_object()})
    label = said(store, 4)
    assert label is not None
    assert (label.spans, label.exclusion) == (None, "skipped")


def test_a_task_that_was_never_shown_is_drawn_but_not_blind(store: Store) -> None:
    deliver(store, event())
    with store.write() as session:
        project = find_project(session, UID)
        assert project is not None
        found = find_task(session, project.id, external_id="4")
        assert found is not None
        assert found.draw is not None
        assert (found.draw.stream, found.draw.blind) == ("unshown", False)
        kept = ensure_task(
            session, project.id, external_id="6", text=TEXTS[0], draw=Draw("audit", 0.5, 0.1, blind=True)
        )
    deliver(store, event(about=6, number=9))
    with store.read() as session:
        again = find_task(session, kept.project_id, external_id="6")
        assert again is not None
        assert again.draw == kept.draw


def test_tasks_that_are_only_created_wait_for_their_draw(store: Store) -> None:
    deliver(
        store, {"action": "TASKS_CREATED", "tasks": [task(8, "Rom"), None, task(9, 7)], "project": project_object()}
    )
    with store.read() as session:
        rows = session.execute(sa.select(Task)).scalars().all()
        assert [(row.external_id, row.stream) for row in rows] == [("8", None)]


def test_a_list_is_taken_apart_and_a_bad_part_hurts_no_other(store: Store) -> None:
    body = event()
    good = [annotation(number, task_id=number, lead_time=None, updated_by=None) for number in (11, 12)]
    body |= {
        "action": "ANNOTATIONS_CREATED",
        "annotation": [good[0], {"id": "bad", "task": 12}, good[1]],
        "task": [task(11, TEXTS[0]), task(12, TEXTS[0])],
    }
    deliver(store, body)
    for number in (11, 12):
        label = said(store, number)
        assert label is not None
        assert label.exclusion == "bulk"
    with store.read() as session:
        assert inbox_depth(session) == {"pending": 0, "dead": 1}
        [dead] = list_events(session, "dead")
        assert dead.attempts == 1
        assert "a list under 'result', got no 'result'" in str(dead.error)


def test_long_lists_are_done_in_parts_with_the_time_of_the_whole(store: Store) -> None:
    arrived = datetime(2026, 11, 3, tzinfo=UTC)
    ids = [{"id": number} for number in range(250)]
    deliver(store, {"action": "TASKS_DELETED", "tasks": ids, "project": project_object()}, received_at=arrived)
    with store.read() as session:
        times = session.execute(sa.text("SELECT count(*), min(at), max(at) FROM task_deletions")).one()
    assert tuple(times) == (250, "2026-11-03 00:00:00.000000", "2026-11-03 00:00:00.000000")


def test_five_thousand_annotations_cost_as_many_statements_as_two(store: Store) -> None:
    """Label Studio sends up to 5,000 at once, and gives up after a second."""
    statements: list[str] = []
    sa.event.listen(store.engine, "before_cursor_execute", lambda *told: statements.append(told[2]))

    def counted(size: int, first: int) -> tuple[int, int]:
        numbers = range(first, first + size)
        made = [annotation(number, task_id=number, lead_time=None, updated_by=None) for number in numbers]
        body = {"annotation": made, "task": [task(number, TEXTS[0]) for number in numbers]}
        statements.clear()
        store_event(store, {"action": "ANNOTATIONS_CREATED", "project": project_object(), **body})
        assert sum(statement.startswith("INSERT INTO events") for statement in statements) == 1
        stored = len(statements)
        statements.clear()
        assert process_events(store, INGEST.process, worker="t", limit=1) == 1
        split = len(statements)
        with store.write() as session:
            waiting = sa.select(Event.ordering_key).where(Event.state == "pending").order_by(Event.id)
            assert session.execute(waiting).scalars().all() == [f"a{number}" for number in numbers]
            session.execute(sa.delete(Event))
        return stored, split

    assert counted(2, 1) == counted(5000, 10)


def test_deletions_of_a_poll_count_from_the_poll(store: Store) -> None:
    deliver(store, event())
    note = {"source": "sync", "at": (MADE - timedelta(hours=1)).isoformat()}
    gone = {"action": "ANNOTATIONS_DELETED", "annotations": [{"id": 1}], "project": project_object()}
    deliver(store, gone | {"surespan": note})
    label = said(store, 4)
    assert label is not None
    assert label.exclusion is None  # made after the poll began
    deliver(store, gone | {"surespan": note | {"at": (MADE + timedelta(hours=1)).isoformat()}})
    label = said(store, 4)
    assert label is not None
    assert label.exclusion == "withdrawn"


def test_old_news_about_a_project_do_not_replace_new_ones(store: Store) -> None:
    new, old = project_object(), project_object()
    new |= {"title": "New", "updated_at": (MADE + timedelta(hours=2)).isoformat(), "sampling": "Uniform sampling"}
    old |= {"title": "Old", "updated_at": (MADE + timedelta(hours=1)).isoformat(), "label_config": "<View/>"}
    deliver(store, {"action": "PROJECT_UPDATED", "project": new}, {"action": "PROJECT_UPDATED", "project": old})
    with store.read() as session:
        project = find_project(session, UID)
        assert project is not None
        assert (project.title, project.label_config) == ("New", CONFIG)
        assert get_state(session, project.id, "heard") == {"updated_at": "2026-11-02T11:00:00+00:00"}
        history = load_history(session, project.id)
        assert [(each.at.hour, each.order) for each in history.sightings] == [
            (10, Order.SEQUENTIAL),
            (11, Order.UNIFORM),
        ]


def test_a_poll_says_what_the_order_is_now_not_what_it_was(store: Store) -> None:
    polled = MADE + timedelta(days=1)
    body = event("ANNOTATION_UPDATED") | {"surespan": {"source": "sync", "at": polled.isoformat()}}
    body["project"] |= {"sampling": "Uncertainty sampling", "updated_at": None}
    deliver(store, body)
    with store.read() as session:
        project = find_project(session, UID)
        assert project is not None
        assert [each.at for each in load_history(session, project.id).sightings] == [polled]


def test_an_annotation_of_an_edited_text_stays_with_the_text_it_was_made_on(store: Store) -> None:
    deliver(store, event())
    edited = copy.deepcopy(event("ANNOTATION_UPDATED"))
    edited["task"]["data"]["text"] = "Bert Ring wohnt hier."
    deliver(store, edited)
    with store.read() as session:
        project = find_project(session, UID)
        assert project is not None
        [version] = list_task_versions(session, project.id, external_id="4")
        assert version.text == TEXTS[0]
        # What is drawn on the new text is a label of the new text.
    fresh = region(0, 9, "Bert Ring wohnt hier.", "Person")
    edited["annotation"] |= {"result": [fresh], "updated_at": (MADE + timedelta(hours=1)).isoformat()}
    deliver(store, edited)
    with store.read() as session:
        labels = session.execute(sa.select(Label).order_by(Label.id)).scalars().all()
        assert [(label.exclusion, label.spans) for label in labels] == [("withdrawn", None), (None, [[0, 9, "Person"]])]


def test_a_text_behind_an_address_is_the_one_that_was_shown(store: Store) -> None:
    body = event()
    body["task"]["data"]["text"] = "https://texts.example/4.txt"
    deliver(store, body)
    with store.write() as session:
        [dead] = list_events(session, "dead")
        assert "the task is not known" in str(dead.error)
        project = find_project(session, UID)
        assert project is None  # a refused event leaves nothing behind
    deliver(store, {"action": "PROJECT_UPDATED", "project": body["project"]})
    with store.write() as session:
        project = find_project(session, UID)
        assert project is not None
        ensure_task(session, project.id, external_id="4", text=TEXTS[0])
    deliver(store, body)
    label = said(store, 4)
    assert label is not None
    assert label.spans == (TextSpan(0, 4, "Person"),)


def test_a_project_without_labels_over_a_text_is_left_alone(store: Store) -> None:
    for config in ("<View/>", "<View", ""):
        body = event()
        body["project"] |= {"label_config": config, "id": 77}
        deliver(store, body)
    with store.read() as session:
        assert session.execute(sa.select(sa.func.count()).select_from(Annotation)).scalar_one() == 0
        assert len(list_events(session, "skipped")) == 3


def test_changes_are_told_once(store: Store) -> None:
    told: list[int] = []
    listening = Ingest(INGEST.classes, on_change=lambda _, change: told.append(change.task_id))
    for _ in range(3):
        store_event(store, event())
        process_events(store, listening.process, worker="t")
    assert len(told) == 1


@pytest.mark.parametrize("project", [None, [], "", {}, {"id": None}, {"id": "1"}, True])
def test_a_project_that_cannot_be_named(project: Any) -> None:
    with pytest.raises(InvalidPayload):
        read_project_uid(project)


def test_a_project_known_by_its_number_alone() -> None:
    assert read_project_uid(" 31.5 ") == "31.5"
    assert read_project_uid({"id": 31, "created_at": None}) == "31"
