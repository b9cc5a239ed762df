"""The product's memory: tables, transactions and repository functions, on SQLite or PostgreSQL.

Functions take a session of `Store.write()` or `Store.read()` and return frozen domain objects, never ORM rows. Only
light modules are imported here: no model, no kernels.
"""

from backend.store.engine import Store

__all__ = ["Store", "open_store"]


def open_store(database_url: str, *, wait: float = 30.0) -> Store:
    """Return a store whose schema fits this release.

    An absent or empty SQLite file is migrated; anything else that does not fit is refused.

    Raises:
        SchemaMismatch: with the command to run.
        InvalidSetting: when the URL cannot be used.
    """
    from backend.store.schema import ensure_schema  # noqa: PLC0415 - Alembic is needed only when opening

    store = Store(database_url, wait=wait)
    try:
        ensure_schema(store)
    except BaseException:
        store.close()
        raise
    return store
