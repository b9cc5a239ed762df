"""How Alembic reaches the database: a connection handed over by the product, or the settings' URL."""

from __future__ import annotations

from alembic import context
from sqlalchemy.engine import Connection

import backend.store.tables
from backend.store.columns import Base
from backend.store.engine import Store

assert backend.store.tables.__all__, "the tables must be imported before their metadata is read"  # noqa: S101


def run(connection: Connection) -> None:
    # The caller owns the transaction on both databases, so a migration is kept as a whole or not at all.
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_type=True,
        transaction_per_migration=False,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    context.run_migrations()


def main() -> None:
    given = context.config.attributes.get("connection")
    if given is not None:
        run(given)
        return
    # Only the developers' `alembic` command comes here; `surespan db` hands its connection over.
    from backend.settings import load_settings  # noqa: PLC0415

    with Store(load_settings().database_url) as store, store.write() as session:
        run(session.connection())


main()
