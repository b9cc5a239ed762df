from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime

import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.records import (
    AnnotationRecord,
    EntityRow,
    ErrorRow,
    SequenceScores,
    TextSpan,
    UnitRow,
)
from backend.errors import InvalidScores, StoreConflict
from backend.store import Store
from backend.store.bulk import ScoreTable, load_entities, load_errors, load_scores
from backend.store.calibration import (
    count_first,
    has_unplaced,
    head_revision,
    load_cells,
    record_scores,
    record_units,
    recount_cells,
    withdraw_scores,
)
from backend.store.labels import delete_annotation, record_annotation, unscored_labels
from backend.store.monitor import consume_rows, consumed_tasks, rows_after
from backend.store.projects import ensure_model, ensure_project, ensure_task
from backend.store.rows import column_values, read_entity, read_scores, stored_units, task_units
from backend.store.tables import CalibrationCell, CalibrationScore, EntityScore, Task
from backend.store.tables.calibration import REFIT_COLUMNS

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
NO_ERRORS = ErrorRow(1, 1)


def prepare(store: Store, tasks: int) -> tuple[int, int, list[int]]:
    """A project, a model and labelled tasks, whose labels are at revision 1."""
    with store.write() as session:
        project = ensure_project(session, "1.17").id
        model = ensure_model(session, "m", "ab" * 32, classes=["PER", "LOC"]).id
        ids = []
        for number in range(tasks):
            task = ensure_task(session, project, external_id=str(number), text=f"text {number}").id
            record_annotation(session, task, AnnotationRecord(number, WHEN, (TextSpan(0, 4, "PER"),)))
            ids.append(task)
    return project, model, ids


def put(store: Store, project: int, model: int, task: int, nll: float, **more: object) -> bool:
    options: dict[str, object] = {
        "stratum": "en",
        "evidence": "blind",
        "label_revision": 1,
        "rank": 1.0,
        "cumulative": 0.5,
        "errors": NO_ERRORS,
    }
    options |= more
    scores = SequenceScores(nll, float(options.pop("rank")), float(options.pop("cumulative")))  # type: ignore[arg-type]
    with store.write() as session:
        return record_scores(session, project, model_id=model, task_id=task, scores=scores, **options)  # type: ignore[arg-type]


def check_counters(store: Store, project: int, model: int) -> None:
    with store.read() as session:
        cells = load_cells(session, project, model_id=model)
        cells += load_cells(session, project, model_id=model, excluded=True)
        assert {cell.id: (cell.n, cell.n_infinite, cell.tasks) for cell in cells} == recount_cells(
            session, project, model_id=model
        )


ODD_NUMBERS = [0.0, math.inf, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, math.pi, 2.0**-1074 * 3, 1 / 3]


def test_doubles_come_back_bit_for_bit(store: Store) -> None:
    project, model, tasks = prepare(store, len(ODD_NUMBERS))
    for task, number in zip(tasks, ODD_NUMBERS, strict=True):
        entity = EntityRow(0, 1, "PER", number, number, number, number)
        put(store, project, model, task, number, rank=number, cumulative=number, weight=number, entities=[entity])
    with store.read() as session:
        cells = load_cells(session, project, model_id=model)
        scores = load_scores(session, cells)
        entities = load_entities(session, cells)
        by_row = {row.task_id: row.nll for row in session.execute(sa.select(CalibrationScore)).scalars()}
    expected = np.array(ODD_NUMBERS).view(np.uint64)
    place = np.argsort(scores.task_ids)
    for column in (scores.nll, scores.rank, scores.cumulative, scores.weight):
        assert np.array_equal(column[place].view(np.uint64), expected)
    for column in (entities.probability, entities.cumulative, entities.class_rank, entities.rank):
        assert np.array_equal(column.view(np.uint64), expected)
    assert np.array_equal(np.array([by_row[task] for task in tasks]).view(np.uint64), expected)
    assert np.all(np.diff(scores.nll[:-1]) >= 0)
    assert cells[0].n_infinite == 1


def test_minus_zero_is_zero(store: Store) -> None:
    project, model, (task,) = prepare(store, 1)
    put(store, project, model, task, -0.0, rank=-0.0, cumulative=-0.0)
    with store.read() as session:
        scores = load_scores(session, load_cells(session, project, model_id=model))
    assert [math.copysign(1, column[0]) for column in (scores.nll, scores.rank, scores.cumulative)] == [1, 1, 1]


def test_nan_is_refused(store: Store) -> None:
    project, model, tasks = prepare(store, 1)
    with pytest.raises(InvalidScores, match="got NaN"):
        put(store, project, model, tasks[0], math.nan)


def test_one_live_row_per_task_and_model_and_the_rest_is_kept(store: Store) -> None:
    project, model, (task,) = prepare(store, 1)
    assert put(store, project, model, task, 1.0)
    assert not put(store, project, model, task, 1.0), "the same again changes nothing"
    assert put(store, project, model, task, 2.0)
    assert put(store, project, model, task, 2.0, entities=[EntityRow(0, 1, "PER", 0.5, 0.5, 1, 1)])
    assert put(store, project, model, task, 2.0, stratum="de")
    assert put(store, project, model, task, 2.0, stratum="de", exclusion="training")
    check_counters(store, project, model)
    with store.read() as session:
        rows = session.execute(sa.select(CalibrationScore).order_by(CalibrationScore.id)).scalars().all()
        assert [(row.added_at_revision, row.removed_at_revision) for row in rows] == [
            (1, 2),
            (2, 3),
            (3, 4),
            (4, 5),
            (5, None),
        ]
        assert [cell.n for cell in load_cells(session, project, model_id=model)] == [0, 0]
        (training,) = load_cells(session, project, model_id=model, excluded=True)
        assert (training.exclusion, training.n) == ("training", 1)
        assert head_revision(session, project, model_id=model) == 5
    with pytest.raises(StoreConflict, match=r"UNIQUE|unique"), store.write() as session:
        session.execute(sa.update(CalibrationScore).values(removed_at_revision=None))


def test_a_changed_label_withdraws_its_rows_at_once(store: Store) -> None:
    project, model, tasks = prepare(store, 2)
    with store.write() as session:
        other = ensure_model(session, "other", "cd" * 32, classes=["PER"]).id
    for each in (model, other):
        for task in tasks:
            put(store, project, each, task, 1.0)
    with store.write() as session:
        delete_annotation(session, project, annotation_id=0, at=datetime(2027, 1, 1, tzinfo=UTC))
    for each in (model, other):
        check_counters(store, project, each)
        with store.read() as session:
            assert [cell.n for cell in load_cells(session, project, model_id=each)] == [1]
    with pytest.raises(StoreConflict, match="expected the label to be at revision 1 still, got 2"):
        put(store, project, model, tasks[0], 3.0)
    with store.write() as session:
        assert withdraw_scores(session, project, task_id=tasks[1], model_id=other) == 1
        assert withdraw_scores(session, project, task_id=tasks[1], model_id=other) == 0
        assert [each.task_id for each in unscored_labels(session, project, model_id=other)] == [tasks[1]]
        assert unscored_labels(session, project, model_id=model) == []


def test_counters_and_sorted_scores_agree_with_a_recount(store: Store) -> None:
    draw = random.Random(5)
    project, model, tasks = prepare(store, 40)
    truth: dict[int, tuple[str, float]] = {}
    for _ in range(90):
        task = draw.choice(tasks)
        stratum = draw.choice(["en", "de", "ru"])
        nll = draw.choice([math.inf, 1.0, 2.0, draw.random(), draw.random()])
        put(store, project, model, task, nll, stratum=stratum, rank=float(draw.randint(1, 9)), cumulative=draw.random())
        truth[task] = (stratum, nll)
        if draw.random() < 0.2:
            gone = draw.choice(tasks)
            with store.write() as session:
                withdraw_scores(session, project, task_id=gone)
            truth.pop(gone, None)
    check_counters(store, project, model)
    with store.read() as session:
        cells = load_cells(session, project, model_id=model)
        table = load_scores(session, cells)
        expected = sorted(nll for stratum, nll in truth.values() if stratum == "de")
        assert table.nll[table.rows(0)].tolist() == expected


def test_every_score_has_the_column_of_its_name() -> None:
    assert {each.name for each in fields(SequenceScores)} <= set(CalibrationScore.__mapper__.columns.keys())
    assert {each.name for each in fields(EntityRow)} | {"score_id"} == set(EntityScore.__mapper__.columns.keys())
    assert set(REFIT_COLUMNS) <= {*(each.name for each in fields(ScoreTable)), "task_id", "unit"}
    sequence, entity = SequenceScores(-0.0, 1.0, 0.5, 2), EntityRow(0, 1, "PER", 0.5, -0.0, 1.0, math.inf)
    assert read_scores(CalibrationScore(**column_values(sequence))) == sequence
    assert read_entity(EntityScore(**column_values(entity))) == entity
    values = [*column_values(sequence).values(), *column_values(entity).values()]
    assert not any(math.copysign(1.0, value) < 0 for value in values if isinstance(value, float))


def test_what_a_refit_reads_is_walked_in_an_index(store: Store) -> None:
    project, model, tasks = prepare(store, 3)
    for task in tasks:
        put(store, project, model, task, 1.0)
    columns = ", ".join(REFIT_COLUMNS)
    live = "FROM calibration_scores WHERE cell_id = 1 AND removed_at_revision IS NULL"
    queries = {
        "ix_calibration_scores_nll": f"SELECT {columns} {live} ORDER BY {columns}",
        "ix_calibration_scores_": f"SELECT count(*) {live} AND rank <= 1.0",  # which one depends on the counts
    }
    with store.read() as session:
        if not store.is_sqlite:
            session.execute(sa.text("SET LOCAL enable_seqscan = off"))
            session.execute(sa.text("SET LOCAL enable_sort = off"))
        for index, query in queries.items():
            prefix = "EXPLAIN QUERY PLAN " if store.is_sqlite else "EXPLAIN "
            plan = " ".join(str(row) for row in session.execute(sa.text(prefix + query)))
            assert index in plan
            assert "TEMP B-TREE" not in plan
            assert "Sort" not in plan


def test_rows_of_a_revision_are_the_same_for_ever(store: Store) -> None:
    draw = random.Random(6)
    project, model, tasks = prepare(store, 10)
    remembered: dict[int, list[float]] = {}
    for step in range(40):
        put(store, project, model, draw.choice(tasks), float(step), stratum=draw.choice(["en", "de"]))
        with store.read() as session:
            revision = head_revision(session, project, model_id=model)
            remembered[revision] = sorted(load_scores(session, load_cells(session, project, model_id=model)).nll)
    with store.read() as session:
        cells = load_cells(session, project, model_id=model)
        for revision, expected in remembered.items():
            assert sorted(load_scores(session, cells, at_revision=revision).nll) == expected


def beside(url: str, work: Callable[[Session], object]) -> tuple[threading.Thread, list[Exception]]:
    """Start `work` in a transaction of its own and return once it waits for one that is open here."""
    errors: list[Exception] = []

    def run() -> None:
        with Store(url) as other:
            try:
                other.run(work)
            except StoreConflict as error:
                errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive(), "the second writer must wait for the first"
    return thread, errors


def scoring(project: int, model: int, task: int, *, stratum: str = "en") -> Callable[[Session], bool]:
    return lambda session: record_scores(
        session,
        project,
        model_id=model,
        task_id=task,
        label_revision=1,
        stratum=stratum,
        evidence="blind",
        scores=SequenceScores(1.0, 1.0, 0.5),
    )


def test_revisions_are_given_out_one_transaction_after_another(url: str, store: Store) -> None:
    project, model, (one, two, three) = prepare(store, 3)
    store.run(scoring(project, model, one))
    with store.write() as session:
        scoring(project, model, two, stratum="de")(session)
        later, errors = beside(url, scoring(project, model, three, stratum="ru"))
    later.join()
    assert errors == []
    with store.read() as session:
        rows = session.execute(sa.select(CalibrationScore.added_at_revision).order_by(CalibrationScore.task_id))
        assert rows.scalars().all() == [1, 2, 3]
    check_counters(store, project, model)


def test_a_label_that_changes_while_it_is_scored_leaves_no_stale_row(url: str, store: Store) -> None:
    project, model, (first, second) = prepare(store, 2)
    empty = [AnnotationRecord(number, datetime(2026, 2, 1, tzinfo=UTC), ()) for number in (0, 1)]
    with store.write() as session:
        scoring(project, model, first)(session)
        change, errors = beside(url, lambda s: record_annotation(s, first, empty[0]))
    change.join()
    assert errors == [], "the change comes second and withdraws the row"
    with store.write() as session:
        record_annotation(session, second, empty[1])
        late, errors = beside(url, scoring(project, model, second))
    late.join()
    assert "expected the label to be at revision 1 still, got 2" in str(errors[0]), "the row comes second: refused"
    with store.read() as session:
        assert [cell.n for cell in load_cells(session, project, model_id=model)] == [0]
        assert [each.revision for each in unscored_labels(session, project, model_id=model)] == [2, 2]


def test_bulk_reads_follow_the_callers_cells(store: Store) -> None:
    project, model, tasks = prepare(store, 6)
    strata = ["ru", "en", "de", "en", "ru", "ru"]
    for number, (task, stratum) in enumerate(zip(tasks, strata, strict=True)):
        entities = [EntityRow(0, 1, "PER", 0.5, 0.5, 1, 1), EntityRow(2, 3, "it's", 0.25, 0.5, 2, math.inf)][
            : 1 + number % 2
        ]
        put(store, project, model, task, float(-number), stratum=stratum, entities=entities)
    with store.read() as session:
        cells = load_cells(session, project, model_id=model)
        assert [cell.stratum for cell in cells] == ["de", "en", "ru"]
        for chosen in (cells, cells[::-1], cells[1:], cells[:1]):
            table = load_scores(session, chosen)
            for index, cell in enumerate(chosen):
                assert table.task_ids[table.rows(index)].tolist() == [
                    task for task, stratum in reversed(list(zip(tasks, strata, strict=True))) if stratum == cell.stratum
                ]
        nothing = load_scores(session, [])
        assert (len(nothing.nll), nothing.offsets.tolist()) == (0, [0])
        entities_found = load_entities(session, cells)
        assert entities_found.labels == ("PER", "it's")
        assert entities_found.task_ids.tolist() == [
            task for number, task in enumerate(tasks) for _ in range(1 + number % 2)
        ]
        assert entities_found.codes.tolist() == [0, 0, 1] * 3
        assert entities_found.ends[:3].tolist() == [1, 1, 3]
        assert len(load_entities(session, []).codes) == 0


def test_few_rows_read_alone_are_what_they_are_among_all(store: Store) -> None:
    """SQLite walks through whole tables for most of their rows, and follows an index to a few."""
    project, model, tasks = prepare(store, 12)
    for number, task in enumerate(tasks):
        entities = [EntityRow(4, 6, "PER", number / 16, 0.5, 1, 1), EntityRow(0, 2, "LOC", 0.25, number / 16, 2, 3)]
        errors = ErrorRow(2, 2, missing=(number / 32, 0.5), false=(number / 64,))
        stratum = "de" if number == 7 else "en"
        put(store, project, model, task, number / 8, stratum=stratum, entities=entities, errors=errors)
    with store.read() as session:
        cells = load_cells(session, project, model_id=model)
        few = [cell for cell in cells if cell.stratum == "de"]
        assert load_scores(session, few).units.tolist() == [0]
        every, alone = load_entities(session, cells), load_entities(session, few)
        all_errors, own_errors = load_errors(session, cells), load_errors(session, few)
    mine = every.task_ids == tasks[7]
    for name in ("units", "codes", "starts", "ends", "probability", "cumulative", "class_rank", "rank"):
        assert getattr(alone, name).tolist() == getattr(every, name)[mine].tolist(), name
    assert alone.starts.tolist() == [0, 4]
    assert (every.task_ids.size, all_errors.task_ids.tolist()) == (24, tasks)
    assert own_errors.task_ids.tolist() == [tasks[7]]
    assert own_errors.levels.tolist() == all_errors.levels[all_errors.errors_of == 7].tolist() == [7 / 32, 0.5, 7 / 64]


def unit(stratum: str, nll: float, **more: object) -> UnitRow:
    return UnitRow(stratum, SequenceScores(nll, 1.0, 0.5), **more)  # type: ignore[arg-type]


def test_units_of_a_task_come_and_go_together_and_tasks_are_counted_once(store: Store) -> None:
    project, model, tasks = prepare(store, 2)
    shared = {"model_id": model, "label_revision": 1, "evidence": "blind", "errors": NO_ERRORS}
    entity = EntityRow(0, 1, "PER", 0.5, 0.5, 1.0, 1.0)
    first = [
        unit("en", 1.0, entities=(entity,), end=9, drawn=False),
        unit("en", math.inf, start=9, end=20),
        unit("de", 3.0, start=20, end=31, drawn=False),
    ]
    with store.write() as session:
        assert record_units(session, project, task_id=tasks[0], units=first, **shared)
        assert not record_units(session, project, task_id=tasks[0], units=first, **shared)
        assert record_units(session, project, task_id=tasks[1], units=[unit("de", 2.0, end=5)], **shared)
    check_counters(store, project, model)
    with store.read() as session:
        cells = load_cells(session, project, model_id=model)
        assert [(cell.stratum, cell.n, cell.n_infinite, cell.tasks) for cell in cells] == [
            ("de", 2, 0, 1),
            ("en", 2, 1, 1),
        ]
        table, entities = load_scores(session, cells), load_entities(session, cells)
        assert sorted(zip(table.task_ids.tolist(), table.units.tolist(), strict=True)) == [
            (tasks[0], 0),
            (tasks[0], 1),
            (tasks[0], 2),
            (tasks[1], 0),
        ]
        assert (entities.units.tolist(), entities.task_ids.tolist()) == ([0], [tasks[0]])
        assert count_first(session, cells) == {cells[0].id: 1, cells[1].id: 1}
        assert [row.unit for row in rows_after(session, project, model_id=model, revision=0)] == [1, 0]
    with store.write() as session:
        assert record_units(session, project, task_id=tasks[0], units=first[:1], **shared)  # another splitter, say
    check_counters(store, project, model)
    with store.read() as session:
        assert [(row.unit, row.start, row.end) for row in task_units(session, tasks[0], model_id=model)] == [(0, 0, 9)]
    with store.write() as session:
        assert withdraw_scores(session, project, task_id=tasks[0]) == 1
    check_counters(store, project, model)


def test_a_row_from_before_there_were_units_is_scored_again_and_keeps_its_revision(store: Store) -> None:
    project, model, tasks = prepare(store, 2)
    for task in tasks:
        put(store, project, model, task, 1.0)
    with store.write() as session:
        session.execute(sa.update(CalibrationScore).values(stop=None))
    with store.read() as session:
        assert [label.task_id for label in unscored_labels(session, project, model_id=model)] == tasks
        assert has_unplaced(session, project, model_id=model)
        before = head_revision(session, project, model_id=model)
    with store.write() as session:
        consume_rows(session, project, model_id=model, first=0, rows=[(tasks[0], "en", 1.0)])
    shared = {"model_id": model, "label_revision": 1, "evidence": "blind", "errors": NO_ERRORS}
    with store.write() as session:
        assert not record_units(session, project, task_id=tasks[0], units=[unit("en", 1.0, end=6)], **shared)
        assert head_revision(session, project, model_id=model) == before
        assert consumed_tasks(session, project, model_id=model, task_ids=tasks) == {tasks[0]}
        assert record_units(
            session,
            project,
            task_id=tasks[1],
            units=[unit("en", 1.0, end=3), unit("en", 0.5, start=3, end=6, drawn=False)],
            **shared,
        )
    with store.read() as session:
        # The martingale has consumed whole texts, and must not take sentences for a drift.
        assert consumed_tasks(session, project, model_id=model, task_ids=tasks) == set()
        assert unscored_labels(session, project, model_id=model) == []
        assert not has_unplaced(session, project, model_id=model)
    check_counters(store, project, model)
    # What can never be scored again keeps nobody waiting.
    with store.write() as session:
        session.execute(sa.update(CalibrationScore).values(stop=None))
        session.execute(sa.update(Task).values(text=None))
        assert not has_unplaced(session, project, model_id=model)


def test_a_row_that_an_earlier_release_wrote_beside_this_one_is_counted_once_it_is_scored_again(store: Store) -> None:
    project, model, (task,) = prepare(store, 1)
    put(store, project, model, task, 1.0)
    with store.write() as session:  # as its insert and its upsert leave them
        session.execute(sa.update(CalibrationScore).values(stop=None, drawn=False))
        session.execute(sa.update(CalibrationCell).values(tasks=0))
    check_counters(store, project, model)
    shared = {"model_id": model, "label_revision": 1, "evidence": "blind", "errors": NO_ERRORS}
    with store.write() as session:
        assert record_units(session, project, task_id=task, units=[unit("en", 1.0, end=6)], **shared)
    check_counters(store, project, model)
    with store.read() as session:
        assert [cell.tasks for cell in load_cells(session, project, model_id=model)] == [1]
        assert [row.unit for row in rows_after(session, project, model_id=model, revision=0)] == [0]


def test_statements_do_not_grow_with_the_units_of_a_text(store: Store) -> None:
    project, model, (first, *tasks) = prepare(store, 3)
    put(store, project, model, first, 1.0)  # what is made once is there
    shared = {"model_id": model, "label_revision": 1, "evidence": "blind"}
    counts: list[list[int]] = []
    for task, size in zip(tasks, (40, 400), strict=True):
        units = [
            unit(
                "en" if number % 2 else "de",
                number + 1.0,
                entities=tuple(EntityRow(number, number + 1, label, 0.5, 0.5, 1.0, 1.0) for label in ("LOC", "PER")),
                start=number,
                end=number + 1,
                drawn=number == 3,
            )
            for number in range(size)
        ]
        sent: list[str] = []
        listen = (store.engine, "before_cursor_execute", lambda *about, sent=sent: sent.append(about[2]))
        sa.event.listen(*listen)
        done = []
        try:
            for now, more in ((units, {}), (units, {}), (units, {"exclusion": "sequential"})):
                with store.write() as session:
                    record_units(session, project, task_id=task, units=now, **shared | more)
                done.append(len(sent))
            with store.write() as session:
                assert stored_units(session, task, model_id=model) == units
                assert withdraw_scores(session, project, task_id=task) == 1
            done.append(len(sent))
        finally:
            sa.event.remove(*listen)
        counts.append(done)
        check_counters(store, project, model)
    few, many = counts
    # The driver cuts what it sends into parts of some hundred rows.
    assert all(late - early < 5 for early, late in zip(few, many, strict=True)), counts
