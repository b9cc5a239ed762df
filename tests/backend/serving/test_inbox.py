"""Deliveries: each is on disk before its caller goes on, and together they cost few writes."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event

from backend.errors import InvalidEvent, StoreBusy
from backend.models.gate import FairGate
from backend.serving.inbox import Inbox
from backend.store import Store, open_store
from backend.store.events import list_events, load_event


@pytest.fixture
def path(tmp_path: Path) -> Path:
    open_store(f"sqlite:///{tmp_path / 'store.db'}").close()
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{path}", wait=0.3) as opened:
        yield opened


def test_many_at_once_are_stored_with_few_writes(store: Store, path: Path) -> None:
    inbox = Inbox(store, FairGate(slots=1))
    commits = 0

    def count(_: object) -> None:
        nonlocal commits
        commits += 1

    event.listen(store.engine, "commit", count)
    numbers: dict[int, int] = {}

    def deliver(i: int) -> None:
        number = inbox.put({"action": "A", "number": i})
        with Store(store.url) as reader, reader.read() as session:
            assert load_event(session, number) is not None  # it is there when `put` returns
        numbers[i] = number

    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    inbox.start()
    threads = [threading.Thread(target=deliver, args=(i,)) for i in range(40)]
    for thread in threads:
        thread.start()
    other.execute("ROLLBACK")
    other.close()
    for thread in threads:
        thread.join(20)
    inbox.close()
    with store.read() as session:
        kept = list_events(session, "pending")
    assert {each.id: each.payload["number"] for each in kept} == {number: i for i, number in numbers.items()}
    assert commits <= 5


def test_one_that_cannot_be_kept_does_not_take_others_along(store: Store) -> None:
    inbox = Inbox(store, FairGate(slots=1))
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    outcomes: dict[str, object] = {}

    def deliver(name: str, payload: dict[str, object]) -> None:
        try:
            outcomes[name] = inbox.put(payload)
        except InvalidEvent as error:
            outcomes[name] = error

    with inbox._changed:  # all three are in the queue before the thread looks
        threads = [
            threading.Thread(target=deliver, args=(name, payload))
            for name, payload in (
                ("one", {"action": "A"}),
                ("deep", {"action": "A", "x": deep}),
                ("two", {"action": "A"}),
            )
        ]
        inbox.start()
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(20)
    inbox.close()
    assert isinstance(outcomes["deep"], InvalidEvent)
    assert {type(outcomes["one"]), type(outcomes["two"])} == {int}


def test_a_locked_database_is_said_and_nothing_is_acknowledged(store: Store, path: Path) -> None:
    inbox = Inbox(store, FairGate(slots=1))
    inbox.start()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        inbox.put({"action": "A"})
    other.execute("ROLLBACK")
    other.close()
    assert inbox.put({"action": "B"}) > 0
    inbox.close()
    assert inbox.put({"action": "C"}) > 0  # after the stop, by the caller itself
    with store.read() as session:
        assert [each.action for each in list_events(session, "pending")] == ["B", "C"]
