"""`INSERT ... ON CONFLICT` for either database: the two dialects spell it alike but import it apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from backend.store.columns import Base
from backend.store.engine import is_postgresql

Row = TypeVar("Row", bound=Base)


def insert(session: Session, table: type[Base]) -> Any:  # noqa: ANN401 - the dialects share no typed base for it
    """Return the dialect's insert construct, which has `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return (postgresql.insert if is_postgresql(session) else sqlite.insert)(table)


def get_or_create(
    session: Session, table: type[Row], key: Mapping[str, Any], fresh: Mapping[str, Any], *, lock: bool = False
) -> Row:
    """Return the row of a unique key, created with `fresh` if it is missing; two processes get the same one.

    Looks before it inserts, because the row is nearly always there and an insert that loses costs a row id.
    """
    query = sa.select(table).filter_by(**key)
    if lock:
        query = query.with_for_update().execution_options(populate_existing=True)
    row = session.execute(query).scalar_one_or_none()
    if row is None:
        statement = insert(session, table).on_conflict_do_nothing(index_elements=list(key)).returning(table)
        row = session.scalars(statement, [dict(key) | dict(fresh)]).one_or_none()
    if row is None:  # another process was quicker
        row = session.execute(query).scalar_one()
    return row
