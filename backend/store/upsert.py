"""`INSERT ... ON CONFLICT` for either database: the two dialects spell it alike but import it apart."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from backend.store.columns import Base
from backend.store.engine import is_postgresql


def insert(session: Session, table: type[Base]) -> Any:  # noqa: ANN401 - the dialects share no typed base for it
    """Return the dialect's insert construct, which has `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return (postgresql.insert if is_postgresql(session) else sqlite.insert)(table)
