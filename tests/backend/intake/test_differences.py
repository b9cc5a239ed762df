from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from backend.domain.target import TextTag
from backend.domain.text import text_hash
from backend.intake.differences import Differences, Frame, compare
from backend.store.reconcile import KnownAnnotation, KnownTask, Waiting

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TEXT = "Bob is here."
NOTHING = Waiting(frozenset(), anything=False, set_aside=frozenset())
FRAME = Frame(
    {"id": 3, "created_at": "2026-01-01T00:00:00Z", "sampling": "Uniform sampling", "token": "secret"},
    NOON,
    TextTag("text", "text", is_url=False),
)


def at(minutes: int) -> str:
    return (NOON + timedelta(minutes=minutes)).isoformat()


def task(*annotations: int, text: str = TEXT, number: int = 7, minutes: int = -10) -> dict[str, Any]:
    return {
        "id": number,
        "data": {"text": text},
        "created_at": at(-60),
        "updated_at": at(minutes),
        "predictions": ["large"],
        "annotations": [{"id": each, "updated_at": at(minutes), "result": []} for each in annotations],
    }


def known(number: int, *, minutes: int = -10, on: str = "7", alive: bool = True) -> KnownAnnotation:
    return KnownAnnotation(number, on, NOON + timedelta(minutes=minutes), alive)


def kept(text: str = TEXT, *, minutes: int | None = -60) -> KnownTask:
    created = None if minutes is None else NOON + timedelta(minutes=minutes)
    return KnownTask(1, "7", text_hash(text), created)


def compared(
    *tasks: dict[str, Any],
    living: tuple[KnownAnnotation, ...] = (),
    heard: tuple[KnownAnnotation, ...] | None = None,
    tasks_kept: tuple[KnownTask, ...] = (),
    waiting: Waiting = NOTHING,
) -> Differences:
    annotations = {each.annotation_id: each for each in (living if heard is None else heard)}
    return compare(
        tasks, FRAME, annotations=annotations, living=living, known={"7": tasks_kept}, waiting=waiting
    )  # fmt: skip


def actions(found: Differences) -> list[tuple[str, Any]]:
    return [(each["action"], each.get("annotation", {}).get("id")) for each in found.events]


def test_what_the_store_has_gives_no_event() -> None:
    found = compared(task(1, 2), living=(known(1), known(2)), tasks_kept=(kept(),))
    assert found.events == []
    assert (found.counts.looked_at, found.counts.unchanged) == (1, 2)


def test_unknown_edited_moved_and_revived_annotations_are_brought_in() -> None:
    heard = (known(2, minutes=-11), known(3, on="8"), known(4, alive=False))
    found = compared(task(1, 2, 3, 4), heard=heard)
    assert actions(found) == [("ANNOTATION_UPDATED", number) for number in (1, 2, 3, 4)]
    assert found.counts.brought_in == 4


def test_an_event_has_the_shape_of_a_webhook_and_carries_no_secret_and_no_predictions() -> None:
    (event,) = compared(task(1)).events
    assert event["surespan"] == {"source": "sync", "at": NOON.isoformat()}
    assert set(event["project"]) == {"id", "created_at", "sampling"}
    assert event["task"]["data"] == {"text": TEXT}
    assert "predictions" not in event["task"]


def test_what_vanished_is_deleted_at_the_time_of_the_poll() -> None:
    found = compared(task(), living=(known(1), known(2)))
    assert [each["annotations"] for each in found.events] == [[{"id": 1}], [{"id": 2}]]
    assert found.counts.deleted == 2


def test_what_was_made_after_the_poll_began_is_not_taken_for_deleted() -> None:
    assert compared(task(), living=(known(1, minutes=1),)).events == []


def test_what_waits_in_the_inbox_is_not_said_twice_and_holds_the_cursor() -> None:
    waiting = Waiting(frozenset({"a1"}), anything=False, set_aside=frozenset())
    found = compared(task(1, 2, minutes=-5), living=(known(3),), waiting=waiting)
    assert actions(found) == [("ANNOTATION_UPDATED", 2), ("ANNOTATIONS_DELETED", None)]
    assert found.unsettled == NOON - timedelta(minutes=5)
    everything = Waiting(frozenset(), anything=True, set_aside=frozenset())
    assert compared(task(1, 2), living=(known(3),), waiting=everything).events == []


def test_what_was_set_aside_is_not_tried_for_ever_but_its_next_version_is() -> None:
    aside = frozenset({("a1", at(-10))})
    waiting = Waiting(frozenset(), anything=False, set_aside=aside)
    found = compared(task(1), waiting=waiting)
    assert (found.events, found.counts.set_aside, found.unsettled) == ([], 1, None)
    assert compared(task(1, minutes=-9), waiting=waiting).counts.brought_in == 1


def test_an_edited_text_is_made_known_and_its_predictions_are_to_be_renewed() -> None:
    found = compared(task(text="Rob is here."), tasks_kept=(kept(),))
    assert actions(found) == [("TASKS_CREATED", None)]
    assert found.edited == [7]
    assert compared(task(text="Rob is here."), tasks_kept=(kept(), kept("Rob is here."))).events == []
    assert compared(task(text="Rob is here.")).events == []  # never shown, so nothing of ours is about it


def test_a_number_given_out_again_ends_the_task_that_had_it() -> None:
    found = compared(task(), tasks_kept=(kept(minutes=-90),))
    assert [each["action"] for each in found.events] == ["TASKS_DELETED", "TASKS_CREATED"]
    assert found.events[0]["surespan"]["at"] < at(-60)


def test_a_text_behind_an_address_is_not_compared() -> None:
    assert compared(task(text="https://host/a.txt"), tasks_kept=(kept(),)).events == []
