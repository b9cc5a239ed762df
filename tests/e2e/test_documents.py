"""A document of sixty sentences in the real editor: rank 1 in full, tabs that differ where doubt is, alternatives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.editor import Editor
from tests.support.label_studio import LabelStudioServer, Service
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.end_to_end import ProjectFactory

SENTENCES = (
    "Jordan Miller met Angela Merkel in Berlin.",
    "Washington beat Manchester in the last minute.",
    "It rained all day, and nobody came.",
    "May went to Reading to see Charlotte Apple and Amazon of Jordan.",
    "The company opened an office in Paris, said Maria Lopez of Siemens.",
)
DOCUMENT = " ".join(SENTENCES[i % len(SENTENCES)] for i in range(60))


def spans_of(prediction: dict[str, Any]) -> set[tuple[int, int, str]]:
    values = [each["value"] for each in prediction["result"] if each["from_name"] == "label"]
    return {(value["start"], value["end"], value["labels"][0]) for value in values}


def test_a_document_shows_where_its_doubts_are(
    showing_service: Service, make_project: ProjectFactory, page: Page, label_studio: LabelStudioServer
) -> None:
    work = make_project([DOCUMENT], title="Documents")
    showing_service.connect(work)
    (task,) = work.tasks
    wait_for(lambda: len(label_studio.task(task)["predictions"]) > 1, "the document has its predictions")
    predictions = label_studio.task(task)["predictions"]
    best = predictions[-1]
    editor = Editor(page, work)
    editor.open_task(task)
    regions = {(each["value"]["start"], each["value"]["end"]) for each in best["result"]}
    shown = editor.shown(number=len(regions))
    assert {span[:2] for span in shown} == regions
    assert all(DOCUMENT[span.start : span.end] == span.text for span in shown)

    # Further tabs differ from the first in one sentence or a few, not everywhere.
    others = [spans_of(each) for each in predictions[:-1]]
    assert others
    for spans in others:
        changed = spans ^ spans_of(best)
        assert changed
        assert len({DOCUMENT.count(". ", 0, start) for start, _, _ in changed}) <= 3

    # An amber span says what else is plausible in its own sentence.
    doubtful = next(each for each in best["result"] if each.get("meta", {}).get("also"))
    value, said = doubtful["value"], doubtful["meta"]["text"][0]
    amber = next(span for span in shown if span[:2] == (value["start"], value["end"]))
    assert amber.amber
    editor.select(amber)
    wait_for(lambda: said[:60] in page.inner_text("body"), "the page shows the sentence's alternatives")
    folder = os.environ.get("SURESPAN_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / "document.png"))
