"""All scores of a (project, model) as arrays, for a refit: one pass, no object per row that numpy does not need.

PostgreSQL sends them as a binary copy that numpy reads in place; SQLite hands out tuples, from an index that holds all
columns in order. Doubles come back bit for bit on both, `+inf` included.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa
from psycopg import Connection as PsycopgConnection
from sqlalchemy.orm import Session

from backend.store.engine import is_postgresql
from backend.store.types import Cell

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_PG_HEADER = 19  # signature, flags and extension length of PostgreSQL's binary copy format
_PG_TRAILER = 2
_COLUMNS = "nll, rank, cumulative, weight, task_id"
_TYPES: dict[str, type[np.float64 | np.int64]] = {"f": np.float64, "t": np.int64}


@dataclass(frozen=True)
class ScoreTable:
    """Scores by cell: rows `offsets[i]:offsets[i+1]` belong to `cells[i]`, sorted by `nll` within the cell."""

    cells: tuple[Cell, ...]
    offsets: Ints  # (C + 1,)
    nll: Floats  # (n,)
    rank: Floats  # (n,)
    cumulative: Floats  # (n,)
    weight: Floats  # (n,)
    task_ids: Ints  # (n,)

    def rows(self, index: int) -> slice:
        """Return the rows of the cell at `index`."""
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))


@dataclass(frozen=True)
class EntityTable:
    """Entity rows of many tasks, ordered by task id; `labels[codes[i]]` is the class of row i."""

    labels: tuple[str, ...]
    task_ids: Ints  # (m,)
    codes: Ints  # (m,)
    starts: Ints  # (m,)
    ends: Ints  # (m,)
    probability: Floats  # (m,)
    cumulative: Floats  # (m,)
    place: Floats  # (m,)
    rank: Floats  # (m,)


def load_scores(session: Session, cells: Sequence[Cell], *, at_revision: int | None = None) -> ScoreTable:
    """Return the scores of these cells: the live rows, or those that counted at `at_revision`.

    Use a session of `Store.read()`, so that the cells' counters and the rows are of one moment.
    """
    counts, columns = [], []
    for cell in cells:
        # The first index of the table holds these columns in this order, so nothing is sorted and no row is visited.
        statement = (
            f"SELECT {_COLUMNS} FROM calibration_scores "  # noqa: S608 - names and integers of our own
            f"WHERE cell_id = {int(cell.id)} AND {_counted(at_revision)} ORDER BY {_COLUMNS}"
        )
        rows = _fetch(session, statement, "fffft")
        counts.append(len(rows[0]))
        columns.append(rows)
    nll, rank, cumulative, weight, task_ids = _join(columns, "fffft")
    return ScoreTable(
        cells=tuple(cells),
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        nll=nll,
        rank=rank,
        cumulative=cumulative,
        weight=weight,
        task_ids=task_ids,
    )


def load_entities(session: Session, cells: Sequence[Cell], *, at_revision: int | None = None) -> EntityTable:
    """Return the entity rows below the calibration rows of these cells (METHODS 6.2 weighs them by task)."""
    counted = _counted(at_revision)
    wanted = (
        "FROM entity_scores e JOIN calibration_scores s ON s.id = e.score_id "
        f"WHERE s.cell_id IN ({_integers([cell.id for cell in cells])}) AND {counted}"
    )
    names = [str(row[0]) for row in session.execute(sa.text(f"SELECT DISTINCT e.label {wanted} ORDER BY 1"))]
    names.sort()  # the database's collation is not Python's
    cases = " ".join(f"WHEN {_quote(name)} THEN {i}" for i, name in enumerate(names))
    code = f"CASE e.label {cases} END" if names else "0"
    cast = (lambda text: f"CAST({text} AS bigint)") if is_postgresql(session) else (lambda text: text)
    statement = (
        f"SELECT s.task_id, {cast(code)}, {cast('e.start')}, {cast('e.stop')}, "
        f"e.probability, e.cumulative, e.place, e.rank {wanted} ORDER BY s.task_id, e.start, e.stop, e.label"
    )
    task_ids, codes, starts, ends, probability, cumulative, place, rank = _fetch(session, statement, "ttttffff")
    return EntityTable(
        labels=tuple(names),
        task_ids=task_ids,
        codes=codes,
        starts=starts,
        ends=ends,
        probability=probability,
        cumulative=cumulative,
        place=place,
        rank=rank,
    )


def _counted(revision: int | None) -> str:
    if revision is None:
        return "removed_at_revision IS NULL"
    return (
        f"added_at_revision <= {int(revision)} "
        f"AND (removed_at_revision IS NULL OR removed_at_revision > {int(revision)})"
    )


def _integers(ids: Sequence[int]) -> str:
    return ", ".join(str(int(each)) for each in ids) or "NULL"


def _quote(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _join(pieces: list[list[Any]], kinds: str) -> list[Any]:
    if not pieces:
        return [np.zeros(0, _TYPES[kind]) for kind in kinds]
    return [np.concatenate(column) for column in zip(*pieces, strict=True)]


def _fetch(session: Session, statement: str, kinds: str) -> list[Any]:
    """Return the columns of a query as arrays: `f` for doubles, `t` for 64-bit integers."""
    driver = session.connection().connection.driver_connection
    if isinstance(driver, PsycopgConnection):
        return _fetch_binary(driver, statement, kinds)
    assert isinstance(driver, sqlite3.Connection)  # noqa: S101 - the only other driver of the product
    # One flat array of doubles is filled without a detour; integers are ids, which doubles hold exactly below 2**53.
    flat = np.fromiter(chain.from_iterable(driver.execute(statement)), np.float64)
    table = flat.reshape(-1, len(kinds))
    return [np.ascontiguousarray(table[:, i]).astype(_TYPES[kind], copy=False) for i, kind in enumerate(kinds)]


def _fetch_binary(driver: PsycopgConnection[Any], statement: str, kinds: str) -> list[Any]:
    with driver.cursor() as cursor, cursor.copy(f"COPY ({statement}) TO STDOUT (FORMAT BINARY)".encode()) as copy:
        data = b"".join(bytes(block) for block in copy)
    # A row is a field count, then for each field its length and its value, all big-endian and of fixed size here.
    layout: list[tuple[str, str]] = [("fields", ">i2")]
    for i, kind in enumerate(kinds):
        layout += [(f"size{i}", ">i4"), (f"value{i}", ">f8" if kind == "f" else ">i8")]
    table = np.frombuffer(data[_PG_HEADER : len(data) - _PG_TRAILER], np.dtype(layout))
    return [table[f"value{i}"].astype(_TYPES[kind]) for i, kind in enumerate(kinds)]
