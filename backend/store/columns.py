"""Column types that behave the same on SQLite and PostgreSQL, and the declarative base."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase

# Constraint names are fixed, so that a migration can name what it changes on either database.
NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

# SQLite numbers rows by itself only when the key is declared INTEGER (which holds 64 bits there).
BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


class Base(DeclarativeBase):
    """Declarative base of every table."""

    metadata = sa.MetaData(naming_convention=NAMING)


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """A moment in UTC, with microseconds; naive values are refused, because their moment is unknown."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        """PostgreSQL keeps the zone; SQLite keeps text, which sorts as time only when all of it is UTC."""
        return dialect.type_descriptor(sa.DateTime(timezone=dialect.name == "postgresql"))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Turn an aware value into UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"expected a datetime with a time zone, got the naive {value!r}")
        value = value.astimezone(UTC)
        return value if dialect.name == "postgresql" else value.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return an aware value in UTC, whatever zone the server speaks."""
        if value is None:
            return None
        return value.astimezone(UTC) if dialect.name == "postgresql" else value.replace(tzinfo=UTC)


class ExactText(sa.types.TypeDecorator[str]):
    """Any Python string, kept code point for code point.

    PostgreSQL's text refuses NUL and both drivers refuse lone surrogates, yet JSON can carry either.
    Losing an annotation to one odd character is worse than bytes in the SQL shell, so the text is stored
    as UTF-8 bytes with surrogates passed through.
    """

    impl = sa.LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002
        """Encode."""
        return None if value is None else value.encode("utf-8", "surrogatepass")

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Decode."""
        return None if value is None else bytes(value).decode("utf-8", "surrogatepass")
