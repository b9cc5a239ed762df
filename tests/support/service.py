"""The service inside the process of the tests: over a small real model and a database of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backend.settings import Settings, load_settings
from backend.store import Store
from tests.support.databases import Databases, migrate
from tests.support.waiting import WAIT

if TYPE_CHECKING:
    from flask import Flask

    from backend.serving.presenting import Present
    from backend.serving.service import Service

MakeApp = Callable[..., "Flask"]


@pytest.fixture
def settings(served_model: Path, migrated: Path, tmp_path: Path) -> Settings:
    shutil.copy(migrated, tmp_path / "surespan.db")
    return settings_of(f"sqlite:///{tmp_path / 'surespan.db'}", served_model)


def settings_of(url: str, model: Path) -> Settings:
    return load_settings(database_url=url, model=str(model), n_min=20, alpha="0.1")


@pytest.fixture
def make_app(settings: Settings) -> Iterator[MakeApp]:
    """Make apps with other settings; all are closed at the end."""
    from backend.app import create_app, service_of
    from backend.serving.presenting import Present

    apps: list[Flask] = []

    def make(
        *,
        present: Present | None = None,
        start: bool = True,
        streams: bool = False,
        patience: float = WAIT,
        **changes: Any,
    ) -> Flask:
        # Without streams, unless a test is about them: then every task is shown.
        how = None if streams else present or Present()
        app = create_app(settings.model_copy(update=changes), present=how, start=start)
        # An answer waits for its record however busy the machine is, unless a test is about that.
        service_of(app).recorder.patience = patience
        apps.append(app)
        return app

    yield make
    for app in apps:
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
    from backend.app import service_of

    return service_of(app)


@contextmanager
def app_over(url: str, model: Path) -> Iterator[Flask]:
    """Lend the service over a database, with its model not loaded."""
    from backend.app import create_app, service_of

    app = create_app(settings_of(url, model), start=False)
    try:
        yield app
    finally:
        service_of(app).close()


@pytest.fixture
def empty_app(url: str, served_model: Path) -> Iterator[Flask]:
    with app_over(url, served_model) as app:
        yield app


@pytest.fixture
def populated_app(databases: Databases, served_model: Path) -> Iterator[Flask]:
    """The service with its model not loaded, over a project that has been worked on."""
    from backend.app import service_of
    from tests.support.populated import populate

    def fill(url: str) -> None:
        migrate(url)
        with app_over(url, served_model) as app, Store(url) as store:
            populate(store, service_of(app).views.model_of)

    with databases.copy("populated", fill) as copied, app_over(copied, served_model) as app:
        service_of(app).views.polled.every = 0.0
        yield app
