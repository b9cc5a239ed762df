"""From the previous release's schema, with its data, to this one's and back: every row and every figure stays.

Rows are written through the tables as the database itself describes them at 0003, not through this release's code,
which may know columns that were not there.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from backend.domain.ranked import RankedList, one_unit
from backend.domain.records import ErrorRow, SequenceScores, Served, TextSpan, UnitRow
from backend.domain.streams import Order
from backend.errors import StoreConflict
from backend.labels.export import Format, export
from backend.monitoring.monitor import Monitor
from backend.store import Store, open_store
from backend.store.bulk import load_entities, load_errors, load_scores
from backend.store.calibration import has_unplaced, head_revision, load_cells, record_units, recount_cells
from backend.store.judgements import CoverageRow, Judged, JudgedRisk, coverage_rows, record_judgement
from backend.store.labels import unscored_labels
from backend.store.packed_lists import pack_ranked
from backend.store.projects import ensure_project, find_project, load_project, lookup_model
from backend.store.rows import row_errors, stored_units, task_units
from backend.store.sampling import current_order, follows_queue, is_shuffled, load_history
from backend.store.schema import alembic_config, downgrade, schema_differences, schema_state, upgrade
from backend.store.served import record_served
from backend.store.thresholds import active_version
from conformal.risk import FLOOR
from tests.support.earlier_lists import pack_as_earlier

PREVIOUS = "0003"
TASKS = 60
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
STRATA = ("en:1-10", "de:11-20")
LISTED = one_unit(RankedList(("PER",), (-0.1, -2.4), ((TextSpan(0, 3, "PER"),), ()), exhausted=True))
RANKED = pack_as_earlier(LISTED)


def rows(aware: bool) -> dict[str, list[dict[str, Any]]]:
    """What a project with two strata and three versions left behind, table by table."""
    now = NOW if aware else NOW.replace(tzinfo=None)
    later = now + timedelta(hours=1)
    made: dict[str, list[dict[str, Any]]] = {
        "projects": [
            {
                "id": 1,
                "uid": "7.1",
                "key": "7",
                "title": "Träume 🙂".encode(),
                "label_config": None,
                "options": {},
            }
            | {"created_at": now, "updated_at": now}
        ],
        "models": [{"id": 1, "name": "m", "hash": "ab" * 32, "classes": ["PER"], "details": {}, "created_at": now}],
        "calibration_heads": [{"project_id": 1, "model_id": 1, "revision": TASKS, "changed_at": now}],
        "events": [
            {"id": 1, "delivery": "d", "received_at": now, "action": "X", "project_key": "7", "payload": "{}"}
            | {"state": "pending", "attempts": 0, "claims": 0, "due_at": now}
        ],
        "monitor": [
            {"project_id": 1, "model_id": 1, "kind": "martingale", "stratum": "", "revision": 3, "consumed": 9}
            | {"value": 1.5, "state": b"\x01\x02", "updated_at": now}
        ],
        "alarms": [
            {"id": 900, "project_id": 1, "model_id": 1, "kind": "martingale", "stratum": "", "value": 20.5}
            | {"message": b"drift", "raised_at": now}
        ],
        "jobs": [
            {"id": 1, "kind": "refit", "key": "refit:7.1", "project_id": 1, "state": "done", "payload": {}, "fence": 1}
            | {"run_after": now, "attempts": 1, "progress_done": 1, "progress_note": "", "created_at": now}
        ],
    }
    for name in ("calibration_cells", "tasks", "annotations", "labels", "label_history", "calibration_scores"):
        made[name] = []
    for name in ("entity_scores", "threshold_versions", "thresholds", "activations", "served_sets"):
        made[name] = []
    for version in (1, 2, 3):
        tau = math.inf if version == 1 else 2.0 + version
        made["threshold_versions"].append(
            {"id": version, "project_id": 1, "model_id": 1, "alpha": "0.1", "method": "nc1", "evidence": "blind"}
            | {"guarantee": "own", "input_revision": version, "n": TASKS, "pools": 1, "content": b"v%d" % version}
            | {"content_hash": hashlib.sha256(b"v%d" % version).hexdigest(), "details": {}, "created_at": now}
        )
        made["thresholds"].append(
            {"version_id": version, "kind": "pool", "pool": "all", "n": TASKS, "n_infinite": 1, "tau": tau}
        )
        made["activations"].append(
            {"id": version, "project_id": 1, "model_id": 1, "version_id": version, "reason": "labels", "at": now}
        )
    made["active_versions"] = [{"project_id": 1, "model_id": 1, "version_id": 3, "activated_at": now}]
    for cell, (stratum, exclusion) in enumerate([(STRATA[0], ""), (STRATA[1], ""), (STRATA[1], "undrawn")], start=1):
        made["calibration_cells"].append(
            {"id": cell, "project_id": 1, "model_id": 1, "stratum": stratum, "evidence": "blind", "part": "calibration"}
            | {"exclusion": exclusion, "n": TASKS // 3, "n_infinite": int(cell == 1)}
        )
    for number in range(1, TASKS + 1):
        text = f"Bob {number} 🙂\r\n"
        blind = number % 4 == 0
        made["tasks"].append(
            {"id": number, "project_id": 1, "external_id": str(number), "text": text.encode(), "language": "en"}
            | {"text_hash": hashlib.sha256(text.encode()).digest(), "length": 3, "stream": "uniform", "blind": blind}
            | {"random_order": number / 100, "selection_probability": 1.0, "created_at": now}
        )
        spans = [[0, 3, "PER"]] if number % 2 else []
        made["annotations"].append(
            {
                "id": number,
                "project_id": 1,
                "annotation_id": number,
                "task_id": number,
                "updated_at": now,
                "spans": spans,
            }
            | {"was_cancelled": False, "ground_truth": False, "bulk": False, "origins": {}, "content_hash": str(number)}
        )
        made["labels"].append(
            {"id": number, "project_id": 1, "task_id": number, "policy": "majority", "revision": 1, "spans": spans}
            | {"annotation_row": number, "content_hash": str(number), "votes": 1, "voters": 1, "changed_at": now}
        )
        made["label_history"].append(
            {"id": number, "project_id": 1, "annotation_id": number, "task_id": number, "kind": "submitted", "at": now}
            | {"content_hash": str(number), "content": b"{}", "recorded_at": now}
        )
        made["calibration_scores"].append(
            {"id": number, "task_id": number, "model_id": 1, "cell_id": 1 + number % 3, "label_revision": 1}
            | {"nll": math.inf if number == 3 else number / 8, "rank": float(number), "cumulative": 1 - 1 / number}
            | {"weight": 1.0, "entities": 1, "predicted_entities": 0, "added_at_revision": number, "created_at": later}
        )
        made["entity_scores"].append(
            {"score_id": number, "start": 0, "stop": 3, "label": "PER", "probability": 0.5, "cumulative": 0.5}
            | {"place": 1.0, "rank": math.inf}
        )
        version = 1 + number % 3
        made["served_sets"].append(
            {"id": number, "task_id": number, "model_id": 1, "version_id": version, "shadow": blind, "n": TASKS}
            | {"stratum": STRATA[number % 3 > 0], "pool": "all", "guarantee": "own", "is_open": version == 1}
            | {"tau": math.inf if version == 1 else 2.0 + version, "set_size": None if version == 1 else 2, "shown": 2}
            | {"ranked": RANKED, "served_at": now}
        )
    return made


def fill(store: Store) -> None:
    with store.write() as session:
        found = sa.MetaData()
        found.reflect(session.connection())
        given = rows(aware=not store.is_sqlite)
        for table in found.sorted_tables:
            if given.get(table.name):
                session.execute(table.insert(), given.pop(table.name))
        assert not given


def dump(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table of the previous schema, as the database holds it."""
    with store.read() as session:
        names = sorted(rows(aware=True))
        return {
            name: sorted(
                tuple(value for _, value in sorted(row._mapping.items()))  # whatever the order of the columns
                for row in session.execute(sa.text(f"SELECT * FROM {name} ORDER BY 1, 2")).all()
            )
            for name in names
        }


def figures_by_hand(store: Store) -> dict[str, tuple[int, int, int]]:
    """Coverage by stratum from the rows of the previous schema alone: covered, labelled, open.

    A closed set is the beginning of the ranked list, so it holds the label if the label's rank is within its size.
    """
    with store.read() as session:
        found = session.execute(
            sa.text(
                "SELECT v.stratum, s.rank, v.set_size, v.is_open FROM calibration_scores s "
                "JOIN calibration_cells c ON c.id = s.cell_id JOIN served_sets v ON v.task_id = s.task_id "
                "WHERE c.exclusion = '' AND s.removed_at_revision IS NULL"
            )
        ).all()
    figures: dict[str, tuple[int, int, int]] = {}
    for stratum, rank, size, is_open in found:
        covered, total, opened = figures.get(stratum, (0, 0, 0))
        figures[stratum] = (covered + bool(is_open or rank <= size), total + 1, opened + bool(is_open))
    return figures


def figures_of_this_release(store: Store) -> dict[str, tuple[int, int, int]]:
    with store.read() as session:
        project, model = load_project(session, 1), lookup_model(session, "m", "ab" * 32)
    assert model is not None
    Monitor(store).watch(project, model=model)
    with store.read() as session:
        found = coverage_rows(session, 1, model_id=1)
    figures: dict[str, tuple[int, int, int]] = {}
    for each in found:
        if each.scope == "stratum" and each.kind == "blind":
            covered, total, opened = figures.get(each.name, (0, 0, 0))
            figures[each.name] = (covered + each.covered, total + each.total, opened + each.open)
    return figures


def test_data_of_the_previous_release_survives_the_way_up_and_down(empty_url: str) -> None:
    with Store(empty_url) as store:
        upgrade(store, revision=PREVIOUS)
        fill(store)
        before, figures = dump(store), figures_by_hand(store)
        assert sum(total for _, total, _ in figures.values()) == 2 * TASKS // 3
        assert 0 < sum(covered for covered, _, _ in figures.values()) < 2 * TASKS // 3
        upgrade(store)
        assert schema_state(store).ready
        assert schema_differences(store) == []
        with store.read() as session:
            project = find_project(session, "7")
            version = active_version(session, 1, model_id=1)
            cells = load_cells(session, 1, model_id=1)
            scores = load_scores(session, cells)
            entities = load_entities(session, cells)
            assert project is not None
            lines, report = export(session, project, form=Format.JSONL)
            assert len(list(lines)) == report.texts == TASKS
        assert project.title == "Träume 🙂"
        assert version is not None
        assert (version.id, version.content) == (3, b"v3")
        assert max(scores.nll.tolist()) == math.inf
        assert len(scores.nll) == len(entities.task_ids) == 2 * TASKS // 3  # excluded rows are no evidence
        downgrade(store, PREVIOUS)
        assert dump(store) == before
        assert figures_by_hand(store) == figures
        for _ in range(2):  # the counters are made from the rows, and made again after another way down and up
            upgrade(store)
            assert figures_of_this_release(store) == figures
            downgrade(store, PREVIOUS)
        upgrade(store)
    open_store(empty_url).close()


def everything_reported(store: Store) -> list[CoverageRow]:
    """All counters that coverage is read off, whatever their kind and scope."""
    with store.read() as session:
        return sorted(coverage_rows(session, 1, model_id=1), key=repr)


def revisions_from(first: str) -> list[str]:
    """The schema revisions from one to the newest but one, whatever they are called."""
    script = ScriptDirectory.from_config(alembic_config())
    return [each.revision for each in script.iterate_revisions("heads", first, inclusive=True)][:0:-1]


@pytest.mark.heavy
def test_from_every_earlier_schema_coverage_is_the_same_after_the_upgrade(empty_url: str) -> None:
    with Store(empty_url) as store:
        upgrade(store, revision=PREVIOUS)
        fill(store)
        by_hand = figures_by_hand(store)
        upgrade(store)
        assert figures_of_this_release(store) == by_hand
        reported = everything_reported(store)
        assert {row.kind for row in reported} >= {"blind"}
        earlier = revisions_from(PREVIOUS)
        assert earlier[0] == PREVIOUS
        assert schema_state(store).head not in earlier
        for revision in reversed(earlier):
            downgrade(store, revision)
            assert schema_state(store).current == revision
            assert figures_by_hand(store) == by_hand
            upgrade(store)
            assert schema_differences(store) == []
            assert figures_of_this_release(store) == by_hand
            assert everything_reported(store) == reported


def test_history_is_still_immutable_after_the_upgrade(empty_url: str) -> None:
    with Store(empty_url) as store:
        upgrade(store, revision=PREVIOUS)
        fill(store)
        upgrade(store)
        for table in ("threshold_versions", "thresholds", "activations", "label_history"):
            column = {"thresholds": "n", "label_history": "kind", "activations": "reason"}.get(table, "alpha")
            with pytest.raises(Exception, match="never changed"), store.write() as session:
                session.execute(sa.text(f"UPDATE {table} SET {column} = {column}"))


def streams_of(store: Store) -> dict[int, Any]:
    with store.read() as session:
        states = sa.table("project_state", sa.column("project_id"), sa.column("name"), sa.column("value", sa.JSON()))
        found = session.execute(sa.select(states.c.project_id, states.c.value).where(states.c.name == "streams"))
        return {row.project_id: row.value for row in found}


def test_the_order_of_tasks_is_kept_once_after_0010_and_comes_back_on_the_way_down(empty_url: str) -> None:
    declared = {
        1: {"shuffled": True},
        2: {"queue": True, "shuffled": False},
        3: {"queue": True},  # nothing else says that the queue was followed
        4: {"shuffled": False},
    }
    seen = {1: ["sequential"], 2: ["review", "uniform"], 4: ["uniform"]}
    with Store(empty_url) as store:
        upgrade(store, revision="0009")
        with store.write() as session:
            tables = sa.MetaData()
            tables.reflect(session.connection(), only=["projects", "project_state", "sampling_periods"])
            now = NOW.replace(tzinfo=None) if store.is_sqlite else NOW
            for number, value in declared.items():
                project = {"id": number, "uid": f"{number}.1", "key": str(number), "title": b"", "options": {}}
                project |= {"sampling": "Uniform sampling", "created_at": now, "updated_at": now}
                session.execute(tables.tables["projects"].insert(), project)
                state = {"project_id": number, "name": "streams", "value": value, "updated_at": now}
                session.execute(tables.tables["project_state"].insert(), state)
                for hours, order in enumerate(seen.get(number, [])):
                    at = now + timedelta(hours=hours)
                    period = {"project_id": number, "slot": at, "order": order, "first_at": at, "last_at": at}
                    session.execute(tables.tables["sampling_periods"].insert(), period | {"source": "webhook"})
        expected = {1: Order.SHUFFLED, 2: Order.REVIEW, 3: Order.REVIEW, 4: Order.UNIFORM}
        for _ in range(2):
            upgrade(store)
            assert schema_differences(store) == []
            with store.read() as session:
                assert {number: current_order(session, number) for number in declared} == expected
                assert [number for number in declared if is_shuffled(session, number)] == [1]
                assert [number for number in declared if follows_queue(session, number)] == [2, 3]
                assert [len(load_history(session, number).sightings) for number in declared] == [1, 2, 1, 1]
            assert streams_of(store) == {}
            downgrade(store, "0009")
            back = streams_of(store)
            assert {name: [n for n in declared if back.get(n, {}).get(name)] for name in ("shuffled", "queue")} == {
                "shuffled": [1],
                "queue": [2, 3],
            }
            with store.read() as session:
                names = session.execute(sa.text("SELECT sampling FROM projects ORDER BY id")).scalars().all()
            assert names == ["Sequential sampling", "Uniform sampling", "Uncertainty sampling", "Uniform sampling"]


def test_tables_are_made_anew_without_losing_what_refers_to_them(empty_url: str) -> None:
    with Store(empty_url) as store:
        upgrade(store)
        with store.write() as session:
            ensure_project(session, "1.1")
            session.execute(sa.text("INSERT INTO task_deletions VALUES (1, '7', '2026-01-01')"))
        with store.rebuild() as session:
            assert session.execute(sa.text("SELECT count(*) FROM task_deletions")).scalar_one() == 1
            if store.is_sqlite:
                assert session.execute(sa.text("PRAGMA foreign_keys")).scalar_one() == 0
        if store.is_sqlite:
            with pytest.raises(StoreConflict, match="expected rows that refer to others"), store.rebuild() as session:
                session.execute(sa.text("DELETE FROM projects"))
        with store.write() as session:
            assert session.execute(sa.text("SELECT count(*) FROM task_deletions")).scalar_one() == 1
            session.execute(sa.text("DELETE FROM projects"))
            assert session.execute(sa.text("SELECT count(*) FROM task_deletions")).scalar_one() == 0


def test_documents_lose_their_rows_on_the_way_down_and_are_scored_again(empty_url: str) -> None:
    with Store(empty_url) as store:
        upgrade(store, revision=PREVIOUS)
        fill(store)
        upgrade(store)
        with store.write() as session:
            if not store.is_sqlite:  # the rows above brought their own numbers
                for table in ("calibration_scores", "calibration_cells"):
                    session.execute(sa.text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), 1000)"))
            cells = load_cells(session, 1, model_id=1)
            assert [cell.tasks for cell in cells] == [cell.n for cell in cells] == [TASKS // 3] * 2
            assert has_unplaced(session, 1, model_id=1)
            parts = [
                UnitRow("en:1-10", SequenceScores(1.0, 1.0, 0.5), end=3),
                UnitRow("de:11-20", SequenceScores(math.inf, math.inf, math.inf), start=3, end=9, drawn=False),
            ]
            shared = {"model_id": 1, "label_revision": 1, "evidence": "blind", "errors": ErrorRow(1, 1)}
            for task in (1, 2):
                assert record_units(session, 1, task_id=task, units=parts, **shared)
            assert len(unscored_labels(session, 1, model_id=1)) == TASKS - 2
            counted = recount_cells(session, 1, model_id=1)
        downgrade(store, "0011")
        with store.read() as session:
            rows = session.execute(sa.text("SELECT task_id, cell_id, nll FROM calibration_scores")).all()
            kept = session.execute(sa.text("SELECT id, n, n_infinite FROM calibration_cells")).all()
        assert {row.task_id for row in rows} == set(range(3, TASKS + 1))
        for cell, n, infinite in kept:
            held = [row for row in rows if row.cell_id == cell]
            assert (n, infinite) == (len(held), sum(math.isinf(row.nll) for row in held))
        assert sum(n for _, n, _ in kept) < sum(n for n, _, _ in counted.values())
        upgrade(store)
        with store.read() as session:
            waiting = [label.task_id for label in unscored_labels(session, 1, model_id=1)]
        assert waiting == list(range(1, TASKS + 1))


def test_what_flags_rest_on_leaves_on_the_way_down_and_is_made_again(empty_url: str) -> None:
    """0013: rows stay as they are, and wait for their errors; lists that only this release can read go."""
    errors = ErrorRow(2, 1, missing=(0.5, 0.0), false=(0.25,))
    with Store(empty_url) as store:
        upgrade(store, revision=PREVIOUS)
        fill(store)
        upgrade(store)
        with store.write() as session:
            unit = stored_units(session, 1, model_id=1)[0]
            assert not record_units(
                session, 1, model_id=1, task_id=1, label_revision=1, evidence="blind", units=[replace(unit, end=9)],
                errors=errors,
            )  # fmt: skip
            assert head_revision(session, 1, model_id=1) == TASKS + 1
            if not store.is_sqlite:
                session.execute(sa.text("SELECT setval(pg_get_serial_sequence('served_sets', 'id'), 1000)"))
            shared = (1, 3, False, STRATA[0], "all", "own", TASKS, 5.0, False, 1, 1)
            served = Served(1, *shared, pack_ranked(replace(LISTED, floor=FLOOR)), NOW + timedelta(hours=2))
            record_served(session, [replace(served, flags=2, doubt=0.5)])
            judged = Judged(
                1, 1, 1, 1, 3, NOW.date(), "blind", STRATA[0], "all", TASKS, "0.1", "own", covered=True, shown=True,
                accepted=True, is_open=False, size=1, risk=JudgedRisk("all", TASKS, "own", "0.05", 0.5),
            )  # fmt: skip
            assert record_judgement(session, judged)
        before = everything_reported(store)
        assert {row.scope for row in before} > {"risk", "stratum"}
        for _ in range(2):
            downgrade(store, "0012")
            columns = {each["name"] for each in sa.inspect(store.engine).get_columns("calibration_scores")}
            assert not columns & {"true_spans", "best_spans"}
            assert "span_errors" not in sa.inspect(store.engine).get_table_names()
            with store.read() as session:
                forms = [bytes(row[0])[0] for row in session.execute(sa.text("SELECT ranked FROM served_sets"))]
                assert forms == [1] * TASKS
                counted = session.execute(sa.text("SELECT count(*) FROM calibration_scores")).scalar_one()
                assert counted == TASKS
            upgrade(store)
            assert schema_differences(store) == []
            assert everything_reported(store) == [row for row in before if row.scope != "risk"]
            with store.read() as session:
                assert has_unplaced(session, 1, model_id=1)
                assert len(unscored_labels(session, 1, model_id=1)) == TASKS
                assert row_errors(session, task_units(session, 1, model_id=1)[0]) is None
                assert load_errors(session, load_cells(session, 1, model_id=1)).task_ids.size == 0
