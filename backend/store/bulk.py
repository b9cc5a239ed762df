"""All scores of a (project, model) as arrays, for a refit.

One query per cell, through an index that holds all columns, and one for the entities of many cells.
PostgreSQL packs a cell's rows into one value in its own binary format, which numpy reads in place: a message per row
would cost several times more than reading the index. SQLite hands its numbers out one by one, into one flat array.
Doubles come back bit for bit on both, `+inf` included.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa
from psycopg import Connection as PsycopgConnection
from sqlalchemy.orm import Session

from backend.store.types import Cell

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_SCORES = {"nll": "f", "rank": "f", "cumulative": "f", "weight": "f", "task_id": "i"}
_JOINED = 500_000
_TYPES: dict[str, type[np.float64 | np.int64]] = {"f": np.float64, "i": np.int64}


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
    pieces = [
        _fetch(
            session,
            _SCORES,
            f"FROM calibration_scores WHERE cell_id = {int(cell.id)} AND {_counted(at_revision)}",
            order=", ".join(_SCORES),
        )
        for cell in cells
    ]
    nll, rank, cumulative, weight, task_ids = _join(pieces, _SCORES)
    return ScoreTable(
        cells=tuple(cells),
        offsets=np.concatenate([[0], np.cumsum([len(piece[0]) for piece in pieces])]).astype(np.int64),
        nll=nll,
        rank=rank,
        cumulative=cumulative,
        weight=weight,
        task_ids=task_ids,
    )


def load_entities(
    session: Session, cells: Sequence[Cell], *, at_revision: int | None = None, labels: Sequence[str] = ()
) -> EntityTable:
    """Return the entity rows below the calibration rows of these cells (METHODS 6.2 weighs them by task).

    Args:
        labels: those that are expected, which saves looking for them; others are found all the same.
    """
    sources = [
        "FROM entity_scores e JOIN calibration_scores s ON s.id = e.score_id "
        f"WHERE s.cell_id IN ({', '.join(str(int(cell.id)) for cell in some)}) AND {_counted(at_revision)}"
        for some in _together(cells)
    ]
    names = sorted(set(labels)) or sorted(
        {str(row[0]) for each in sources for row in session.execute(sa.text(f"SELECT DISTINCT e.label {each}"))}
    )
    cases = " ".join(f"WHEN {_quote(name)} THEN {i}" for i, name in enumerate(names))
    columns = {
        "s.task_id": "i",
        f"CASE e.label {cases} ELSE -1 END" if names else "-1": "i",
        "e.start": "i",
        "e.stop": "i",
        "e.probability": "f",
        "e.cumulative": "f",
        "e.place": "f",
        "e.rank": "f",
    }
    pieces = [_fetch(session, columns, each, order="s.task_id, e.start, e.stop, e.label") for each in sources]
    joined = _join(pieces, columns)
    by_task = np.argsort(joined[0], kind="stable")
    task_ids, codes, starts, ends, probability, cumulative, place, rank = (column[by_task] for column in joined)
    if labels and np.any(codes < 0):
        return load_entities(session, cells, at_revision=at_revision)
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


def _together(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Yield cells in groups of about `_JOINED` rows: a join for each cell alone would read all entities every time."""
    group: list[Cell] = []
    for cell in cells:
        group.append(cell)
        if sum(each.n for each in group) >= _JOINED:
            yield group
            group = []
    if group:
        yield group


def _counted(revision: int | None) -> str:
    if revision is None:
        return "removed_at_revision IS NULL"
    return (
        f"added_at_revision <= {int(revision)} "
        f"AND (removed_at_revision IS NULL OR removed_at_revision > {int(revision)})"
    )


def _quote(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _join(pieces: list[list[Any]], columns: Mapping[str, str]) -> list[Any]:
    if not pieces:
        return [np.zeros(0, _TYPES[kind]) for kind in columns.values()]
    return [np.concatenate(column) for column in zip(*pieces, strict=True)]


def _fetch(session: Session, columns: Mapping[str, str], source: str, *, order: str) -> list[Any]:
    """Return columns of a query as arrays; `columns` are SQL expressions with `f` for doubles, `i` for integers."""
    driver = session.connection().connection.driver_connection
    if isinstance(driver, PsycopgConnection):
        return _fetch_packed(driver, columns, source, order)
    assert isinstance(driver, sqlite3.Connection)  # noqa: S101 - the only other driver of the product
    rows = driver.execute(f"SELECT {', '.join(columns)} {source} ORDER BY {order}")
    # Integers are ids and offsets, which doubles hold exactly below 2**53.
    table = np.fromiter(chain.from_iterable(rows), np.float64).reshape(-1, len(columns))
    kinds = enumerate(columns.values())
    return [np.ascontiguousarray(table[:, i]).astype(_TYPES[kind], copy=False) for i, kind in kinds]


def _fetch_packed(driver: PsycopgConnection[Any], columns: Mapping[str, str], source: str, order: str) -> list[Any]:
    send = {"f": "float8send({})", "i": "int8send(({})::bigint)"}
    packed = " || ".join(send[kind].format(column) for column, kind in columns.items())
    # From the index the rows come in this order anyhow (PostgreSQL 16 knows); before that they are sorted.
    query = f"SELECT string_agg({packed}, ''::bytea ORDER BY {order}) {source}"
    with driver.cursor(binary=True) as cursor:
        row = cursor.execute(query.encode()).fetchone()
    data = b"" if row is None or row[0] is None else row[0]
    table = np.frombuffer(data, np.dtype([(f"c{i}", f">{kind}8") for i, kind in enumerate(columns.values())]))
    return [table[f"c{i}"].astype(_TYPES[kind]) for i, kind in enumerate(columns.values())]
