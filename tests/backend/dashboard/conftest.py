"""The pages over a populated database, SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flask import Flask

from backend.app import create_app, service_of
from backend.settings import load_settings
from backend.store import Store
from tests.backend.dashboard.populated import populate
from tests.backend.http.conftest import served_model  # noqa: F401 - a fixture
from tests.backend.store.conftest import (
    Databases,
    databases,  # noqa: F401 - a fixture
    kind,  # noqa: F401 - a fixture
    migrate,
    postgresql,  # noqa: F401 - a fixture
    templates,  # noqa: F401 - a fixture
    url,  # noqa: F401 - a fixture
)
from tests.backend.tagger.conftest import one_thread, tiny_model  # noqa: F401 - fixtures


@contextmanager
def app_over(url: str, model: Path) -> Iterator[Flask]:  # noqa: F811 - a parameter
    made = create_app(load_settings(database_url=url, model=str(model), n_min=20, alpha="0.1"), start=False)
    try:
        yield made
    finally:
        service_of(made).close()


@pytest.fixture
def empty_app(url: str, served_model: Path) -> Iterator[Flask]:  # noqa: F811 - fixtures
    with app_over(url, served_model) as made:
        yield made


@pytest.fixture
def app(databases: Databases, served_model: Path) -> Iterator[Flask]:  # noqa: F811 - fixtures
    """The service with its model not loaded, over a project that has been worked on."""

    def fill(url: str) -> None:  # noqa: F811 - a parameter
        migrate(url)
        with app_over(url, served_model) as made, Store(url) as store:
            populate(store, service_of(made).views.model_of)

    with databases.copy("populated", fill) as copied, app_over(copied, served_model) as made:
        service_of(made).views.polled.every = 0.0
        yield made
