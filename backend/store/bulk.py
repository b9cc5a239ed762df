"""All scores of a (project, model) as arrays, for a refit: one pass, no object per row that numpy does not need.

PostgreSQL sends them as a binary copy that numpy reads in place; SQLite hands out tuples, from an index that holds all
columns in order. Doubles come back bit for bit on both, `+inf` included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    ids = [cell.id for cell in cells]
    columns = ("cell_id", "nll", "rank", "cumulative", "weight", "task_id")
    kinds = ("i8", "f8", "f8", "f8", "f8", "i8")
    statement = (
        f"SELECT {', '.join(columns)} FROM calibration_scores "  # noqa: S608 - names and integers of our own
        f"WHERE cell_id IN ({_integers(ids)}) AND {_counted(at_revision)} ORDER BY cell_id, nll"
    )
    table = _fetch(session, statement, dict(zip(columns, kinds, strict=True)))
    # Cells are numbered in order of creation; the caller's order is by name.
    places = np.searchsorted(np.sort(np.array(ids, np.int64)), table["cell_id"]) if ids else table["cell_id"]
    counts = np.bincount(places, minlength=len(ids)) if ids else np.zeros(0, np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    order = np.argsort(np.array(ids, np.int64), kind="stable")
    position = np.empty(len(ids), np.int64)
    position[order] = np.arange(len(ids))  # position[i]: place of cells[i] among the sorted ids
    pieces = [slice(int(starts[place]), int(starts[place + 1])) for place in position]
    offsets = np.concatenate([[0], np.cumsum([piece.stop - piece.start for piece in pieces])]).astype(np.int64)
    gathered = {name: _gather(table[name], pieces) for name in ("nll", "rank", "cumulative", "weight", "task_id")}
    return ScoreTable(
        cells=tuple(cells),
        offsets=offsets,
        nll=gathered["nll"].astype(np.float64, copy=False),
        rank=gathered["rank"].astype(np.float64, copy=False),
        cumulative=gathered["cumulative"].astype(np.float64, copy=False),
        weight=gathered["weight"].astype(np.float64, copy=False),
        task_ids=gathered["task_id"].astype(np.int64, copy=False),
    )


def load_entities(session: Session, cells: Sequence[Cell], *, at_revision: int | None = None) -> EntityTable:
    """Return the entity rows below the calibration rows of these cells (METHODS 6.2 weighs them by task)."""
    counted = _counted(at_revision)
    wanted = f"FROM entity_scores e JOIN calibration_scores s ON s.id = e.score_id WHERE s.cell_id IN ({_integers([cell.id for cell in cells])}) AND {counted}"  # noqa: E501
    names = [str(row[0]) for row in session.execute(sa.text(f"SELECT DISTINCT e.label {wanted} ORDER BY 1"))]
    names.sort()  # the database's collation is not Python's
    cases = " ".join(f"WHEN {_quote(name)} THEN {i}" for i, name in enumerate(names))
    code = f"CASE e.label {cases} END" if names else "0"
    columns = {
        "task_id": "i8",
        "code": "i8",
        "start": "i8",
        "stop": "i8",
        "probability": "f8",
        "cumulative": "f8",
        "place": "f8",
        "rank": "f8",
    }
    cast = (lambda text: f"CAST({text} AS bigint)") if is_postgresql(session) else (lambda text: text)
    statement = (
        f"SELECT s.task_id, {cast(code)} AS code, {cast('e.start')}, {cast('e.stop')}, "
        f"e.probability, e.cumulative, e.place, e.rank {wanted} ORDER BY s.task_id, e.start, e.stop, e.label"
    )
    table = _fetch(session, statement, columns)
    ints = {name: table[name].astype(np.int64) for name in ("task_id", "code", "start", "stop")}
    floats = {name: table[name].astype(np.float64) for name in ("probability", "cumulative", "place", "rank")}
    return EntityTable(
        labels=tuple(names),
        task_ids=ints["task_id"],
        codes=ints["code"],
        starts=ints["start"],
        ends=ints["stop"],
        probability=floats["probability"],
        cumulative=floats["cumulative"],
        place=floats["place"],
        rank=floats["rank"],
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


def _gather(column: npt.NDArray[np.generic], pieces: list[slice]) -> npt.NDArray[np.generic]:
    return np.concatenate([column[piece] for piece in pieces]) if pieces else column[:0]


def _fetch(session: Session, statement: str, columns: dict[str, str]) -> npt.NDArray[np.void]:
    driver = session.connection().connection.driver_connection
    if not is_postgresql(session):
        dtype = np.dtype(list(columns.items()))
        return np.fromiter(driver.execute(statement), dtype)  # type: ignore[union-attr]
    assert isinstance(driver, PsycopgConnection)  # noqa: S101 - the only PostgreSQL driver of the product
    with driver.cursor() as cursor, cursor.copy(f"COPY ({statement}) TO STDOUT (FORMAT BINARY)".encode()) as copy:
        data = b"".join(bytes(block) for block in copy)
    # A row is a field count, then for each field its length and its value, all big-endian and of fixed size here.
    layout: list[tuple[str, str]] = [("_fields", ">i2")]
    for name, kind in columns.items():
        layout += [(f"_{name}", ">i4"), (name, f">{kind}")]
    body = data[_PG_HEADER : len(data) - _PG_TRAILER]
    return np.frombuffer(body, np.dtype(layout))
