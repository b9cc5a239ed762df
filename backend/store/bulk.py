"""All scores of a (project, model) as arrays, for a refit.

One query per cell, through an index that holds all columns, and one for the entities of many cells. SQLite walks
through whole tables where most of what is in them is wanted.
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
from backend.store.engine import is_postgresql
from backend.store.tables.calibration import REFIT_COLUMNS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

Column = tuple[str, str]  # an SQL expression, with `f` for doubles and `i` for integers
Columns = dict[str, npt.NDArray[Any]]

_JOINED = 500_000
_STRAY = 4  # rows that are read in passing for each that is wanted, before an index is the quicker way
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
    alone = at_revision is None and _has_one_unit_each(cells)
    if alone:
        del wanted["unit"]
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
    if alone:
        columns["unit"] = np.zeros(len(columns["task_id"]), np.int64)
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
        f"FROM {_below(session, 'entity_scores', some)} WHERE {_within(some)} AND {_counted(at_revision)}"
        for some in _together(session, cells)
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
    columns = _join([_fetch(session, wanted, each) for each in sources], wanted)
    if labels and np.any(columns["codes"] < 0):
        return load_entities(session, cells, at_revision=at_revision)
    return EntityTable(labels=tuple(names), **_sorted(columns, by=("task_ids", "starts", "ends", "codes")))


def load_errors(session: Session, cells: Sequence[Cell], *, at_revision: int | None = None) -> ErrorTable:
    """Return the errors of the tasks of these cells, ordered by task; rows without any knowledge of them left out."""
    strata = tuple(sorted({cell.stratum for cell in cells}))
    ids = np.array(sorted(cell.id for cell in cells), np.int64)
    stratum_of = {cell.id: strata.index(cell.stratum) for cell in cells}
    counted = f"{_within(cells)} AND s.unit = 0 AND s.true_spans IS NOT NULL AND {_counted(at_revision)}"
    unindexed = " NOT INDEXED" if _is_most(session, cells) else ""
    tasks = _sorted(
        _fetch(
            session,
            {
                "task_ids": ("s.task_id", "i"),
                "codes": ("s.cell_id", "i"),
                "weight": ("s.weight", "f"),
                "true_spans": ("s.true_spans", "i"),
                "best_spans": ("s.best_spans", "i"),
            },
            f"FROM calibration_scores s{unindexed} WHERE {counted}",
        ),
        by=("task_ids",),
    )
    tasks["codes"] = np.array([stratum_of[each] for each in ids.tolist()], np.int64)[
        np.searchsorted(ids, tasks["codes"])
    ]
    errors = _sorted(
        _fetch(
            session,
            {
                "task": ("s.task_id", "i"),
                "number": ("e.number", "i"),
                "missing": ("CASE WHEN e.missing THEN 1 ELSE 0 END", "i"),
                "levels": ("e.level", "f"),
            },
            f"FROM {_below(session, 'span_errors', cells)} WHERE {counted}",
        ),
        by=("task", "number"),
    )
    return ErrorTable(
        strata=strata,
        errors_of=np.searchsorted(tasks["task_ids"], errors["task"]).astype(np.int64),
        missing=errors["missing"].astype(np.bool_),
        levels=errors["levels"],
        **tasks,
    )


def _together(session: Session, cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Yield cells in groups of about `_JOINED` rows: a join for each cell alone would read all entities every time.

    SQLite, which packs nothing into one value, has them all in one.
    """
    group: list[Cell] = []
    for cell in cells:
        group.append(cell)
        if sum(each.n for each in group) >= _JOINED and is_postgresql(session):
            yield group
            group = []
    if group:
        yield group


def _has_one_unit_each(cells: Sequence[Cell]) -> bool:
    """Whether all rows that count now are the first unit of a task: their number needs no reading."""
    return all(cell.tasks == cell.n for cell in cells)


def _within(cells: Sequence[Cell]) -> str:
    return f"s.cell_id IN ({', '.join(str(int(cell.id)) for cell in cells) or 'NULL'})"


def _below(session: Session, table: str, cells: Sequence[Cell]) -> str:
    """Return a table of what lies below calibration rows, as `e`, joined to those rows, as `s`."""
    # SQLite does not turn the tables of a CROSS JOIN round: it walks through the first.
    join = "CROSS JOIN" if _is_most(session, cells) else "JOIN"
    return f"{table} e {join} calibration_scores s ON s.id = e.score_id"


def _is_most(session: Session, cells: Sequence[Cell]) -> bool:
    """Whether SQLite had better walk through whole tables: a row that an index leads to costs it several times more.

    PostgreSQL knows what its tables hold, and decides by itself.
    """
    if is_postgresql(session):
        return False
    last = session.execute(sa.text("SELECT max(id) FROM calibration_scores")).scalar_one() or 0
    return sum(cell.n for cell in cells) * _STRAY >= last


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


def _sorted(columns: Columns, *, by: Sequence[str]) -> Columns:
    order = np.lexsort([columns[name] for name in reversed(by)])
    return {name: column[order] for name, column in columns.items()}


def _fetch(session: Session, wanted: Mapping[str, Column], source: str, *, order: str = "") -> Columns:
    """Return columns of a query as arrays, by name; in any order where none is asked for."""
    ordered = f" ORDER BY {order}" if order else ""
    driver = session.connection().connection.driver_connection
    if isinstance(driver, PsycopgConnection):
        return _fetch_packed(driver, wanted, source, ordered)
    assert isinstance(driver, sqlite3.Connection)  # noqa: S101 - the only other driver of the product
    rows = driver.execute(f"SELECT {', '.join(sql for sql, _ in wanted.values())} {source}{ordered}")
    # Integers are ids and offsets, which doubles hold exactly below 2**53.
    table = np.fromiter(chain.from_iterable(rows), np.float64).reshape(-1, len(wanted))
    return {
        name: np.ascontiguousarray(table[:, i]).astype(_TYPES[kind], copy=False)
        for i, (name, (_, kind)) in enumerate(wanted.items())
    }


def _fetch_packed(driver: PsycopgConnection[Any], wanted: Mapping[str, Column], source: str, ordered: str) -> Columns:
    send = {"f": "float8send({})", "i": "int8send(({})::bigint)"}
    packed = " || ".join(send[kind].format(sql) for sql, kind in wanted.values())
    # From the index the rows come in this order anyhow (PostgreSQL 16 knows); before that they are sorted.
    query = f"SELECT string_agg({packed}, ''::bytea{ordered}) {source}"
    with driver.cursor(binary=True) as cursor:
        row = cursor.execute(query.encode()).fetchone()
    data = b"" if row is None or row[0] is None else row[0]
    table = np.frombuffer(data, np.dtype([(name, f">{kind}8") for name, (_, kind) in wanted.items()]))
    return {name: table[name].astype(_TYPES[kind]) for name, (_, kind) in wanted.items()}
