"""The SDK's own server over our class. Runs where label-studio-ml 2.x is installed (docs/operate.md says how)."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend import ml_sdk
from backend.app import create_app, service_of
from backend.errors import BackendError
from backend.settings import load_settings
from backend.store import open_store
from backend.store.events import list_events
from backend.store.projects import find_project, list_projects
from tests.support import payload_shapes as shapes

SECRET = "s3"
needs_sdk = pytest.mark.skipif(
    importlib.util.find_spec("label_studio_ml") is None, reason="label-studio-ml 2.x is not installed: see operate.md"
)


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    for name, value in {
        "SURESPAN_DATABASE_URL": url,
        "SURESPAN_WEBHOOK_SECRET": SECRET,
    }.items():
        monkeypatch.setenv(name, value)
    open_store(url).close()
    return url


@pytest.fixture
def client(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:  # noqa: ARG001
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the SDK's own deprecations
        from label_studio_ml import model  # noqa: PLC0415 - it may be missing
        from label_studio_ml.api import init_app  # noqa: PLC0415
        from label_studio_ml.cache import create_cache  # noqa: PLC0415
    # The SDK opens its cache when it is imported, in the directory it finds itself in.
    monkeypatch.setattr(model, "CACHE", create_cache("sqlite", path=str(tmp_path)))
    yield init_app(ml_sdk.Surespan).test_client()
    ml_sdk.close_service()


@needs_sdk
def test_the_sdk_answers_what_our_own_service_answers(client: Any, database: str) -> None:
    assert client.get("/health").json["model_class"] == "Surespan"
    version = client.post("/setup", json=shapes.setup()).json["model_version"]
    tasks = [*(shapes.task(i, text) for i, text in enumerate(shapes.TEXTS)), {"id": 9, "data": {"other": "x"}}]
    answer = client.post("/predict", json=shapes.predict(tasks))
    assert answer.status_code == 200
    entries = answer.json["results"]
    assert len(entries) == len(tasks)
    assert {entry[-1]["model_version"] for entry in entries} == {version}
    assert any(each["result"] for entry in entries for each in entry)
    ml_sdk.close_service()
    app = create_app(load_settings())
    try:
        own = app.test_client()
        assert own.post("/setup", json=shapes.setup()).json["model_version"] == version
        assert own.post("/predict", json=shapes.predict(tasks)).json["results"] == entries
    finally:
        service_of(app).close()
    with open_store(database) as store, store.read() as session:
        found = find_project(session, shapes.PROJECT)
        assert found is not None
        assert found.uid == shapes.PROJECT  # the SDK alone would have cut it at the dot


@needs_sdk
def test_events_are_on_disk_when_the_sdk_answers(client: Any, database: str) -> None:
    body = {"action": "ANNOTATION_CREATED", "project": {"id": 31, "label_config": shapes.CONFIG}, "annotation": {}}
    refused = client.post("/webhook", json=body)
    assert refused.status_code == 401
    stored = client.post("/webhook", json=body, headers={"X-Surespan-Secret": SECRET})
    assert stored.status_code == 201
    assert stored.json["result"]["status"] == "stored"
    with open_store(database) as store, store.read() as session:
        found = list_events(session, "pending")
        assert list_projects(session) == []  # the event's project is known by its id alone, and not yet
    assert [(each.action, each.project_key) for each in found] == [("ANNOTATION_CREATED", "31")]


@pytest.mark.skipif(importlib.util.find_spec("label_studio_ml") is not None, reason="the SDK is installed")
def test_without_the_sdk_the_class_says_how_to_get_it() -> None:
    with pytest.raises(BackendError, match=r"expected the package label-studio-ml 2\.x, got none: install it with pip"):
        ml_sdk.Surespan(project_id="1", label_config=shapes.CONFIG)
