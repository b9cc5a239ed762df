"""Requests into domain types: frames are refused with a reason, single tasks keep their place."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from backend.domain.target import TextTag
from backend.labelstudio.payloads import (
    InvalidPayload,
    TaskIn,
    Unpredictable,
    read_event,
    read_predict,
    read_setup,
    read_text,
)

TAG = TextTag("text", "text", is_url=False)


def task(data: Any, **more: Any) -> TaskIn | None:
    return read_predict({"tasks": [{"id": 1, "data": data, **more}], "project": "1.2"}).tasks[0]


def test_a_batch_keeps_its_order_and_its_odd_tasks() -> None:
    body = {"tasks": [{"id": 3, "data": {"text": "a"}}, "no task", {"id": "x", "data": []}, {}], "project": "7.8"}
    read = read_predict(body)
    assert read.project == "7.8"
    assert [None if each is None else each.id for each in read.tasks] == ["3", None, "x", ""]
    assert read.context is None


def test_project_and_config_may_be_missing() -> None:
    read = read_predict({"tasks": [], "label_config": "  "})
    assert (read.project, read.label_config) == ("local", None)
    assert read_predict({"tasks": [], "project": {"id": 4}}).project == "4"


def test_times_and_languages_are_read_or_left_out() -> None:
    read = task({"text": "a", "language": "de"}, created_at="2026-11-16T00:14:01.346792Z")
    assert read is not None
    assert read.created_at == datetime(2026, 11, 16, 0, 14, 1, 346792, tzinfo=UTC)
    assert read.language == "de"
    odd = task({"text": "a", "language": 5, "lang": "x" * 21}, created_at="yesterday")
    assert odd is not None
    assert (odd.created_at, odd.language) == (None, None)


@pytest.mark.parametrize(
    ("body", "expected", "got"),
    [
        ([], "a JSON object with 'tasks'", "a list"),
        (None, "a JSON object with 'tasks'", "null"),
        ({}, "a list under 'tasks'", "no 'tasks'"),
        ({"tasks": {}}, "a list under 'tasks'", "an object"),
        ({"tasks": [], "label_config": 5}, "the label config as a text under 'label_config'", "a number"),
        ({"tasks": [], "project": []}, "the project as '<id>.<created timestamp>' under 'project'", "a list"),
        ({"tasks": [], "project": True}, "the project as '<id>.<created timestamp>' under 'project'", "true or false"),
        ({"tasks": [], "project": ""}, "a project of 1 to 100 printable characters", "0 characters"),
        ({"tasks": [], "project": "a\x00b"}, "a project of 1 to 100 printable characters", "3 characters"),
    ],
)
def test_a_wrong_frame_is_refused(body: object, expected: str, got: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        read_predict(body)
    assert (caught.value.expected, caught.value.got) == (expected, got)


def test_setup_needs_project_and_schema() -> None:
    assert read_setup({"project": "1.2", "schema": "<View/>"}).label_config == "<View/>"
    for body in ({"project": "1.2"}, {"schema": "<View/>"}, {"project": "1.2", "schema": ""}, "x"):
        with pytest.raises(InvalidPayload):
            read_setup(body)


def test_an_event_names_its_action() -> None:
    assert read_event({"action": "SOMETHING_NEW", "x": 1})["x"] == 1
    for body in ({}, {"action": 5}, {"action": " "}, [{"action": "A"}], None):
        with pytest.raises(InvalidPayload):
            read_event(body)


@pytest.mark.parametrize(
    ("data", "tag", "reason"),
    [
        (None, TAG, Unpredictable.NO_DATA),
        ([], TAG, Unpredictable.NO_DATA),
        ({"body": "a"}, TAG, Unpredictable.MISSING_KEY),
        ({"text": None}, TAG, Unpredictable.MISSING_KEY),
        ({"text": 5}, TAG, Unpredictable.NOT_TEXT),
        ({"text": ["a"]}, TAG, Unpredictable.NOT_TEXT),
        ({"text": " https://example.org/a.txt "}, TAG, Unpredictable.URL),
        ({"text": "/data/upload/1/a.txt"}, TextTag("text", "text", is_url=True), Unpredictable.URL),
        ({"text": "x" * 101}, TAG, Unpredictable.TOO_LONG),
    ],
)
def test_why_a_task_cannot_be_predicted(data: Any, tag: TextTag, reason: Unpredictable) -> None:
    assert read_text(task(data), tag, max_text=100) is reason


@pytest.mark.parametrize("text", ["", "see https://example.org for more", "http://", "a://b", "https://[::1", "\ud800"])
def test_texts_that_are_texts(text: str) -> None:
    assert read_text(task({"text": text}), TAG, max_text=100) == text
    assert read_text(None, TAG, max_text=100) is Unpredictable.NOT_AN_OBJECT
