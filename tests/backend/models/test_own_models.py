"""A model per project: served without a restart, several at once, in bounded memory, and gone back to."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from backend.app import service_of
from backend.calibration.promotion import promote
from backend.domain.project_model import State
from backend.jobs.kinds import Kind
from backend.serving.service import Service
from backend.settings import Settings
from backend.store import Store
from backend.store.jobs import list_jobs
from backend.store.project_models import list_models, store_file
from backend.store.projects import ensure_project, find_project
from backend.tagger.linear.tagger import LinearTagger
from tests.support import payload_shapes as shapes
from tests.support.own_models import add_own, config_of, learn_own, promote_own
from tests.support.service import MakeApp

TEXT = "Bakomol caused lire in two of them ."
CONFIG = config_of("Drug", "Symptom")


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    with Store(settings.database_url) as opened:
        yield opened


@pytest.fixture
def app(make_app: MakeApp) -> Flask:
    app = make_app()
    service_of(app).views.polled.every = 0.0
    return app


def labels_of(app: Flask, uid: str, config: str, *, number: int = 1) -> tuple[str, list[str]]:
    """Predict a text; return the version and the labels of the best labeling."""
    asked = shapes.predict([shapes.task(number, TEXT)], config=config, project=uid)
    answer = app.test_client().post("/predict", json=asked, buffered=True)
    assert answer.status_code == 200, answer.json
    entries: list[dict[str, Any]] = answer.json["results"][0]
    best = max(entries, key=lambda entry: entry["score"] or 0.0)
    setup = app.test_client().post("/setup", json=shapes.setup(config, project=uid)).json["model_version"]
    assert setup == best["model_version"]
    labels = [each["value"]["labels"][0] for each in best["result"] if each["from_name"] == "label"]
    return str(best["model_version"]), labels


def test_the_first_model_serves_at_once_without_a_restart_and_one_goes_back_to_it(
    app: Flask, store: Store, settings: Settings, tmp_path: Path
) -> None:
    version, labels = labels_of(app, "7.1", CONFIG)
    assert version.startswith("blank@")
    assert labels == []
    digest = learn_own(tmp_path / "first")
    add_own(store, settings, "7.1", tmp_path / "first", config=CONFIG)
    shutil.rmtree(tmp_path / "first")
    assert labels_of(app, "7.1", CONFIG)[0] == version  # a candidate serves nobody
    project = promote_own(store, settings, "7.1", digest)
    first, labels = labels_of(app, "7.1", CONFIG)
    assert first == f"own@{digest[:8]}+cal.0"
    assert labels == ["Drug", "Symptom"]
    with store.read() as session:
        kinds = {job.kind for job in list_jobs(session)}
    assert {Kind.RESCORE, Kind.PUBLISH} <= kinds  # queued with the promotion

    later = learn_own(tmp_path / "later", seed=2)
    add_own(store, settings, "7.1", tmp_path / "later", config=CONFIG)
    promote_own(store, settings, "7.1", later)
    assert labels_of(app, "7.1", CONFIG)[0].startswith(f"own@{later[:8]}")
    promote_own(store, settings, "7.1", digest)
    assert labels_of(app, "7.1", CONFIG) == (first, ["Drug", "Symptom"])
    with store.read() as session:
        states = {each.model_hash: each.state for each in list_models(session, project.id)}
    assert states == {digest: State.SERVING, later: State.RETIRED}


def test_two_projects_with_different_labels_are_served_by_one_process_at_once(
    app: Flask, store: Store, settings: Settings, tmp_path: Path
) -> None:
    other = config_of("Wirkstoff", "Zeichen")
    for uid, names, config in (("7.1", ("Drug", "Symptom"), CONFIG), ("8.1", ("Wirkstoff", "Zeichen"), other)):
        digest = learn_own(tmp_path / uid, names=names)
        add_own(store, settings, uid, tmp_path / uid, config=config)
        promote_own(store, settings, uid, digest)
    wanted = {"7.1": ["Drug", "Symptom"], "8.1": ["Wirkstoff", "Zeichen"], shapes.PROJECT: []}
    configs = {"7.1": CONFIG, "8.1": other, shapes.PROJECT: shapes.CONFIG}
    asked = [uid for uid in configs for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda uid: labels_of(app, uid, configs[uid]), asked))
    for uid, (version, labels) in zip(asked, answers, strict=True):
        assert version.startswith("tiny@" if uid == shapes.PROJECT else "own@")
        if uid != shapes.PROJECT:
            assert labels == wanted[uid]
    assert service_of(app).views.models.loaded == 2


@pytest.mark.heavy
def test_eight_projects_with_models_of_their_own_take_the_memory_of_a_few(
    make_app: MakeApp, store: Store, settings: Settings, tmp_path: Path
) -> None:
    app = make_app(models_in_memory=3)
    service: Service = service_of(app)
    service.views.polled.every = 0.0
    configs = {}
    for number in range(8):
        uid, names = f"{number + 1}.1", (f"Drug{number}", f"Sign{number}")
        configs[uid] = config_of(*names)
        digest = learn_own(tmp_path / uid, names=names, seed=number)
        add_own(store, settings, uid, tmp_path / uid, config=configs[uid])
        promote_own(store, settings, uid, digest)
    most = 0
    for _ in range(2):
        for number, (uid, config) in enumerate(configs.items()):
            _, labels = labels_of(app, uid, config)
            assert set(labels) <= {f"Drug{number}", f"Sign{number}"}
            assert labels
            most = max(most, service.views.models.loaded)
    assert most == 3
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda uid: labels_of(app, uid, configs[uid]), [*configs] * 3))
    assert all(labels for _, labels in answers)
    assert service.views.models.loaded <= 3
    gc.collect()
    alive = [each for each in gc.get_objects() if type(each) is LinearTagger and each.space.classes[0][4:].isdigit()]
    assert len(alive) <= 3  # nothing else holds on to one


def test_a_model_that_cannot_be_loaded_is_passed_over(
    app: Flask, store: Store, settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of("Drug", "Symptom", "PER")
    digest = learn_own(tmp_path / "first")
    add_own(store, settings, "7.1", tmp_path / "first", config=config)
    promote_own(store, settings, "7.1", digest)
    with store.write() as session:
        store_file(session, digest, b"no model at all")
    version, _ = labels_of(app, "7.1", config)
    assert version.startswith("tiny@")
    assert any("own model cannot be loaded" in record.message for record in caplog.records)
    with store.read() as session:
        project = find_project(session, "7.1")
    assert project is not None
    # Labels are scored under the model that the project has, never under what stands in for it.
    assert service_of(app).views.model_of(project).name == "own"


def test_a_damaged_copy_is_fetched_again(app: Flask, store: Store, settings: Settings, tmp_path: Path) -> None:
    digest = learn_own(tmp_path / "first")
    add_own(store, settings, "7.1", tmp_path / "first", config=CONFIG)
    promote_own(store, settings, "7.1", digest)
    copy = settings.models_directory / digest
    copy.mkdir(parents=True)
    shutil.copy(tmp_path / "first" / "model.safetensors", copy)
    with (copy / "model.safetensors").open("r+b") as file:
        file.truncate(100)
    assert labels_of(app, "7.1", CONFIG)[1] == ["Drug", "Symptom"]
    assert (copy / "model.safetensors").read_bytes() == (tmp_path / "first" / "model.safetensors").read_bytes()
    assert [each.name for each in settings.models_directory.iterdir()] == [digest]  # nothing half done is left


def test_promoting_what_serves_asks_for_nothing(store: Store, settings: Settings, tmp_path: Path) -> None:
    digest = learn_own(tmp_path / "first")
    add_own(store, settings, "7.1", tmp_path / "first", config=CONFIG)
    promote_own(store, settings, "7.1", digest)
    with store.write() as session:
        before = len(list_jobs(session))
        project = ensure_project(session, "7.1")
        promote(session, project, digest, settings=settings, who="ann", why="again")
        assert len(list_jobs(session)) == before
