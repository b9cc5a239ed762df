"""What is published is what /predict answers: what is ready is taken, then lists are cut, then the model is asked."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from backend.domain.records import ProjectRecord
from backend.domain.text import text_hash
from backend.jobs.context import WorkContext, no_heartbeat
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.prediction.answer import answer_of
from backend.prediction.predictor import Predictor
from backend.publish import fresh
from backend.publish.fresh import FreshPredictions
from backend.settings import load_settings
from backend.store import Store, open_store
from backend.store.projects import ensure_model, ensure_project
from backend.store.tables import ServedSet
from backend.store.thresholds import write_version
from tests.support.payload_shapes import CONFIG, PROJECT, TEXTS, task

TASKS = [task(number, text) for number, text in enumerate(TEXTS, start=1)]


class Counting:
    """A predictor that counts the texts it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts = 0
        predict = Predictor.predict

        def count(predictor: Predictor, texts: list[str], **more: Any) -> Any:
            self.texts += len(texts)
            return predict(predictor, texts, **more)

        monkeypatch.setattr(Predictor, "predict", count)


@pytest.fixture(scope="module")
def loader() -> ModelLoader:
    started = ModelLoader(load_settings())
    started.start()
    started.tagger(120.0)
    return started


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path / 'store.db'}") as opened:
        yield opened


@pytest.fixture
def context(store: Store, loader: ModelLoader) -> WorkContext:
    settings = load_settings(blind=0, n_min=20, alpha="0.1")
    views = Views(settings, store, loader, poll=0.0)
    log = logging.getLogger("test")
    return WorkContext(settings, store, loader, views, lambda: None, no_heartbeat, log)


@pytest.fixture
def project(store: Store) -> ProjectRecord:
    return store.run(lambda session: ensure_project(session, PROJECT, label_config=CONFIG))


def predictions(context: WorkContext, project: ProjectRecord) -> FreshPredictions:
    return FreshPredictions(context, project, context.views.view(project.uid, CONFIG), label_config=CONFIG)


def serve_own_version(context: WorkContext, project: ProjectRecord) -> None:
    """Let a version of the project's own serve, with the starter's thresholds and another alpha."""
    predictor = context.views.view(project.uid, CONFIG).predictor
    tagger = predictor.tagger
    with context.store.write() as session:
        model = ensure_model(session, tagger.name, tagger.hash, classes=tagger.space.classes)
        write_version(
            session,
            project.id,
            model_id=model.id,
            alpha="0.3",
            method="nc1",
            evidence="blind",
            guarantee="own",
            input_revision=0,
            content=predictor.calibration.thresholds.to_bytes(),
            thresholds=[],
        )


def served(store: Store) -> int:
    with store.read() as session:
        return session.execute(sa.select(sa.func.count()).select_from(ServedSet)).scalar_one()


def test_a_new_version_is_cut_from_the_lists_of_the_last_one(
    context: WorkContext, project: ProjectRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Counting(monkeypatch)
    first = predictions(context, project)
    assert len(first.unknown(TASKS)) == len(TASKS)
    before = first.of(TASKS)
    first.close()
    assert (first.reused, asked.texts, served(context.store)) == (0, len(TASKS), len(TASKS))

    serve_own_version(context, project)
    second = predictions(context, project)
    assert second.unknown(TASKS) == []
    after = second.of(TASKS)
    second.close()
    assert (second.reused, asked.texts, served(context.store)) == (len(TASKS), len(TASKS), 2 * len(TASKS))
    assert {entry[-1]["model_version"] for entry in after} == {second.view.model_version}
    assert [entry[-1]["model_version"] for entry in after] != [entry[-1]["model_version"] for entry in before]
    for entry, text in zip(after, TEXTS, strict=True):
        made = answer_of(second.view.predictor.predict([text])[0])
        assert len(entry) == len(made.labelings)
        assert entry[-1]["score"] == pytest.approx(made.priority, rel=1e-4)


def test_an_edited_text_is_predicted_anew(
    context: WorkContext, project: ProjectRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictions(context, project).of(TASKS[:1])
    asked = Counting(monkeypatch)
    edited = [task(1, "Anna Berg wohnt in Bonn.")]
    again = predictions(context, project)
    assert [each.text for each in again.unknown(edited)] == ["Anna Berg wohnt in Bonn."]
    assert again.of(edited)[0][-1]["result"]
    assert (again.reused, asked.texts) == (0, 1)


def test_what_is_ready_is_taken_and_what_is_of_another_version_is_not(
    context: WorkContext, project: ProjectRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = predictions(context, project)
    text = TEXTS[0]
    ready = {("1", text_hash(text)): answer_of(current.view.predictor.predict([text])[0])}
    serve_own_version(context, project)
    asked = Counting(monkeypatch)
    entry = current.of(TASKS[:1], ready)[0]
    assert asked.texts == 0
    later = predictions(context, project)
    monkeypatch.setattr(later, "_remembered", lambda _tasks: {})
    assert later.of(TASKS[:1], ready)[0][-1]["model_version"] != entry[-1]["model_version"]
    assert asked.texts == 1


def test_trouble_with_a_list_leaves_its_task_to_the_model(
    context: WorkContext, project: ProjectRecord, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = predictions(context, project).of(TASKS[:2])
    asked = Counting(monkeypatch)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(fresh, "rethreshold", fail)
    assert predictions(context, project).of(TASKS[:2]) == before
    assert asked.texts == 2
    assert "an answer that was made before is not used" in caplog.text
