from __future__ import annotations

from datetime import UTC, datetime, timedelta

from backend.domain.records import AnnotationRecord, Draw, Served
from backend.domain.text import text_hash
from backend.store import Store
from backend.store.events import EventOutcome, process_events, store_event, store_events
from backend.store.labels import delete_annotation, delete_tasks, record_annotation
from backend.store.projects import ensure_model, ensure_project, ensure_task
from backend.store.reconcile import known_annotations, known_tasks, living_annotations, tasks_from, waiting_events
from backend.store.republish import blind_tasks, last_lists, opened_since
from backend.store.served import record_served

START = datetime(2026, 1, 1, tzinfo=UTC)


def served(task: int, model: int, minutes: int, *, stratum: str = "en/1-10") -> Served:
    return Served(
        task_id=task,
        model_id=model,
        version_id=None,
        shadow=False,
        stratum=stratum,
        pool=stratum,
        guarantee="borrowed",
        n=100,
        tau=1.0,
        is_open=False,
        set_size=1,
        shown=1,
        ranked=stratum.encode(),
        served_at=START + timedelta(minutes=minutes),
    )


def test_what_is_alive_is_told_from_what_is_gone(store: Store) -> None:
    with store.write() as session:
        project = ensure_project(session, "3.1")
        first = ensure_task(session, project.id, external_id="7", text="a", created_at=START)
        ensure_task(session, project.id, external_id="7", text="b", created_at=START)
        other = ensure_task(session, project.id, external_id="8", text="c", created_at=START)
        for number, task in ((1, first.id), (2, first.id), (3, other.id)):
            record_annotation(session, task, AnnotationRecord(number, START + timedelta(minutes=number), ()))
        delete_annotation(session, project.id, annotation_id=2, at=START + timedelta(minutes=9))
        delete_annotation(session, project.id, annotation_id=4, at=START)  # heard of only as deleted
    with store.read() as session:
        known = known_annotations(session, project.id, [1, 2, 3, 4, 5])
        assert {number: (each.task, each.alive) for number, each in known.items()} == {
            1: ("7", True),
            2: ("7", False),
            3: ("8", True),
        }
        assert [each.annotation_id for each in living_annotations(session, project.id, ["7"])] == [1]
        tasks = known_tasks(session, project.id, ["7", "8", "9"])
        assert {number: len(each) for number, each in tasks.items()} == {"7": 2, "8": 1}
        assert {each.text_hash for each in tasks["7"]} == {text_hash("a"), text_hash("b")}
        assert tasks["8"][0].created_at == START
    with store.write() as session:
        delete_tasks(session, project.id, external_ids=["8"], at=START + timedelta(hours=1))
    with store.read() as session:
        assert [each.external_id for each in tasks_from(session, project.id, after=0, limit=9)] == ["7", "7"]
        assert [each.external_id for each in tasks_from(session, project.id, after=first.id, limit=9)] == ["7"]
        assert living_annotations(session, project.id, ["8"]) == []


def test_the_inbox_says_what_waits_and_what_was_set_aside(store: Store) -> None:
    def event(number: int, at: str = "t") -> dict[str, object]:
        return {
            "action": "ANNOTATION_UPDATED",
            "project": {"id": 3},
            "annotation": {"id": number, "updated_at": at},
            "task": {"id": 7},
        }

    def fail(_session: object, _event: object) -> EventOutcome:
        raise ValueError("poison")

    store_event(store, event(1, at="early"))
    process_events(store, fail, worker="w", hopeless=(ValueError,))
    store_events(store, [event(2), event(3) | {"project": {"id": 4}}])
    with store.read() as session:
        found = waiting_events(session, "3", ["a1", "a2", "a3", "t7"])
    assert (found.keys, found.anything, found.set_aside) == (frozenset({"a2"}), False, frozenset({("a1", "early")}))
    assert found.covers("a2")
    assert not found.covers("a1")
    many = {"action": "ANNOTATIONS_CREATED", "project": {"id": 3}, "annotation": [{"id": 8}, {"id": 9}]}
    store_event(store, many)
    with store.read() as session:
        assert waiting_events(session, "3", []).covers("a1")
        assert not waiting_events(session, "4", []).covers("a1")


def test_a_task_served_alone_was_opened_and_one_served_with_others_was_not(store: Store) -> None:
    with store.write() as session:
        project = ensure_project(session, "3.1")
        model = ensure_model(session, "m", "0" * 64, classes=["PER"])
        tasks = [ensure_task(session, project.id, external_id=str(i), text=f"text {i}") for i in range(4)]
        record_served(session, [served(task.id, model.id, 0) for task in tasks])
        record_served(session, [served(tasks[1].id, model.id, 50), served(tasks[2].id, model.id, 51)])
        record_served(session, [served(tasks[2].id, model.id, 5)])
    names = ["0", "1", "2", "3"]
    with store.read() as session:
        hour = opened_since(session, project.id, tasks=names, since=START - timedelta(minutes=1))
        assert hour == {"1", "2"}
        assert opened_since(session, project.id, tasks=["2"], since=START + timedelta(minutes=52)) == set()
        assert opened_since(session, project.id, tasks=["3"], since=START) == set()


def test_the_last_list_is_the_newest_of_the_model(store: Store) -> None:
    with store.write() as session:
        project = ensure_project(session, "3.1")
        model = ensure_model(session, "m", "0" * 64, classes=["PER"])
        other = ensure_model(session, "m", "1" * 64, classes=["PER"])
        task = ensure_task(session, project.id, external_id="7", text="a", language="en")
        ensure_task(session, project.id, external_id="8", text="never served")
        record_served(
            session, [served(task.id, model.id, 0, stratum="old"), served(task.id, model.id, 1, stratum="new")]
        )
        record_served(session, [served(task.id, other.id, 2, stratum="other")])
    with store.read() as session:
        (found,) = last_lists(session, project.id, model_id=model.id, tasks=["7", "8"])
    assert (found.task, found.text_hash, found.language, found.stratum) == ("7", text_hash("a"), "en", "new")


def test_blind_tasks_wait_until_they_are_labelled(store: Store) -> None:
    with store.write() as session:
        project = ensure_project(session, "3.1")
        tasks = [
            ensure_task(
                session,
                project.id,
                external_id=str(i),
                text=f"text {i}",
                draw=Draw("uniform", 0.9 - i / 10, 1.0, blind=i != 1),
            )
            for i in range(4)
        ]
        record_annotation(session, tasks[2].id, AnnotationRecord(1, START, ()))
        record_annotation(session, tasks[3].id, AnnotationRecord(2, START, (), was_cancelled=True))
    with store.read() as session:
        assert blind_tasks(session, project.id, limit=9) == ["3", "0"]  # skipped is not labelled
        assert blind_tasks(session, project.id, limit=1) == ["3"]
