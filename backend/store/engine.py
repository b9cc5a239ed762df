"""Connections, transactions and the errors they end in, the same on SQLite and PostgreSQL.

Durability: a transaction that `Store.write` has left is on disk. SQLite runs in WAL mode with `synchronous=FULL`, so
each commit is flushed (NORMAL would survive a killed process but not a power cut); on PostgreSQL a server-wide
`synchronous_commit=off` is overruled for our connections.

Writers on SQLite begin with `BEGIN IMMEDIATE`: they queue at the start, instead of failing half way when two readers
both want to write. Readers see one snapshot from begin to end and never block a writer.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import URL, Connection
from sqlalchemy.orm import Session

from backend.errors import StoreAgain, StoreBusy, StoreConflict, StoreError, StoreFull, StoreUnavailable
from backend.settings import database_url

T = TypeVar("T")

_READ = "surespan_read"

# SQLSTATE: transaction can be run again as it is (serialisation failure, deadlock).
_PG_RETRY = {"40001", "40P01"}
_PG_BUSY = {"55P03", "57014"}  # lock_not_available, query_canceled (statement timeout)
_PG_FULL = {"53100", "53200"}  # disk_full, out_of_memory


class Store:
    """A database and its transactions. Create it after a fork; nothing is opened before the first use.

    Args:
        raw_url: as in `SURESPAN_DATABASE_URL`.
        wait: seconds to wait for another process's lock before `StoreBusy`.
    """

    def __init__(self, raw_url: str | URL, *, wait: float = 30.0, pool_size: int = 5, pool_wait: float = 30.0) -> None:
        self.url = database_url(raw_url) if isinstance(raw_url, str) else raw_url
        self.wait = wait
        options: dict[str, Any] = {"pool_size": pool_size, "max_overflow": 20, "pool_timeout": pool_wait}
        if self.is_sqlite:
            Path(str(self.url.database)).absolute().parent.mkdir(parents=True, exist_ok=True)
            options["connect_args"] = {"timeout": wait, "check_same_thread": False}
        else:
            # A connection that died in the pool is replaced before use instead of failing the caller.
            options["pool_pre_ping"] = True
            options["connect_args"] = {"connect_timeout": 10, "application_name": "surespan"}
        # Parameters are task texts; they must not reach a log through an error's message.
        self.engine = sa.create_engine(self.url, hide_parameters=True, **options)
        if self.is_sqlite:
            event.listen(self.engine, "connect", self._on_sqlite_connect)
            event.listen(self.engine, "begin", _begin_sqlite)
        else:
            event.listen(self.engine, "connect", self._on_postgresql_connect)

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is a local file."""
        return self.url.get_backend_name() == "sqlite"

    @property
    def name(self) -> str:
        """The database for messages, without its password."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One short writing transaction: committed and durable on leaving, or rolled back as a whole.

        Raises:
            StoreFull, StoreBusy, StoreUnavailable, StoreAgain, StoreConflict: nothing of the transaction was kept; only
                for `StoreUnavailable` during the commit itself the outcome is unknown.
        """
        with self._translate(), self.engine.connect() as connection, Session(connection) as session, session.begin():
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """One reading transaction over a single snapshot; the database refuses writes in it."""
        with self._translate(), self.engine.connect() as plain:
            if self.is_sqlite:
                connection = plain.execution_options(**{_READ: True})
            else:
                connection = plain.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with Session(connection) as session, session.begin():
                yield session

    @contextmanager
    def rebuild(self) -> Iterator[Session]:
        """One writing transaction in which tables may be dropped and made anew, for migrations alone.

        SQLite deletes the rows of a table that is dropped, and with them all that refer to them: its foreign keys are
        off until the end, and are checked there.

        Raises:
            StoreConflict: when a row refers to one that is not there; nothing was kept.
        """
        if not self.is_sqlite:
            with self.write() as session:
                yield session
            return
        with self._translate(), self.engine.connect() as connection:
            switch = connection.connection.cursor()  # not the session's: the setting changes between transactions only
            switch.execute("PRAGMA foreign_keys = OFF")
            try:
                with Session(connection) as session, session.begin():
                    yield session
                    broken = session.execute(sa.text("PRAGMA foreign_key_check")).first()
                    if broken is not None:
                        wrong = f"some of {broken[0]} that refer to none"
                        raise StoreConflict(f"{self.name}: expected rows that refer to others, got {wrong}")
            finally:
                switch.execute("PRAGMA foreign_keys = ON")

    def run(self, work: Callable[[Session], T], *, attempts: int = 4) -> T:
        """Run `work` in a writing transaction, again if the database asks for it or the connection is lost.

        `work` must come to the same end when it is run twice, because after a connection lost during the commit nobody
        knows whether the first run was kept. A busy or full database is not retried here: the wait is already over.
        """
        for attempt in range(1, attempts):
            try:
                with self.write() as session:
                    return work(session)
            except (StoreUnavailable, StoreAgain):
                time.sleep(0.05 * 2**attempt)
        with self.write() as session:
            return work(session)

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _translate(self) -> Iterator[None]:
        try:
            yield
        except (exc.DBAPIError, exc.TimeoutError, sqlite3.Error, psycopg.Error) as error:
            raise translate(error, self.name, self.wait) from error

    def _on_sqlite_connect(self, connection: Any, _record: object) -> None:  # noqa: ANN401 - a driver's object
        # Transactions are begun by `_begin_sqlite`, not by the driver's guess from the statement's first word.
        connection.isolation_level = None
        deadline = time.monotonic() + self.wait
        while True:
            try:
                if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                    connection.execute("PRAGMA journal_mode = WAL")
                break
            except connection.OperationalError as error:
                # Switching a new file to WAL does not honour the busy timeout when two processes do it at once.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # macOS: reach the disk, not its cache; elsewhere no effect
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("PRAGMA temp_store = MEMORY")

    def _on_postgresql_connect(self, connection: Any, _record: object) -> None:  # noqa: ANN401 - a driver's object
        autocommit = connection.autocommit
        connection.autocommit = True
        if connection.execute("SHOW synchronous_commit").fetchone()[0] == "off":
            connection.execute("SET synchronous_commit = on")
        connection.execute(f"SET lock_timeout = {int(self.wait * 1000)}")
        # A worker that hangs inside a transaction must not hold its locks for ever.
        connection.execute("SET idle_in_transaction_session_timeout = '10min'")
        connection.autocommit = autocommit


def translate(error: Exception, name: str, wait: float) -> StoreError:
    """Return the store's own error for a driver's, in words that say what happened and what to do."""
    if isinstance(error, exc.TimeoutError):
        return StoreBusy(
            f"{name}: expected a free connection, got none in time; too many threads use the database at once"
        )
    original = error.orig if isinstance(error, exc.DBAPIError) else error
    state = getattr(original, "sqlstate", None)
    text = str(original).strip().split("\n")[0] or type(original).__name__
    if state in _PG_FULL or "database or disk is full" in text:
        return StoreFull(
            f"{name}: expected room to write, got {text!r}; nothing was kept: free disk space and try again"
        )
    if state in _PG_BUSY or "database is locked" in text or "database table is locked" in text:
        return StoreBusy(
            f"{name}: another process held a lock for more than {wait:g} s; nothing was kept: try again, "
            "and look for a long backup or a stopped process that still has the database open"
        )
    if state in _PG_RETRY:
        return StoreAgain(f"{name}: the database rolled the transaction back ({text}); it can be run again")
    if "readonly database" in text or "read-only" in text:
        return StoreError(f"{name}: expected to be allowed to write, got {text!r}; check the file's permissions")
    lost = isinstance(error, exc.DBAPIError) and error.connection_invalidated
    if lost or _is_unreachable(original, state):
        return StoreUnavailable(
            f"{name}: expected a connection that stays up, got {text!r}; check that the database is running"
        )
    if isinstance(original, sqlite3.IntegrityError | psycopg.IntegrityError):
        return StoreConflict(f"{name}: a rule of the database refused the write: {text}")
    return StoreError(f"{name}: {text}")


def _is_unreachable(original: object, state: str | None) -> bool:
    if state is not None:
        return state.startswith(("08", "57P"))
    # Without a SQLSTATE psycopg's OperationalError means that no server answered at all.
    return isinstance(original, psycopg.OperationalError) or "unable to open database file" in str(original)


def _begin_sqlite(connection: Connection) -> None:
    reading = bool(connection.get_execution_options().get(_READ))
    # Remembered per connection of the pool: most begin as they last did.
    if connection.info.get(_READ, False) != reading:
        connection.exec_driver_sql(f"PRAGMA query_only = {int(reading)}")
        connection.info[_READ] = reading
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def database_now(session: Session) -> datetime:
    """Return the database's clock: leases of several machines must be measured by one clock."""
    if session.get_bind().dialect.name == "postgresql":
        now: datetime = session.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
        return now.astimezone(UTC)
    return datetime.now(UTC)


def is_postgresql(session: Session) -> bool:
    """Whether the session talks to PostgreSQL."""
    return session.get_bind().dialect.name == "postgresql"
