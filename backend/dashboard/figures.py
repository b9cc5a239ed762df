"""A figure: numbers with a title, one sentence that explains them, a table, a CSV file and perhaps a chart.

Every figure of every page is one of these, so that each has all of that and looks alike.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum

from backend.dashboard.charts import Chart

Value = str | int | float | date | datetime | None
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Kind(StrEnum):
    """How the values of a column are written."""

    TEXT = "text"
    CODE = "code"
    COUNT = "count"
    SHARE = "share"
    NUMBER = "number"
    TIME = "time"


@dataclass(frozen=True)
class Column:
    """A column: its heading, how its values are written, and the name of it in a CSV file."""

    title: str
    kind: Kind = Kind.TEXT

    @property
    def name(self) -> str:
        """The heading as a name.

        >>> Column("95 % from").name
        '95_from'
        """
        return "_".join("".join(c if c.isalnum() else " " for c in self.title.lower()).split())

    @property
    def is_number(self) -> bool:
        """Whether values stand to the right."""
        return self.kind in {Kind.COUNT, Kind.SHARE, Kind.NUMBER}

    def show(self, value: Value) -> str:
        """Write a value for a reader.

        >>> Column("x", Kind.SHARE).show(0.9534), Column("x", Kind.COUNT).show(12345), Column("x").show(None)
        ('95.3 %', '12,345', '–')
        """
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "–"
        if isinstance(value, datetime):
            return value.strftime("%Y-%m-%d %H:%M")
        if isinstance(value, float) and math.isinf(value):
            return "no limit" if value > 0 else "none"
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.kind is Kind.SHARE:
                return f"{100 * value:.1f} %"
            return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"
        return str(value)


@dataclass(frozen=True)
class Link:
    """Where a row leads."""

    text: str
    href: str
    label: str


@dataclass(frozen=True)
class Figure:
    """See the module. `empty` says what will be here and what it needs; `links` has one entry a row, or is empty."""

    name: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    empty: str
    chart: Chart | None = None
    lead: str = ""
    links: tuple[Link | tuple[Link, ...] | None, ...] = field(default=())

    def cells(self) -> list[list[tuple[str, Column]]]:
        """Return what the table shows."""
        return [
            [(column.show(value), column) for value, column in zip(row, self.columns, strict=True)] for row in self.rows
        ]

    def links_of(self, row: int) -> tuple[Link, ...]:
        """Return where a row leads: nowhere, to one place or to several."""
        link = self.links[row]
        return () if link is None else (link,) if isinstance(link, Link) else link

    def as_csv(self) -> str:
        """Return the numbers as they are, shares between 0 and 1, moments in UTC; nothing that a sheet would run."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\r\n")
        writer.writerow([column.name for column in self.columns])
        writer.writerows([_plain(value) for value in row] for row in self.rows)
        return out.getvalue()


def columns(*titles: str, **kinds: Sequence[int]) -> tuple[Column, ...]:
    """Return columns by their headings; `count=[1, 2]` says which (from 0) are of what kind, others are text.

    >>> [each.kind.value for each in columns("Kind", "Labels", "Share", count=[1], share=[2])]
    ['text', 'count', 'share']
    """
    of = {place: Kind(kind) for kind, places in kinds.items() for place in places}
    return tuple(Column(title, of.get(place, Kind.TEXT)) for place, title in enumerate(titles))


def _plain(value: Value) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
