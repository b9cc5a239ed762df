"""Tasks in batches end as they would one by one, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from backend.domain.records import Draw, TaskRecord
from backend.store import Store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.labels import delete_tasks
from backend.store.projects import ensure_project, ensure_task, load_tasks

DAY = datetime(2026, 1, 1, tzinfo=UTC)
DRAW, OTHER = Draw("audit", 0.25, 0.1, blind=True), Draw("open", 0.75, 0.9, blind=False)


def batch(session: Session, project: int, tasks: list[NewTask]) -> list[int]:
    return [kept.id for kept in ensure_tasks(session, project, tasks)]


def one_by_one(session: Session, project: int, tasks: list[NewTask]) -> list[int]:
    return [
        ensure_task(
            session,
            project,
            external_id=task.external_id,
            text=task.text,
            language=task.language,
            length=task.length,
            draw=task.draw,
            created_at=task.created_at,
        ).id
        for task in tasks
    ]


STEPS = [
    [NewTask("1", "a", "de", 1, DRAW, DAY), NewTask("2", "b"), NewTask("2", "b"), NewTask("1", "other text")],
    [NewTask("2", "b", "en", 2, OTHER, DAY), NewTask("1", "a", "fr", 9, OTHER), NewTask("3", "\x00\ud800")],
    [NewTask("2", "b", created_at=DAY + timedelta(days=1)), NewTask("4", "d", draw=OTHER)],
    # "5" was deleted before it came: dead without a time, alive when it was made later.
    [NewTask("5", "e"), NewTask("5", "f", created_at=DAY + timedelta(days=9)), NewTask("4", "d")],
]


def test_a_batch_ends_as_one_by_one(store: Store) -> None:
    kept: dict[str, list[TaskRecord]] = {}
    for name, way in (("batch", batch), ("one", one_by_one)):
        with store.write() as session:
            project = ensure_project(session, f"{name}.1")
            delete_tasks(session, project.id, external_ids=["5"], at=DAY + timedelta(days=5))
        ids = []
        for step in STEPS:
            with store.write() as session:
                ids += way(session, project.id, step)
        with store.read() as session:
            found = load_tasks(session, ids)
            kept[name] = [found[number] for number in ids]

    def plain(task: TaskRecord) -> tuple[object, ...]:
        return (task.external_id, task.text, task.language, task.length, task.draw, task.deleted)

    assert [plain(task) for task in kept["batch"]] == [plain(task) for task in kept["one"]]
    places = [[kept[name].index(task) for task in kept[name]] for name in ("batch", "one")]
    assert places[0] == places[1]  # the same tasks are the same
    assert [task.deleted for task in kept["batch"] if task.external_id == "5"] == [True, False]
    assert kept["batch"][0].draw == DRAW  # as first written


def test_blindness_is_that_of_the_first_draw(store: Store) -> None:
    with store.write() as session:
        project = ensure_project(session, "1.1")
        first = ensure_tasks(session, project.id, [NewTask("1", "a", draw=DRAW), NewTask("2", "b", draw=OTHER)])
        again = ensure_tasks(session, project.id, [NewTask("1", "a", draw=OTHER), NewTask("2", "b", draw=DRAW)])
        assert first == again
        assert [task.blind for task in first] == [True, False]
        assert ensure_tasks(session, project.id, []) == []


@pytest.mark.parametrize("count", [1, 500])
def test_the_number_of_statements_does_not_grow(store: Store, count: int) -> None:
    statements = 0

    def note(*_: object) -> None:
        nonlocal statements
        statements += 1

    with store.write() as session:
        project = ensure_project(session, "1.1")
        event.listen(store.engine, "before_cursor_execute", note)
        ensure_tasks(session, project.id, [NewTask(str(i), f"text {i}", "de", 3) for i in range(count)])
    assert statements <= 5
