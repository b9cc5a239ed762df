"""A project whose labels no model knows: blank tasks, labels kept, a model of its own, and what each label is worth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from rich.console import Console

from backend.app import service_of
from backend.calibration.evidence import Evidence
from backend.calibration.label_worth import label_evidence
from backend.calibration.local_predictor import starter_of
from backend.domain.guarantee import Guarantee
from backend.domain.records import AnnotationRecord, Draw, LabelRecord, TaskRecord
from backend.jobs.kinds import queue_refit, queue_rescore, queue_second_looks
from backend.labels.training_sets import add_labels, hand_over, read_project
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.prediction.predictor import Predictor
from backend.prediction.promise import describe_promise
from backend.serving.service import Service
from backend.settings import Settings
from backend.store import Store
from backend.store.events import store_events
from backend.store.handover import active_models
from backend.store.projects import find_project
from backend.store.tables import CalibrationCell, CalibrationScore, Job, Label, ServedSet, Task, TrainingTask
from backend.tagger.blank import BlankTagger
from backend.tagger.configured import load_configured
from backend.tagger.identity import ModelHeader
from backend.tagger.readers import read_labelled
from backend.tagger.training_data import Material
from backend.tagger.training_run import train_words
from backend.worker.worker import Worker
from tests.support import payload_shapes as shapes
from tests.support.paths import SAMPLE
from tests.support.service import MakeApp
from tests.support.taggers import small_training

OWN = (
    '<View><Labels name="flag" toName="text"><Label value="Needs review"/></Labels><Labels name="label" toName="text">'
    '<Label value="Hero"/><Label value="Site/Ort"/><Label value="Club &amp; Co"/></Labels>'
    '<Text name="text" value="$text"/></View>'
)
MIXED = OWN.replace('<Label value="Hero"/>', '<Label value="PER"/><Label value="Drug"/>')
NAMES = {"PER": "Hero", "LOC": "Site/Ort", "ORG": "Club & Co"}
TEXTS = [text for text in read_labelled(SAMPLE).texts if all(span.label in NAMES for span in text.spans)][:60]
BLIND = 0.3


def task(number: int) -> dict[str, Any]:
    return shapes.task(number, TEXTS[number].text)


def ask(service: Service, numbers: list[int], config: str = OWN, **more: Any) -> list[Any]:
    request = shapes.predict([task(number) for number in numbers], config=config, **more)
    answer = service.client.post("/predict", json=request, buffered=True)  # type: ignore[attr-defined]
    assert answer.status_code == 200, answer.json
    entries: list[Any] = answer.json["results"]
    assert len(entries) == len(numbers)
    return entries


def confirm(store: Store, worker: Worker, numbers: list[int], config: str = OWN, origin: str = "manual") -> None:
    """Label tasks as a person who has them before their eyes does."""
    now = datetime.now(UTC)
    events = []
    for number in numbers:
        text = TEXTS[number]
        made = shapes.annotation(
            number + 1, task_id=number, updated_by=1, created_at=now.isoformat(), updated_at=now.isoformat()
        )
        made["result"] = [
            shapes.region(span.start, span.end, text.text, NAMES[span.label], origin=origin) for span in text.spans
        ]
        heard = {
            "label_config": config,
            "sampling": "Uniform sampling",
            "created_at": None,
            "updated_at": now.isoformat(),
        }
        project = shapes.project_object() | heard
        events.append({"action": "ANNOTATION_CREATED", "annotation": made, "task": task(number), "project": project})
    store_events(store, events)
    worker.drain()


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    with Store(settings.database_url) as opened:
        yield opened


def worker_of(store: Store, settings: Settings, model: Path | None = None) -> Worker:
    update: dict[str, Any] = {"sync_every_minutes": 0.0, "refit_every_labels": 5}
    chosen = settings.model_copy(update=update | ({} if model is None else {"model": str(model)}))
    loader = ModelLoader(chosen)
    loader.start()
    return Worker(chosen, store, loader=loader, views=Views(chosen, store, loader, poll=0.0))


def serve(make_app: MakeApp, **changes: Any) -> Service:
    app = make_app(streams=True, blind=BLIND, **changes)
    service = service_of(app)
    service.views.polled.every = 0.0
    service.client = app.test_client()  # type: ignore[attr-defined]
    return service


def evidence_under(store: Store, name: str) -> dict[str, tuple[str, str]]:
    """Return (evidence, exclusion) of each task's row under the model of this name, by the task's id there."""
    with store.read() as session:
        rows = session.execute(
            sa.select(Task.external_id, CalibrationCell.evidence, CalibrationCell.exclusion)
            .join(CalibrationScore, CalibrationScore.task_id == Task.id)
            .join(CalibrationCell, CalibrationCell.id == CalibrationScore.cell_id)
            .where(
                CalibrationScore.removed_at_revision.is_(None),
                CalibrationScore.model_id == sa.text("(SELECT max(id) FROM models WHERE name = :name)"),
            ),
            {"name": name},
        )
        return {row[0]: (row[1], row[2]) for row in rows}


def draws(store: Store) -> dict[str, bool]:
    with store.read() as session:
        return {name: bool(blind) for name, blind in session.execute(sa.select(Task.external_id, Task.blind))}


def learn(store: Store, out: Path) -> ModelHeader:
    """What `surespan train --project 31` does, with a network that takes seconds."""
    labels = read_project(store, "31")
    material = Material()
    used = add_labels(material, labels, dev_share=0.1, seed=1)
    saved = train_words(
        material, out, config=replace(small_training(), epochs=6), name="mine", console=Console(quiet=True)
    )
    model = ModelHeader(saved.name, saved.hash, saved.classes)
    hand_over(store, labels.project, model=model, used=used)
    return model


def test_from_blank_tasks_to_a_model_of_its_own(
    settings: Settings, store: Store, make_app: MakeApp, tmp_path: Path
) -> None:
    service, worker = serve(make_app), worker_of(store, settings)
    version = service.client.post("/setup", json=shapes.setup(OWN)).json["model_version"]  # type: ignore[attr-defined]
    assert version.startswith("blank@")
    everything = list(range(len(TEXTS)))
    for entry in ask(service, everything):
        assert [(each["model_version"], each["result"]) for each in entry] == [(version, [])]
    drawn = draws(store)
    blind = {name for name, is_blind in drawn.items() if is_blind}
    assert 5 < len(blind) < len(TEXTS) - 20
    with store.read() as session:
        assert set(session.execute(sa.select(ServedSet.shown)).scalars()) == {0}
        project = find_project(session, shapes.PROJECT)
    assert project is not None

    first = everything[:45]
    confirm(store, worker, first)
    with store.write() as session:
        assert session.execute(sa.select(sa.func.count()).select_from(Label)).scalar_one() == len(first)
        queue_refit(session, project, reason="the button")
        queue_second_looks(session, project)
        queue_rescore(session, project, model=service.views.model_of(project).hash)
    while worker.step_jobs():
        pass
    with store.read() as session:
        jobs = session.execute(sa.select(Job).where(Job.kind.in_(["refit", "second-looks", "rescore"]))).scalars().all()
        assert {job.state for job in jobs} == {"done"}
        assert all("knows no label of the project" in str(job.result) for job in jobs)
        assert session.execute(sa.select(CalibrationScore.id)).first() is None
        assert active_models(session, project.id) == []

    labels = read_project(store, "31")
    assert labels.left_out == {"audit or blind: kept for calibration": len(blind & {str(n) for n in first})}
    out = tmp_path / "mine"
    model = learn(store, out)
    assert set(model.classes) <= {"Hero", "Site/Ort", "Club & Co"}
    confirm(store, worker, everything[45:])  # still blank: made after the training moment
    worker.loader.close()

    own, later = serve(make_app, model=str(out)), worker_of(store, settings, out)
    entry = ask(own, [0])[0]  # the first model serves at once
    assert entry[-1]["model_version"].startswith("mine@")
    later.drain()
    while later.step_jobs():
        pass
    found = evidence_under(store, "mine")
    assert set(found) == set(drawn)
    with store.read() as session:
        trained = set(
            session.execute(sa.select(Task.external_id).join(TrainingTask, TrainingTask.task_id == Task.id)).scalars()
        )
    assert trained
    assert not trained & blind
    for name, (evidence, exclusion) in found.items():
        assert evidence == Evidence.BLIND
        assert exclusion == ("trained" if name in trained else "")
    shown = [number for number in everything if str(number) not in blind]
    assert any(entry[-1]["result"] for entry in ask(own, shown))
    with store.read() as session:
        (active,) = active_models(session, project.id)
        assert active.model.name == "mine"
        assert active.n == len(drawn) - len(trained)
    # Back to a model that knows none of these labels: what the project has goes on.
    again = serve(make_app)
    assert ask(again, [0])[0][-1]["model_version"].startswith("mine@")
    later.loader.close()


def test_known_labels_are_predicted_beside_unknown_ones(make_app: MakeApp) -> None:
    service = service_of(make_app())
    service.loader.tagger(120.0)
    view = service.views.view(shapes.PROJECT, MIXED)
    assert (view.target.blank, set(view.target.unknown)) == (False, {"Drug", "Site/Ort", "Club & Co"})
    (prediction,) = view.predictor.predict([TEXTS[0].text])
    assert prediction.as_dict()["out_of_reach"] == ["Drug", "Site/Ort", "Club & Co"]
    said = describe_promise(prediction)
    assert "Labels Drug, Site/Ort, Club & Co are not known to the model: nothing is suggested for them" in said
    assert {span.label for labeling in prediction.labelings for span in labeling.spans} <= {"PER"}
    (nothing,) = service.views.view(shapes.PROJECT, OWN).predictor.predict([TEXTS[0].text])
    assert nothing.blank
    assert describe_promise(nothing).startswith("No promise, and no suggestion. Labels Hero, ")


@pytest.mark.parametrize("unit", ["sentence", "task"])
def test_a_blank_tagger_reads_texts_as_its_model_does(served_model: Path, settings: Settings, unit: str) -> None:
    tagger = load_configured(settings.model_copy(update={"unit": unit, "model": str(served_model)}))
    texts = ["", " ", "One. Two, says Ann.", TEXTS[0].text]
    for labels in (("a/b", "ü 🎉"), (), tuple(f"L{i}" for i in range(300))):
        blank = BlankTagger(tagger, labels)
        for own, theirs in zip(blank.potentials(texts), tagger.potentials(texts), strict=True):
            assert (own.tokens, own.units, own.language) == (theirs.tokens, theirs.units, theirs.language)
        predictor = Predictor(blank, starter_of(settings, blank))
        for prediction in predictor.predict(texts):
            (only,) = prediction.labelings
            assert (only.spans, only.probability, prediction.spans) == ((), 1.0, ())
            assert prediction.guarantee is Guarantee.NONE


def test_an_interactive_request_gets_nothing(make_app: MakeApp) -> None:
    service = serve(make_app)
    drawn = shapes.region(0, 4, TEXTS[0].text, "Hero", origin="manual")
    (entry,) = ask(service, [0], context={"result": [drawn]})
    assert entry["result"] == []


def test_a_changed_label_config_stops_nothing(settings: Settings, store: Store, make_app: MakeApp) -> None:
    service, worker = serve(make_app), worker_of(store, settings)
    ask(service, [0, 1])
    confirm(store, worker, [0, 1])
    for changed in (
        OWN.replace('"Hero"', '"Heroine"'),
        OWN.replace('<Label value="Hero"/>', ""),
        OWN.replace("</Labels><Text", '<Label value="New"/></Labels><Text'),
        OWN.replace('<Label value="Hero"/><Label value="Site/Ort"/><Label value="Club &amp; Co"/>', ""),
        MIXED,
    ):
        assert service.client.post("/setup", json=shapes.setup(changed)).status_code == 200  # type: ignore[attr-defined]
        assert [len(entry) >= 1 for entry in ask(service, [0, 1, 2], changed)] == [True] * 3
        worker.drain()
    with store.read() as session:
        assert session.execute(sa.select(sa.func.count()).select_from(Label)).scalar_one() == 2
    worker.loader.close()


NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)


def judged(
    *,
    stream: str = "uniform",
    blind: bool = False,
    led: int | None = None,
    shown: int | None = None,
    origin: str = "manual",
) -> Evidence:
    """The evidence of a label made at noon; `led`, `shown`: minutes after it when a prelabel, or nothing, was shown."""
    made = AnnotationRecord(1, NOON, (), created_at=NOON, origins={origin: 1})
    label = LabelRecord(1, 1, 1, "majority", 1, (), None, 1, 1, made)
    drawn = Draw(stream, 0.5, 1.0, blind=blind)
    record = TaskRecord(1, 1, "1", b"", "text", None, None, drawn, deleted=False)
    moments = [None if minutes is None else NOON + timedelta(minutes=minutes) for minutes in (led, shown)]
    return label_evidence(label, record, led=moments[0], blank=moments[1])


def test_shown_blank_is_clean_and_a_prelabel_is_not() -> None:
    assert judged(shown=-5) is Evidence.BLIND
    assert judged(shown=-5, led=5) is Evidence.BLIND
    assert judged(shown=-5, led=-1) is Evidence.ASSISTED
    assert judged(shown=5) is Evidence.ASSISTED
    assert judged() is Evidence.ASSISTED
    assert judged(shown=-5, stream="unshown") is Evidence.ASSISTED
    assert judged(shown=-5, origin="prediction-changed") is Evidence.ASSISTED
    assert judged(blind=True) is Evidence.BLIND
    assert judged(blind=True, led=-1) is Evidence.ASSISTED
    assert judged(stream="file", led=-1) is Evidence.FILE
