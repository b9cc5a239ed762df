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

from backend.domain.records import Cell
from backend.store.tables.calibration import REFIT_COLUMNS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

Column = tuple[str, str]  # an SQL expression, with `f` for doubles and `i` for integers
Columns = dict[str, npt.NDArray[Any]]

_JOINED = 500_000
_TYPES: dict[str, type[np.float64 | np.int64]] = {"f": np.float64, "i": np.int64}
_ENTITY_SCORES = ("probability", "cumulative", "class_rank", "rank")


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
    units: Ints  # (n,) number of the unit within its task

    def rows(self, index: int) -> slice:
        """Return the rows of the cell at `index`."""
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))


@dataclass(frozen=True)
class EntityTable:
    """Entity rows of many tasks, ordered by task id; `labels[codes[i]]` is the class of row i; see `EntityRow`."""

    labels: tuple[str, ...]
    task_ids: Ints  # (m,)
    units: Ints  # (m,)
    codes: Ints  # (m,)
    starts: Ints  # (m,)
    ends: Ints  # (m,)
    probability: Floats  # (m,)
    cumulative: Floats  # (m,)
    class_rank: Floats  # (m,)
    rank: Floats  # (m,)


@dataclass(frozen=True)
class ErrorTable:
    """Errors of many tasks' best labelings: a row for each task, and one for each error (METHODS 11.3).

    `strata[codes[i]]` is the stratum of the task's first unit; `errors_of[j]` is the position of error j's task.
    """

    strata: tuple[str, ...]
    task_ids: Ints  # (n,)
    codes: Ints  # (n,)
    weight: Floats  # (n,)
    true_spans: Ints  # (n,)
    best_spans: Ints  # (n,)
    errors_of: Ints  # (m,)
    missing: npt.NDArray[np.bool_]  # (m,)
    levels: Floats  # (m,)


def load_scores(session: Session, cells: Sequence[Cell], *, at_revision: int | None = None) -> ScoreTable:
    """Return the scores of these cells: the live rows, or those that counted at `at_revision`.

    Use a session of `Store.read()`, so that the cells' counters and the rows are of one moment.
    """
    wanted = {name: (name, "i" if name in {"task_id", "unit"} else "f") for name in REFIT_COLUMNS}
    pieces = [
        _fetch(
            session,
            wanted,
            f"FROM calibration_scores WHERE cell_id = {int(cell.id)} AND {_counted(at_revision)}",
            order=", ".join(REFIT_COLUMNS),
        )
        for cell in cells
    ]
    columns = _join(pieces, wanted)
    return ScoreTable(
        cells=tuple(cells),
        offsets=np.concatenate([[0], np.cumsum([len(piece["task_id"]) for piece in pieces])]).astype(np.int64),
        task_ids=columns.pop("task_id"),
        units=columns.pop("unit"),
        **columns,
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
    wanted = {
        "task_ids": ("s.task_id", "i"),
        "units": ("s.unit", "i"),
        "codes": (f"CASE e.label {cases} ELSE -1 END" if names else "-1", "i"),
        "starts": ("e.start", "i"),
        "ends": ("e.stop", "i"),
        **{name: (f"e.{name}", "f") for name in _ENTITY_SCORES},
    }
    pieces = [_fetch(session, wanted, each, order="s.task_id, e.start, e.stop, e.label") for each in sources]
    columns = _join(pieces, wanted)
    by_task = np.argsort(columns["task_ids"], kind="stable")
    columns = {name: column[by_task] for name, column in columns.items()}
    if labels and np.any(columns["codes"] < 0):
        return load_entities(session, cells, at_revision=at_revision)
    return EntityTable(labels=tuple(names), **columns)


def load_errors(session: Session, cells: Sequence[Cell], *, at_revision: int | None = None) -> ErrorTable:
    """Return the errors of the tasks of these cells, ordered by task; rows without any knowledge of them left out."""
    strata = tuple(sorted({cell.stratum for cell in cells}))
    position = {cell.id: strata.index(cell.stratum) for cell in cells}
    cases = " ".join(f"WHEN {int(number)} THEN {at}" for number, at in position.items())
    source = (
        f"calibration_scores s WHERE s.cell_id IN ({', '.join(str(int(cell.id)) for cell in cells) or 'NULL'}) "
        f"AND s.unit = 0 AND s.true_spans IS NOT NULL AND {_counted(at_revision)}"
    )
    tasks = _fetch(
        session,
        {
            "task_ids": ("s.task_id", "i"),
            "codes": (f"CASE s.cell_id {cases} ELSE -1 END" if cases else "-1", "i"),
            "weight": ("s.weight", "f"),
            "true_spans": ("s.true_spans", "i"),
            "best_spans": ("s.best_spans", "i"),
        },
        f"FROM {source}",
        order="s.task_id",
    )
    errors = _fetch(
        session,
        {
            "task": ("s.task_id", "i"),
            "missing": ("CASE WHEN e.missing THEN 1 ELSE 0 END", "i"),
            "levels": ("e.level", "f"),
        },
        f"FROM span_errors e JOIN {source.replace(' WHERE ', ' ON s.id = e.score_id WHERE ', 1)}",
        order="s.task_id, e.number",
    )
    return ErrorTable(
        strata=strata,
        errors_of=np.searchsorted(tasks["task_ids"], errors["task"]).astype(np.int64),
        missing=errors["missing"].astype(np.bool_),
        levels=errors["levels"],
        **tasks,
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


def _join(pieces: list[Columns], wanted: Mapping[str, Column]) -> Columns:
    if not pieces:
        return {name: np.zeros(0, _TYPES[kind]) for name, (_, kind) in wanted.items()}
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in wanted}


def _fetch(session: Session, wanted: Mapping[str, Column], source: str, *, order: str) -> Columns:
    """Return columns of a query as arrays, by name."""
    driver = session.connection().connection.driver_connection
    if isinstance(driver, PsycopgConnection):
        return _fetch_packed(driver, wanted, source, order)
    assert isinstance(driver, sqlite3.Connection)  # noqa: S101 - the only other driver of the product
    rows = driver.execute(f"SELECT {', '.join(sql for sql, _ in wanted.values())} {source} ORDER BY {order}")
    # Integers are ids and offsets, which doubles hold exactly below 2**53.
    table = np.fromiter(chain.from_iterable(rows), np.float64).reshape(-1, len(wanted))
    return {
        name: np.ascontiguousarray(table[:, i]).astype(_TYPES[kind], copy=False)
        for i, (name, (_, kind)) in enumerate(wanted.items())
    }


def _fetch_packed(driver: PsycopgConnection[Any], wanted: Mapping[str, Column], source: str, order: str) -> Columns:
    send = {"f": "float8send({})", "i": "int8send(({})::bigint)"}
    packed = " || ".join(send[kind].format(sql) for sql, kind in wanted.values())
    # From the index the rows come in this order anyhow (PostgreSQL 16 knows); before that they are sorted.
    query = f"SELECT string_agg({packed}, ''::bytea ORDER BY {order}) {source}"
    with driver.cursor(binary=True) as cursor:
        row = cursor.execute(query.encode()).fetchone()
    data = b"" if row is None or row[0] is None else row[0]
    table = np.frombuffer(data, np.dtype([(name, f">{kind}8") for name, (_, kind) in wanted.items()]))
    return {name: table[name].astype(_TYPES[kind]) for name, (_, kind) in wanted.items()}
