"""The corpus of trouble through every path that meets texts and labels: nothing stops, each refusal has its reason.

A new text or name joins in `tests/support/trouble.py`, a new path by one line of `AFTERWARDS` here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from backend.app import service_of
from backend.calibration.refit import refit
from backend.dashboard.tabs import TABS
from backend.labels.export import Format, export
from backend.labels.training_sets import read_project
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.preannotate.engine import Inline
from backend.preannotate.files import Wanted, preannotate_file
from backend.preannotate.texts import Format as TextFormat
from backend.prediction.predictor import Predictor
from backend.prediction.starter import starter_calibration
from backend.review.second_looks import refresh_looks
from backend.settings import Settings, load_settings
from backend.store import Store
from backend.store.events import inbox_depth, store_events
from backend.store.projects import find_project
from backend.store.tables import CalibrationScore, Label, ScoringAttempt, Task
from backend.tagger.loading import load_tagger
from backend.worker.worker import Worker
from tests.support import payload_shapes as shapes
from tests.support.service import app_over
from tests.support.trouble import NAMES, TEXTS

GOOD = "Anna met Bob in Paris."
PROJECT = 31


def labelled(number: int, text: str, spans: list[tuple[int, int, str]]) -> dict[str, Any]:
    made = shapes.annotation(number, task_id=number)
    made["result"] = [shapes.region(*span[:2], text, span[2], origin="manual") for span in spans]
    about = shapes.project_object(PROJECT) | {"sampling": "Uniform sampling"}
    return {"action": "ANNOTATION_CREATED", "annotation": made, "task": shapes.task(number, text), "project": about}


def troubled() -> list[dict[str, Any]]:
    """A label of every text, and a label with every name; a good one after each."""
    sent = []
    for text in TEXTS.values():
        end = min(4, len(text))
        sent += [(text, [(0, end, "Person"), (0, min(end + 1, len(text)), "Person"), (0, len(text), "LOC")])]
        sent += [(GOOD, [(0, 4, "Person")])]
    for name in NAMES.values():
        sent += [(GOOD, [(0, 4, name), (9, 12, "Person")]), (GOOD, [(0, 4, "Person")])]
    return [labelled(number, text, spans) for number, (text, spans) in enumerate(sent, start=1)]


def test_every_text_is_predicted_alone_and_beside_others(served_model: Path) -> None:
    tagger = load_tagger(served_model)
    predictor = Predictor(tagger, starter_calibration(tagger, served_model, n_min=20))
    together = predictor.predict([*TEXTS.values(), GOOD])
    assert len(together) == len(TEXTS) + 1
    for name, text in TEXTS.items():
        assert len(predictor.predict([text])) == 1, name
    (alone,) = predictor.predict([GOOD])
    assert [each.spans for each in together[-1].labelings] == [each.spans for each in alone.labelings]


def regions_of(predictions: list[dict[str, Any]]) -> list[list[Any]]:
    """What each prediction of a task marks; probabilities differ in the last bits when texts are tagged together."""
    return [[each["value"] for each in made["result"]] for made in predictions]


def test_good_tasks_of_a_batch_are_answered(app: Flask) -> None:
    odd = [shapes.task(number, text) for number, text in enumerate(TEXTS.values(), start=1)]
    batch = [shapes.task(1000, GOOD), *odd, shapes.task(1001, GOOD)]
    answer = app.test_client().post("/predict", json=shapes.predict(batch), buffered=True)
    assert answer.status_code == 200
    results = answer.json["results"]
    assert len(results) == len(batch)
    alone = app.test_client().post("/predict", json=shapes.predict([shapes.task(1000, GOOD)]), buffered=True)
    for found in (results[0], results[-1]):
        assert regions_of(found) == regions_of(alone.json["results"][0]) != []


def test_a_file_is_preannotated_to_its_end(tmp_path: Path, served_model: Path) -> None:
    source = tmp_path / "texts.jsonl"
    texts = [*TEXTS.values(), GOOD]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    settings = load_settings(model=str(served_model), database_url=f"sqlite:///{tmp_path / 'none.db'}")
    wanted = Wanted(source, tmp_path / "out.jsonl", TextFormat.JSONL, batch=5)
    made = preannotate_file(settings, wanted, engine=Inline(), progress=lambda *_: None)
    lines = [json.loads(line) for line in wanted.output.read_text(encoding="utf-8").splitlines()]
    assert made.tasks == len(lines) == len(texts)
    assert [each["data"]["text"] for each in lines] == texts
    assert lines[-1]["predictions"]


class Filled:
    """A database in which the corpus was labelled, through the real worker."""

    def __init__(self, url: str, store: Store, loader: ModelLoader, model: Path) -> None:
        self.url, self.store, self.model = url, store, model
        self.settings: Settings = load_settings(
            database_url=url, model=str(model), n_min=5, refit_every_labels=20, sync_every_minutes=0
        )
        self.worker = Worker(self.settings, store, loader=loader, views=Views(self.settings, store, loader))
        self.sent = troubled()
        store_events(store, self.sent)
        self.worker.drain()
        with store.read() as session:
            found = find_project(session, str(PROJECT))
        assert found is not None
        self.project = found
        self.record, self.tagger = self.worker.context().model_of(found)


def check_scores(filled: Filled) -> None:
    with filled.store.read() as session:
        assert inbox_depth(session) == {"pending": 0, "dead": 0}
        labels = set(session.execute(sa.select(Label.task_id)).scalars())
        rows = set(session.execute(sa.select(CalibrationScore.task_id)).scalars())
        names = {row.id: row.external_id for row in session.execute(sa.select(Task.id, Task.external_id))}
        aside = session.execute(sa.select(ScoringAttempt.task_id, ScoringAttempt.error)).all()
    assert all("SURESPAN_MAX_TEXT" in str(each.error) for each in aside)
    assert len(labels) == len(filled.sent)
    assert {names[each] for each in labels - rows} == {names[each.task_id] for each in aside}


def check_refit(filled: Filled) -> None:
    made = refit(filled.store, filled.project, model=filled.record, alpha="0.2", n_min=5)
    assert made.version.n == sum(len(each["task"]["data"]["text"]) <= filled.settings.max_text for each in filled.sent)


def check_looks(filled: Filled) -> None:
    assert refresh_looks(filled.store, filled.project, model=filled.record, tagger=filled.tagger)["scored"] > 0


def check_exports(filled: Filled) -> None:
    for form in Format:
        with filled.store.read() as session:
            lines, report = export(session, filled.project, form=form, provenance=True)
            # As a file is written: what cannot be said in UTF-8 must not end it.
            written = "".join(lines).encode("utf-8")
        assert written
        assert report.texts + sum(report.left_out.values()) == len(filled.sent), form


def check_training(filled: Filled) -> None:
    assert len(read_project(filled.store, str(PROJECT)).texts) > 0


def check_pages(filled: Filled) -> None:
    with app_over(filled.url, filled.model) as app:
        service_of(app).views.polled.every = 0.0
        client = app.test_client()
        for tab in TABS:
            page = client.get(f"/dashboard/projects/{filled.project.uid}?tab={tab.name}")
            assert page.status_code == 200
            for name in (name for section in tab.sections for name in section.figures):
                assert f'id="{name}"' in page.text
        assert client.get("/dashboard").status_code == 200
        assert client.get("/metrics").status_code == 200
        assert client.get(f"/api/v1/projects/{filled.project.uid}/monitor").status_code == 200


AFTERWARDS: dict[str, Callable[[Filled], None]] = {
    "scores": check_scores,
    "refit": check_refit,
    "second looks": check_looks,
    "exports": check_exports,
    "training": check_training,
    "pages": check_pages,
}


@pytest.mark.heavy
def test_every_path_behind_the_worker(url: str, store: Store, loader: ModelLoader, served_model: Path) -> None:
    filled = Filled(url, store, loader, served_model)
    wrong = {}
    for name, check in AFTERWARDS.items():
        try:
            check(filled)
        except Exception as error:  # noqa: BLE001 - all of them are to be seen
            wrong[name] = f"{type(error).__name__}: {str(error)[:300]}"
    assert wrong == {}
