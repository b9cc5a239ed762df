"""Dialogues and pages through the service: positions in the answer, trouble with one task, a config that changes."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from backend.documents.dialogue import read_dialogue
from backend.documents.page import read_page
from backend.labelstudio.annotations import read_annotation
from backend.labelstudio.payloads import InvalidPayload
from tests.support import payload_shapes as shapes
from tests.support.service import MakeApp
from tests.support.trouble import DIALOGUES, PAGES

TEXT = shapes.TEXTS[2]
PAGE = shapes.CONFIG.replace("Labels", "HyperTextLabels").replace("<Text", "<HyperText")
TALK = shapes.CONFIG.replace("Labels", "ParagraphLabels").replace("<Text", "<Paragraphs")
HTML = "<div>\n <p>John <b>Carter</b> visited Boston.</p><p>Then he left.</p>\n</div>"


def predict(app: Flask, config: str, *values: Any) -> list[list[dict[str, Any]]]:
    body = shapes.predict([shapes.task(i, value) for i, value in enumerate(values, start=1)], config=config)
    answer = app.test_client().post("/predict", json=body, buffered=True)
    assert answer.status_code == 200
    results: list[list[dict[str, Any]]] = answer.json["results"]
    return results


def test_one_broken_page_leaves_the_others_alone(make_app: MakeApp) -> None:
    values = [HTML, *PAGES.values(), None, 7, ["x"], HTML]
    entries = predict(make_app(), PAGE, *values)
    assert len(entries) == len(values)
    first, last = entries[0][-1]["result"], entries[-1][-1]["result"]
    assert first
    assert [each["value"] for each in first] == [each["value"] for each in last]
    page = read_page(HTML)
    for region in first:
        assert region["type"] == "hypertextlabels"
        start, end = page.find(region["value"]) or (0, 0)
        assert page.text[start:end] == region["value"]["text"]
        assert set(region["value"]) == {
            "start", "end", "startOffset", "endOffset", "globalOffsets", "text", "hypertextlabels",
        }  # fmt: skip
    broken = entries[1 + list(PAGES).index("never closed")]
    assert [(each["result"], each["score"]) for each in broken] == [([], 0.0)]


def test_dialogues_of_every_kind_are_answered(make_app: MakeApp) -> None:
    config = TALK.replace("<Paragraphs", '<Paragraphs textKey="said" layout="dialogue"')
    turns = [{"author": "A", "said": "😀 hello"}, {"author": "B", "said": "John Carter visited Boston."}]
    entries = predict(make_app(max_text=20_000), config, turns, *DIALOGUES.values())
    assert len(entries) == 1 + len(DIALOGUES)
    talk = read_dialogue(turns, text_key="said")
    found = entries[0][-1]["result"]
    assert found
    for region in found:
        assert region["type"] == "paragraphlabels"
        start, end = talk.find(region["value"]) or (0, 0)
        assert talk.text[start:end] == region["value"]["text"]
        assert region["value"]["start"] == region["value"]["end"] == "1"


def test_a_config_that_changes_under_a_project_changes_what_a_text_is(make_app: MakeApp) -> None:
    app = make_app()
    before, during, after = (predict(app, config, TEXT)[0][-1] for config in (shapes.CONFIG, PAGE, shapes.CONFIG))
    assert [each["value"] for each in before["result"]] == [each["value"] for each in after["result"]]
    assert {each["type"] for each in before["result"]} == {"labels"}
    assert {each["type"] for each in during["result"]} == {"hypertextlabels"}
    assert [each["value"]["text"] for each in before["result"]] == [each["value"]["text"] for each in during["result"]]


def test_a_region_that_says_other_words_is_refused() -> None:
    page = read_page(HTML)
    value = page.place(0, 4) | {"text": "Eve", "hypertextlabels": ["Person"]}
    made = {
        "id": 1,
        "updated_at": shapes.STAMP,
        "result": [{"from_name": "label", "type": "hypertextlabels", "value": value}],
    }
    with pytest.raises(InvalidPayload, match="a region at a place that the task has"):
        read_annotation(made, control="label", document=page)
    value["text"] = "John"
    assert [tuple(span) for span in read_annotation(made, control="label", document=page).spans] == [(0, 4, "Person")]
