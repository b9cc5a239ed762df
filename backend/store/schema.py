"""Schema versions: what this release works with, what a database has, and how to get from one to the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from backend.errors import SchemaMismatch
from backend.store.engine import Store
from backend.store.tables import Base  # with the tables in it, not the bare class that they are declared on

# An arbitrary constant that names "the schema of Surespan" among a server's advisory locks.
_SCHEMA_LOCK = 0x5375_7265_7370_616E
_LOCK_TIMEOUT = "10s"


@dataclass(frozen=True)
class SchemaState:
    """Where a database stands: its revision (None when it has no tables of ours) and this release's."""

    current: str | None
    head: str
    known: bool
    empty: bool

    @property
    def ready(self) -> bool:
        """Whether the service can work with the database as it is."""
        return self.current == self.head


def alembic_config(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration, built without any file, so that an installed wheel can migrate."""
    config = Config()
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def head_revision() -> str:
    """Return the schema revision that this release works with."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    if head is None:
        raise SchemaMismatch("expected migrations inside the installation, got none: install Surespan again")
    return head


def schema_state(store: Store) -> SchemaState:
    """Say where the database stands, without changing it."""
    with store.read() as session:
        return _state(session.connection())


def ensure_schema(store: Store) -> None:
    """Migrate an absent or empty SQLite file; refuse any other database whose schema is not this release's.

    Two processes may do this at once: the second waits for the first and finds the work done.

    Raises:
        SchemaMismatch: naming the command to run.
    """
    state = schema_state(store)
    if state.ready:
        return
    if store.is_sqlite and state.empty:
        upgrade(store, only_if_empty=True)
        state = schema_state(store)
        if state.ready:
            return
    raise SchemaMismatch(_mismatch(store, state))


def upgrade(store: Store, *, revision: str = "head", only_if_empty: bool = False) -> None:
    """Bring the schema to `revision` in one transaction: all of it, or nothing."""
    with _migrating(store) as connection:
        state = _state(connection)
        if not state.known and not state.empty:
            raise SchemaMismatch(_mismatch(store, state))
        if state.empty or not only_if_empty:
            command.upgrade(alembic_config(connection), revision)


def downgrade(store: Store, revision: str) -> None:
    """Take the schema back to `revision` in one transaction; tables that it does not have are dropped."""
    with _migrating(store) as connection:
        command.downgrade(alembic_config(connection), revision)


def schema_differences(store: Store) -> list[str]:
    """Return how the database differs from the tables in the code; empty when `upgrade` did its work."""
    with store.read() as session:
        context = MigrationContext.configure(session.connection(), opts={"compare_type": True})
        return [str(difference) for difference in compare_metadata(context, Base.metadata)]


@contextmanager
def _migrating(store: Store) -> Iterator[Connection]:
    with store.rebuild() as session:
        connection = session.connection()
        if not store.is_sqlite:
            # Waiting for a lock also makes everyone behind us wait, so give up soon and say so.
            connection.execute(sa.text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
        yield connection


def _state(connection: Connection) -> SchemaState:
    current = MigrationContext.configure(connection).get_current_revision()
    script = ScriptDirectory.from_config(alembic_config())
    known = current is None or any(revision.revision == current for revision in script.walk_revisions())
    tables = sa.inspect(connection).get_table_names()
    return SchemaState(current=current, head=head_revision(), known=known, empty=not set(tables) - {"alembic_version"})


def _mismatch(store: Store, state: SchemaState) -> str:
    got = f"{store.name}: expected schema {state.head}, got {state.current or 'none'}"
    if not state.known:
        return f"{got}, which a newer Surespan wrote: install that version, or restore a backup made before the upgrade"
    if state.current is None and not state.empty:
        return f"{got}, in a database that holds tables of something else: name an empty one in SURESPAN_DATABASE_URL"
    return f"{got}: run `surespan db upgrade` (make a copy first with `surespan db backup`)"
