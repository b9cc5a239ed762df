"""The pages over a populated database, SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask

from backend.app import create_app, service_of
from backend.settings import load_settings
from backend.store import Store
from tests.backend.dashboard.populated import populate
from tests.backend.http.conftest import served_model  # noqa: F401 - a fixture
from tests.backend.store.conftest import kind, postgresql, templates, url  # noqa: F401 - fixtures
from tests.backend.tagger.conftest import one_thread, tiny_model  # noqa: F401 - fixtures


@pytest.fixture
def empty_app(url: str, served_model: Path) -> Iterator[Flask]:  # noqa: F811 - fixtures
    app = create_app(load_settings(database_url=url, model=str(served_model), n_min=20, alpha="0.1"), start=False)
    yield app
    service_of(app).close()


@pytest.fixture
def app(empty_app: Flask) -> Flask:
    """The service with its model not loaded, over a project that has been worked on."""
    service = service_of(empty_app)
    service.views.polled.every = 0.0
    with Store(service.settings.database_url) as store:
        populate(store, service.views.model_of)
    return empty_app
