"""The service over a small real model and a fresh SQLite database."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from backend.app import create_app, service_of
from backend.serving.presenting import Present
from backend.serving.service import Service
from backend.settings import Settings, load_settings
from backend.starter import make_starter, save_starter
from backend.store import open_store
from backend.tagger.folded import restrict
from backend.tagger.tagger import load_tagger
from tests.backend.tagger.conftest import SAMPLE, one_thread, tiny_model  # noqa: F401 - fixtures

MakeApp = Callable[..., Flask]


@pytest.fixture(scope="session")
def served_model(tiny_model: Path) -> Path:  # noqa: F811 - a fixture
    """The small model with starters for all of its classes and for those of the test project."""
    tagger = load_tagger(tiny_model)
    for classes in (tagger.space.classes, ("LOC", "PER")):
        starter = make_starter(restrict(tagger, classes), [SAMPLE] * 4, per_file=10_000, seed=0, about="the sample")
        save_starter(starter, tiny_model)
    return tiny_model


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "surespan.db"
    open_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def settings(served_model: Path, migrated: Path, tmp_path: Path) -> Settings:
    shutil.copy(migrated, tmp_path / "surespan.db")
    return load_settings(
        database_url=f"sqlite:///{tmp_path / 'surespan.db'}", model=str(served_model), n_min=20, alpha="0.1"
    )


@pytest.fixture
def make_app(settings: Settings) -> Iterator[MakeApp]:
    """Make apps with other settings; all are closed at the end."""
    made: list[Flask] = []

    def make(*, present: Present | None = None, start: bool = True, streams: bool = False, **changes: Any) -> Flask:
        # Without streams, unless a test is about them: then every task is shown.
        how = None if streams else present or Present()
        app = create_app(settings.model_copy(update=changes), present=how, start=start)
        made.append(app)
        return app

    yield make
    for app in made:
        service_of(app).close()


@pytest.fixture
def app(make_app: MakeApp) -> Flask:
    return make_app()


@pytest.fixture
def idle_app(make_app: MakeApp) -> Flask:
    """The service with its model not loaded: for what must work, or be refused, without it."""
    return make_app(start=False)


@pytest.fixture
def service(app: Flask) -> Service:
    return service_of(app)
