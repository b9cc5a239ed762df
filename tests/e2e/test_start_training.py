"""Labels that no model knows, twenty tasks, "Start Training" pressed in a real browser: a model of one's own serves."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.editor import Editor
from tests.support.label_studio import Project, Service
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.end_to_end import ProjectFactory

CONFIG = (
    '<View><Labels name="label" toName="text"><Label value="Drug" background="#4363d8"/>'
    '<Label value="Symptom" background="#3cb44b"/></Labels><Text name="text" value="$text"/></View>'
)
DRUGS = ("Aspirin", "Ibuprofen", "Metformin", "Warfarin", "Lisinopril")
SYMPTOMS = ("nausea", "headache", "dizziness", "fever")
FORMS = (
    "{} caused {} in two of our patients.",
    "After a week of {} the {} went away.",
    "He takes {} against {}, mostly in the evening.",
    "She stopped {} because of the {}.",
)
TEXTS = [FORMS[(i + i // 4) % 4].format(*words) for i, words in enumerate(product(DRUGS, SYMPTOMS))]
OPEN = [
    "Warfarin was stopped after two days because of dizziness and fever.",
    "Metformin caused nausea, so she takes Lisinopril in the evening.",
]
NEWS = ["Angela Merkel visited Paris.", "Siemens opened an office in Madrid."]


def entities_in(text: str) -> dict[str, str]:
    """The words of a text that are to be labelled."""
    return {word: "Drug" for word in DRUGS if word in text} | {word: "Symptom" for word in SYMPTOMS if word in text}


def regions(text: str) -> list[dict[str, Any]]:
    return [
        {
            "id": f"r{text.index(word)}",
            "from_name": "label",
            "to_name": "text",
            "type": "labels",
            "origin": "manual",
            "value": {"start": text.index(word), "end": text.index(word) + len(word), "text": word, "labels": [label]},
        }
        for word, label in entities_in(text).items()
    ]


def labels_in(result: list[dict[str, Any]]) -> dict[str, str]:
    """The words that a prediction labels; a mark of doubt is none."""
    found = [each["value"] for each in result if each["from_name"] == "label"]
    return {value["text"]: value["labels"][0] for value in found}


def best_predictions(work: Project, tasks: tuple[int, ...]) -> list[dict[str, Any]]:
    """The best prediction of each task, once all of them have one; they are stored worst first."""
    wait_for(lambda: all(work.server.task(task)["predictions"] for task in tasks), "every task has a prediction")
    return [max(work.server.task(task)["predictions"], key=lambda each: int(each["id"])) for task in tasks]


def press_start_training(page: Page, work: Project) -> None:
    """Press the button in the project's settings under Model."""
    page.goto(f"/projects/{work.id}/settings/ml")
    page.get_by_label("Machine learning model options").click()
    page.get_by_text("Start Training", exact=True).click()
    page.get_by_role("button", name="Start Training", exact=True).click()
    page.get_by_text("Request Sent!").wait_for()


@pytest.mark.heavy
def test_start_training_brings_predictions_of_the_new_labels_without_a_restart(
    showing_service: Service, make_project: ProjectFactory, page: Page
) -> None:
    running = showing_service
    work = make_project(TEXTS + OPEN, label_config=CONFIG, title="Drugs and symptoms")
    news = make_project(NEWS, title="News")
    running.connect(news)
    assert running.connect(work)["model_version"].startswith("blank@")

    editor = Editor(page, work)
    first, *others = work.tasks[: len(TEXTS)]
    editor.open_task(first)
    assert editor.shown() == []
    for word, label in entities_in(TEXTS[0]).items():
        editor.draw(word, key={"Drug": "1", "Symptom": "2"}[label])
    assert labels_in(editor.submit()["result"]) == entities_in(TEXTS[0])
    for task, text in zip(others, TEXTS[1:], strict=True):
        work.server.annotate(task, regions(text))
    models = f"/api/v1/projects/{work.uid}/models"
    wait_for(lambda: running.call("GET", models)["learning"]["labels"] == len(TEXTS), "the labels are stored")
    assert running.call("GET", models)["serving"] is None, "nothing is trained before somebody asks for it"

    press_start_training(page, work)
    wait_for(lambda: running.call("GET", models)["serving"], "a model of its own serves the project")
    running.wait_for_jobs(work)
    wait_for(lambda: work.details["model_version"].startswith(f"project-{work.id}-"), "Label Studio shows that model")
    assert running.call("GET", models)["models"][0]["asked_by"] == "Label Studio"
    opened = work.tasks[len(TEXTS) :]
    learnt = best_predictions(work, opened)
    assert {label for each in learnt for label in labels_in(each["result"]).values()} == {"Drug", "Symptom"}

    # Tasks that come now: one process answers for both projects, each with the model and the labels of its own.
    (drug,), (place,) = work.add(["After two days of Aspirin the fever went away."]), news.add(["Alice went to Rome."])
    work.predict([drug])
    news.predict([place])
    (own,), (bundled,) = best_predictions(work, (drug,)), best_predictions(news, (place,))
    assert own["model_version"] == work.details["model_version"]
    assert bundled["model_version"] == news.details["model_version"]
    assert labels_in(own["result"]).get("Aspirin") == "Drug"
    assert labels_in(bundled["result"]) == {"Alice": "PER", "Rome": "LOC"}

    editor.open_task(opened[-1])
    shown = editor.shown()
    assert {span.text for span in shown} == set(labels_in(learnt[-1]["result"]))
    assert all(any(label in line for label in ("Drug", "Symptom")) for line in editor.regions())
    editor.select(shown[0])
    folder = os.environ.get("SURESPAN_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / "own-labels.png"))
