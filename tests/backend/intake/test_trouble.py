"""Odd texts wherever an event has a text: the label is kept, or the event says what is wrong with it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from backend.intake.ingest import Ingest
from backend.labelstudio.payloads import InvalidPayload
from backend.store import Store
from backend.store.events import list_events, process_events, store_events
from tests.support.payload_shapes import events
from tests.support.trouble import NAMES, replaced, string_leaves

INGEST = Ingest(lambda *_: ("LOC", "MISC", "ORG", "PER"))
SHAPES = {f"{number}-{each['action']}": each for number, each in enumerate(events())}
HOSTILE = [NAMES[name] for name in ("nothing", "lone surrogate", "NUL", "long")]


def with_language(event: dict[str, Any]) -> dict[str, Any]:
    """Return the event with tasks that name their language."""
    tasks = [event["task"]] if isinstance(event.get("task"), dict) else [*event.get("tasks", [])]
    for task in tasks:
        if isinstance(task.get("data"), dict):
            task["data"] |= {"language": "en"}
    return event


@pytest.mark.parametrize("name", SHAPES)
def test_odd_texts_in_any_field_of_an_event(store: Store, name: str) -> None:
    whole = with_language(copy.deepcopy(SHAPES[name]))
    odd: list[Any] = [
        replaced(whole, path, text) for path in string_leaves(whole) if path != ("action",) for text in HOSTILE
    ]
    store_events(store, odd)
    while process_events(store, INGEST.process, worker="t", hopeless=(InvalidPayload,)):
        pass
    with store.read() as session:
        dead = list_events(session, "dead", limit=10_000)
        assert {each.error for each in dead if not str(each.error).startswith("InvalidPayload: expected ")} == set()
        assert not list_events(session, "pending")
