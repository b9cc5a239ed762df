"""Errors of best labelings in both databases: written, read, filled in, kept, and as they were at any revision."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import sqlalchemy as sa

from backend.calibration.order import record_order
from backend.calibration.reconsider import reconsider
from backend.domain.records import (
    AnnotationRecord,
    Draw,
    ErrorRow,
    ProjectRecord,
    SequenceScores,
    Served,
    TextSpan,
    UnitRow,
)
from backend.domain.streams import Order
from backend.store import Store
from backend.store.bulk import ErrorTable, load_errors
from backend.store.calibration import (
    has_unplaced,
    head_revision,
    load_cells,
    record_units,
    recount_cells,
    withdraw_scores,
)
from backend.store.labels import record_annotation, unscored_labels
from backend.store.projects import ensure_model, ensure_project, ensure_task
from backend.store.rows import row_errors, task_units
from backend.store.served import record_served, served_before
from backend.store.tables import CalibrationScore, SpanError

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
SOME = ErrorRow(3, 2, missing=(0.25, 0.0, 1 / 3), false=(1e-4, 1.0))


class Rows:
    """A project with labelled tasks, and their calibration rows."""

    def __init__(self, store: Store, tasks: int = 4) -> None:
        self.store = store
        with store.write() as session:
            self.project: ProjectRecord = ensure_project(session, "1.17")
            self.model = ensure_model(session, "m", "ab" * 32, classes=["PER", "LOC"]).id
            self.tasks = []
            for number in range(tasks):
                draw = Draw("uniform", number / 10, 1.0, blind=True)
                task = ensure_task(
                    session, self.project.id, external_id=str(number), text=f"text {number}", draw=draw
                ).id
                record_annotation(session, task, AnnotationRecord(number, WHEN, (TextSpan(0, 4, "PER"),)))
                self.tasks.append(task)

    def put(
        self,
        number: int,
        errors: ErrorRow | None,
        *,
        strata: tuple[str, ...] = ("en/1-10",),
        evidence: str = "blind",
        weight: float = 1.0,
    ) -> bool:
        units = [
            UnitRow(stratum, SequenceScores(1.0 + i, 1.0, 0.5), start=10 * i, end=10 * i + 10, drawn=i == 0)
            for i, stratum in enumerate(strata)
        ]
        with self.store.write() as session:
            return record_units(
                session, self.project.id, model_id=self.model, task_id=self.tasks[number], label_revision=1,
                evidence=evidence, units=units, weight=weight, errors=errors,
            )  # fmt: skip

    def revision(self) -> int:
        with self.store.read() as session:
            return head_revision(session, self.project.id, model_id=self.model)

    def read(self, number: int) -> ErrorRow | None:
        with self.store.read() as session:
            first, *_ = task_units(session, self.tasks[number], model_id=self.model)
            return row_errors(session, first)

    def table(self, *, at_revision: int | None = None, strata: tuple[str, ...] = ()) -> ErrorTable:
        with self.store.read() as session:
            cells = load_cells(session, self.project.id, model_id=self.model)
            chosen = [cell for cell in cells if not strata or cell.stratum in strata]
            return load_errors(session, chosen, at_revision=at_revision)

    def waiting(self) -> list[int]:
        with self.store.read() as session:
            found = unscored_labels(session, self.project.id, model_id=self.model)
            assert has_unplaced(session, self.project.id, model_id=self.model) == any(
                task_units(session, label.task_id, model_id=self.model) for label in found
            )
        return [self.tasks.index(label.task_id) for label in found]

    def count(self) -> int:
        with self.store.read() as session:
            return session.execute(sa.select(sa.func.count()).select_from(CalibrationScore)).scalar_one()


@pytest.fixture
def rows(store: Store) -> Rows:
    return Rows(store)


def as_rows(table: ErrorTable) -> dict[int, ErrorRow]:
    """The table as records again, by task."""
    found = {}
    for i, task in enumerate(table.task_ids.tolist()):
        mine = table.errors_of == i
        found[task] = ErrorRow(
            int(table.true_spans[i]),
            int(table.best_spans[i]),
            missing=tuple(table.levels[mine & table.missing].tolist()),
            false=tuple(table.levels[mine & ~table.missing].tolist()),
        )
    return found


def test_errors_come_back_as_they_were_written(rows: Rows) -> None:
    assert rows.put(0, SOME)
    assert rows.read(0) == SOME
    assert not rows.put(0, SOME), "the same again changes nothing"
    assert rows.put(1, ErrorRow(0, 0))
    assert rows.read(1) == ErrorRow(0, 0)
    assert rows.put(0, replace(SOME, false=(1e-4,), best_spans=1)), "other errors are another row"
    assert rows.read(0) == ErrorRow(3, 1, missing=SOME.missing, false=(1e-4,))
    assert rows.count() == 3
    with rows.store.read() as session:
        counted = recount_cells(session, rows.project.id, model_id=rows.model)
        cells = load_cells(session, rows.project.id, model_id=rows.model)
    assert {cell.id: (cell.n, cell.n_infinite, cell.tasks) for cell in cells} == counted


def test_a_document_keeps_its_errors_once_with_its_first_unit(rows: Rows) -> None:
    rows.put(0, SOME, strata=("en/1-10", "en/11-20", "en/1-10"))
    with rows.store.read() as session:
        units = task_units(session, rows.tasks[0], model_id=rows.model)
        assert [(unit.true_spans, unit.best_spans) for unit in units] == [(3, 2), (None, None), (None, None)]
        assert [row_errors(session, unit) for unit in units] == [SOME, None, None]
    assert rows.waiting() == [1, 2, 3]
    table = rows.table()
    assert as_rows(table) == {rows.tasks[0]: SOME}
    assert table.strata[table.codes[0]] == "en/1-10"
    # Asked for the cell of a further unit alone: the task belongs to that of its first.
    assert rows.table(strata=("en/11-20",)).task_ids.tolist() == []


def test_rows_of_an_earlier_release_are_filled_in_where_they_are(rows: Rows) -> None:
    for number in range(3):
        rows.put(number, None)
    assert rows.waiting() == [0, 1, 2, 3]
    assert rows.read(0) is None
    assert rows.table().task_ids.tolist() == []
    before, count = rows.revision(), rows.count()
    assert not rows.put(0, SOME)
    assert (rows.count(), rows.revision()) == (count, before + 1)  # no new row, but what a refit reads has changed
    assert not rows.put(1, ErrorRow(1, 1))
    assert rows.revision() == before + 2
    assert not rows.put(1, ErrorRow(1, 1))
    assert rows.revision() == before + 2
    assert rows.waiting() == [2, 3]
    assert as_rows(rows.table()) == {rows.tasks[0]: SOME, rows.tasks[1]: ErrorRow(1, 1)}
    # With other scores it is another row, which brings its errors.
    assert rows.put(2, SOME, strata=("de/1-10",))
    assert (rows.count(), rows.read(2)) == (count + 1, SOME)


def test_errors_leave_with_their_row(rows: Rows) -> None:
    rows.put(0, SOME)
    rows.put(1, SOME)
    with rows.store.write() as session:
        withdraw_scores(session, rows.project.id, task_id=rows.tasks[0])
    assert list(as_rows(rows.table())) == [rows.tasks[1]]
    with rows.store.write() as session:
        session.execute(sa.text(f"DELETE FROM projects WHERE id = {rows.project.id}"))
        assert session.execute(sa.select(sa.func.count()).select_from(SpanError)).scalar_one() == 0


def test_errors_are_kept_when_a_row_is_decided_again(rows: Rows) -> None:
    """Late news about the order change what a row is worth: it is added again, with all that was known of it."""
    rows.put(0, SOME, strata=("en/1-10", "en/11-20"))
    rows.put(1, None)
    assert reconsider(rows.store, rows.project) == 2  # nothing is known of the order
    assert rows.read(0) == SOME
    assert rows.read(1) is None
    assert rows.table().task_ids.tolist() == []  # excluded rows have cells of their own
    with rows.store.write() as session:
        for days in (-1, 1):
            at = WHEN + timedelta(days=days)
            record_order(session, rows.project.id, order=Order.UNIFORM, at=at, source="webhook")
    assert reconsider(rows.store, rows.project) == 2
    assert as_rows(rows.table()) == {rows.tasks[0]: SOME}
    assert rows.count() == 9


def test_the_table_says_of_each_task_its_stratum_and_its_weight(rows: Rows) -> None:
    rows.put(2, SOME, strata=("ru/1-10", "en/1-10"), weight=4.0)
    rows.put(0, ErrorRow(1, 0, missing=(0.5,)), strata=("en/1-10",))
    rows.put(1, ErrorRow(2, 2), evidence="file")
    table = rows.table()
    assert table.task_ids.tolist() == rows.tasks[:3]
    assert [table.strata[code] for code in table.codes] == ["en/1-10", "en/1-10", "ru/1-10"]
    assert table.weight.tolist() == [1.0, 1.0, 4.0]
    assert table.errors_of.tolist() == [0] + [2] * 5
    assert table.missing.tolist() == [True, True, True, True, False, False]
    assert table.levels.tolist() == [0.5, *SOME.missing, *SOME.false]
    nothing = load_nothing(rows)
    assert (nothing.task_ids.size, nothing.levels.size, nothing.strata) == (0, 0, ())


def load_nothing(rows: Rows) -> ErrorTable:
    with rows.store.read() as session:
        return load_errors(session, [])


def test_errors_of_a_revision_are_the_same_for_ever(store: Store) -> None:
    draw = random.Random(8)
    rows = Rows(store, tasks=6)
    remembered: dict[int, dict[int, ErrorRow]] = {}
    truth: dict[int, ErrorRow] = {}
    for step in range(25):
        number = draw.randrange(6)
        levels = tuple(draw.random() for _ in range(draw.randrange(3)))
        errors = ErrorRow(4, 4, missing=levels, false=tuple(draw.random() for _ in range(draw.randrange(2))))
        rows.put(
            number, errors, strata=(draw.choice(["en/1-10", "de/1-10"]),) * draw.choice([1, 1, 2]), weight=step + 1
        )
        truth[rows.tasks[number]] = errors
        if draw.random() < 0.2:
            gone = draw.choice(rows.tasks)
            with store.write() as session:
                withdraw_scores(session, rows.project.id, task_id=gone)
            truth.pop(gone, None)
        remembered[rows.revision()] = dict(truth)
    assert as_rows(rows.table()) == truth
    for revision, expected in remembered.items():
        assert as_rows(rows.table(at_revision=revision)) == expected


def test_levels_come_back_bit_for_bit(rows: Rows) -> None:
    odd = (0.0, 1.0, 0.1 + 0.2, math.pi / 4, 5e-324, 1 / 3, -0.0)
    rows.put(0, ErrorRow(9, 0, missing=odd))
    levels = rows.table().levels
    assert np.array_equal(levels.view(np.uint64), np.array([level + 0.0 for level in odd]).view(np.uint64))
    assert not rows.put(0, ErrorRow(9, 0, missing=odd))


def test_served_sets_keep_places_and_doubt(rows: Rows) -> None:
    shared = (rows.model, None, False, "en/1-10", "en/*", "own", 100, 1.0, False, 1, 1, b"", WHEN)
    known = Served(rows.tasks[0], *shared, flags=3, doubt=0.25)
    with rows.store.write() as session:
        record_served(session, [known, Served(rows.tasks[1], *shared)])
    with rows.store.read() as session:
        back = [served_before(session, task, at=datetime.now(UTC), model_id=rows.model) for task in rows.tasks[:2]]
    assert [(each.flags, each.doubt) for each in back if each is not None] == [(3, 0.25), (None, None)]
