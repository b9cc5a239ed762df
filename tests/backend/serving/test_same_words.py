"""Words that people labelled elsewhere, as the service suggests them: beside the ranks, never as one of them."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from backend.app import service_of
from backend.store.projects import ensure_project
from tests.support import payload_shapes as shapes
from tests.support.raw_labels import insert_label
from tests.support.service import MakeApp

TEXT = "We asked zorbax and 🎉 zorbax again, but not zorbaxen."
PLACES = [(9, 15), (22, 28)]


@pytest.fixture
def app(make_app: MakeApp) -> Flask:
    """Every task is drawn, and none to be blind: what has no draw gets no suggestion."""
    return drawing(make_app)


def drawing(make_app: MakeApp) -> Flask:
    return make_app(streams=True, blind=0.0, audit_share=0.0)


def label_elsewhere(app: Flask, *, label: str = "Person", **how: Any) -> None:
    store = service_of(app).writes
    with store.write() as session:
        project = ensure_project(session, shapes.PROJECT, label_config=shapes.CONFIG)
    insert_label(store, project.id, "900", "zorbax came", [(0, 6, label)], **how)


def ask(app: Flask, text: str = TEXT, *, number: int = 1, context: Any = None) -> list[dict[str, Any]]:
    body = shapes.predict([shapes.task(number, text)], context=context)
    answer = app.test_client().post("/predict", json=body)
    assert answer.status_code == 200, answer.text
    (result,) = answer.json["results"]
    return result if isinstance(result, list) else [result]


def marked(prediction: dict[str, Any]) -> list[tuple[int, int]]:
    return [
        (each["value"]["start"], each["value"]["end"])
        for each in prediction["result"]
        if "same_words" in each.get("meta", {})
    ]


def served(app: Flask) -> list[tuple[Any, ...]]:
    columns = "stratum, tau, is_open, set_size, shown, ranked, priority"
    with service_of(app).reads.read() as session:
        return [tuple(row) for row in session.execute(sa.text(f"SELECT {columns} FROM served_sets ORDER BY id"))]


def test_the_next_predictions_have_them_before_the_ranks(app: Flask) -> None:
    label_elsewhere(app)
    first, *ranked = ask(app)
    assert first["model_version"].endswith(" same words")
    assert marked(first) == PLACES
    added = [each for each in first["result"] if "same_words" in each.get("meta", {})]
    assert {tuple(each["value"]["labels"]) for each in added} == {("Person",)}
    assert "task 900" in added[0]["meta"]["text"][0]
    assert not any(marked(each) for each in ranked)
    assert first["score"] < min(each["score"] for each in ranked)


def test_ranks_sets_and_what_is_recorded_are_the_same_without_them(make_app: MakeApp) -> None:
    plain = drawing(make_app)
    without = ask(plain)
    label_elsewhere(plain)
    other = drawing(make_app)
    assert ask(other)[1:] == without
    before, after = served(plain)[0], served(other)[-1]
    assert before == after


@pytest.mark.parametrize(
    "how", [{"stream": "audit"}, {"blind": True}, {"exclusion": "skipped"}, {"deleted": True}], ids=str
)
def test_labels_that_may_not_teach_are_not_suggested(app: Flask, how: dict[str, Any]) -> None:
    label_elsewhere(app, **how)
    assert not any(marked(each) for each in ask(app))


def test_a_task_without_a_draw_gets_none(make_app: MakeApp) -> None:
    app = make_app()
    label_elsewhere(app)
    assert not any(marked(each) for each in ask(app))


def test_a_task_that_is_drawn_blind_gets_none(make_app: MakeApp) -> None:
    app = make_app(streams=True, blind=1.0)
    label_elsewhere(app)
    assert [each["result"] for each in ask(app)] == [[]]


def test_a_label_that_the_config_does_not_have_is_not_suggested(app: Flask) -> None:
    label_elsewhere(app, label="Planet")
    assert not any(marked(each) for each in ask(app))


def test_what_was_just_drawn_is_suggested_in_the_rest_of_the_task(app: Flask) -> None:
    start, end = PLACES[0]
    drawn = {
        "id": "mine",
        "from_name": "label",
        "to_name": "text",
        "type": "labels",
        "origin": "manual",
        "value": {"start": start, "end": end, "text": TEXT[start:end], "labels": ["LOC"]},
    }
    (suggested,) = ask(app, context={"result": [drawn]})
    assert marked(suggested) == PLACES[1:]
    (there,) = [each for each in suggested["result"] if "same_words" in each.get("meta", {})]
    assert there["value"]["labels"] == ["LOC"]
    assert there["meta"]["text"] == ["same words as in this task"]


def test_a_long_text_has_a_bounded_number_of_them(app: Flask) -> None:
    label_elsewhere(app)
    first, *_ = ask(app, "zorbax and " * 400)
    assert len(marked(first)) == 200
