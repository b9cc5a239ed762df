"""The loop: what one confirmed label costs as the project grows, and the worker's memory over many events.

The real worker on SQLite with the bundled model. A label is an event in the inbox; its cost is everything up to the
judged, watched calibration row. Prints forward passes per label (one), milliseconds per label with 10^3, 10^5 and 10^6
rows already there, and the ratio to the first (O(log n): about 1). Then 10^5 events, one in ten of which changes a
label, and the resident memory on the way. `--rows` and `--events` limit both.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from _claims import claim

from backend.domain.ranked import RankedList, one_unit
from backend.domain.records import Draw, Served
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.settings import load_settings
from backend.store import Store, open_store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.events import store_events
from backend.store.packed_lists import pack_ranked
from backend.store.projects import find_project
from backend.store.served import record_served
from backend.store.tables import CalibrationCell, CalibrationHead, MonitorState, Project
from backend.worker.worker import Worker

CONFIG = (
    '<View><Labels name="label" toName="text"><Label value="PER"/><Label value="LOC"/><Label value="ORG"/>'
    '<Label value="MISC"/></Labels><Text name="text" value="$text"/></View>'
)
BEGAN = datetime(2026, 11, 2, 9, tzinfo=UTC)
LABELS = 200
TASKS = 2_000


def event(number: int, *, revision: int = 0) -> dict[str, Any]:
    """Return a webhook about annotation `number`; each revision says something else."""
    text = f"Alice Braun met Jordan in Paris, for the {number}th time."
    at = (BEGAN + timedelta(seconds=number, hours=revision)).isoformat()
    spans = [(0, 11, "PER"), (28, 33, "LOC")][: 1 + revision % 2]
    result = [
        {
            "id": f"r{i}",
            "from_name": "label",
            "to_name": "text",
            "type": "labels",
            "value": {"start": start, "end": end, "text": text[start:end], "labels": [label]},
        }
        for i, (start, end, label) in enumerate(spans)
    ]
    return {
        "action": "ANNOTATION_UPDATED" if revision else "ANNOTATION_CREATED",
        "annotation": {"id": number, "task": number, "result": result, "created_at": at, "updated_at": at}
        | {"was_cancelled": False, "ground_truth": False, "completed_by": 1},
        "task": {"id": number, "data": {"text": text}, "created_at": BEGAN.isoformat()},
        "project": {"id": 1, "title": "bench", "label_config": CONFIG, "sampling": "Uniform sampling"}
        | {"created_at": BEGAN.isoformat(), "updated_at": BEGAN.isoformat()},
    }


class Bench:
    """A worker whose forward passes are counted."""

    def __init__(self, store: Store, url: str) -> None:
        settings = load_settings(
            database_url=url, refit_every_labels=10**9, refit_every_minutes=1e9, sync_every_minutes=0
        )
        loader = ModelLoader(settings)
        loader.start()
        self.tagger = loader.tagger(300)
        self.passed = 0
        original = self.tagger.potentials

        def counted(texts: Any, **more: Any) -> Any:  # noqa: ANN401 - whatever the tagger takes
            self.passed += len(texts)
            return original(texts, **more)

        self.tagger.potentials = counted
        self.store = store
        self.worker = Worker(settings, store, loader=loader, views=Views(settings, store, loader))

    def work(self) -> None:
        """Process what is in the inbox."""
        while self.worker.step_events():
            pass

    def prepare(self, numbers: range) -> None:
        """Draw the tasks to be blind and record what would have been shown, as the service does."""
        with self.store.read() as session:
            project = find_project(session, "1")
        assert project is not None
        ranked = pack_ranked(one_unit(RankedList(("PER",), (-0.1, -2.0), ((), ()), exhausted=False)))
        with self.store.write() as session:
            model = session.execute(sa.text("SELECT max(id) FROM models")).scalar_one()
            for first in range(numbers.start, numbers.stop, 500):
                part = range(first, min(first + 500, numbers.stop))
                kept = ensure_tasks(
                    session,
                    project.id,
                    [
                        NewTask(
                            str(number),
                            event(number)["task"]["data"]["text"],
                            "en",
                            12,
                            Draw("uniform", (number * 0.618) % 1, 1.0, blind=True),
                            BEGAN,
                        )
                        for number in part
                    ],
                )
                at = BEGAN - timedelta(hours=1)
                record_served(
                    session,
                    [
                        Served(each.id, model, None, True, "en/11-20", "en/11-20", "borrowed", 999, 2.0, False, 2, 2,
                               ranked, at, alpha="0.05")
                        for each in kept
                    ],
                )  # fmt: skip

    def grow(self, size: int) -> None:
        """Fill the project up to so many rows, by the driver: the benchmark is about the next one."""
        with self.store.write() as session:
            cell = (
                session.execute(sa.select(CalibrationCell).where(CalibrationCell.evidence == "blind")).scalars().first()
            )
            project = session.execute(sa.select(Project)).scalars().one()
            head = session.execute(sa.select(CalibrationHead)).scalars().one()
            assert cell is not None
            have = cell.n
            first = 10_000_000 + have
            missing = max(0, size - have)
            scores = np.random.default_rng(have).exponential(size=missing).tolist()
            moment = "2026-01-01 00:00:00"
            cursor = session.connection().connection.cursor()
            cursor.executemany(
                "INSERT INTO tasks (id, project_id, external_id, text_hash, created_at) VALUES (?, ?, ?, ?, ?)",
                ((first + i, project.id, f"x{first + i}", b"", moment) for i in range(missing)),
            )
            cursor.executemany(
                "INSERT INTO calibration_scores (task_id, model_id, cell_id, label_revision, nll, rank, cumulative, "
                "weight, entities, added_at_revision, created_at, stop) "
                "VALUES (?, ?, ?, 1, ?, 1, 0.5, 1, 1, ?, ?, 9)",
                (
                    (first + i, cell.model_id, cell.id, score, head.revision + 1 + i, moment)
                    for i, score in enumerate(scores)
                ),
            )
            cursor.executemany(
                "INSERT INTO monitor_rows (project_id, model_id, task_id, position, stratum, score) "
                "VALUES (?, ?, ?, ?, 'en/11-20', ?)",
                ((project.id, cell.model_id, first + i, first + i, score) for i, score in enumerate(scores)),
            )
            cell.n += missing
            cell.tasks += missing
            head.revision += missing
            watch = session.execute(sa.select(MonitorState).where(MonitorState.kind == "watch")).scalars().one()
            watch.state = json.dumps({"revision": head.revision}).encode()
            for state in session.execute(sa.select(MonitorState).where(MonitorState.kind == "drift")).scalars():
                state.revision += 1  # what the worker has in memory is out of date
        with self.store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("ANALYZE"))


def bench_label(bench: Bench, largest: int) -> int:
    """Time labels one by one at each size; returns the number of the next task."""
    store_events(bench.store, [event(0)])
    bench.work()  # the project and the model are known from here on
    number, first = 1, None
    bench.prepare(range(number, number + 20))
    store_events(bench.store, [event(i) for i in range(number, number + 20)])
    bench.work()
    number += 20
    for size in (1_000, 100_000, 1_000_000):
        if size > largest:
            break
        bench.grow(size)
        bench.prepare(range(number, number + LABELS + 10))
        store_events(bench.store, [event(i) for i in range(number, number + 10)])
        bench.work()  # reads the scores of the martingale again
        number += 10
        bench.passed = 0
        wall, processor = time.perf_counter(), time.process_time()
        for i in range(number, number + LABELS):
            store_events(bench.store, [event(i)])
            bench.worker.step_events()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        number += LABELS
        first = first or processor
        print(
            f"{size:>9,} rows: {bench.passed / LABELS:.2f} forward passes and {1000 * processor / LABELS:.1f} ms of "
            f"processor time per label ({1000 * wall / LABELS:.1f} ms in all), x{processor / first:.2f}"
        )
        if size > 1_000:
            claim(f"a confirmed label at {size:,} rows", peer="one at 1,000 rows", ratio=processor / first, at_most=1.5)
    return number


def bench_memory(bench: Bench, events: int, first: int) -> None:
    """Send events and print the resident memory at each tenth."""
    bench.prepare(range(first, first + TASKS))
    sent, marks = 0, []
    while sent < events:
        # Ten deliveries say the same before something new is said.
        numbers = range(sent, min(sent + 1_000, events))
        batch = [event(first + (i // 10) % TASKS, revision=i // (10 * TASKS)) for i in numbers]
        store_events(bench.store, batch)
        bench.work()
        sent += len(batch)
        if sent * 10 // events > len(marks):
            marks.append(resident())
            print(f"{sent:>9,} events: {marks[-1]:.0f} MB", flush=True)
    print(f"from a tenth to the end x{marks[-1] / marks[0]:.3f}; {bench.passed:,} forward passes in all")
    what = f"the worker's memory after {events:,} events"
    claim(what, peer="after a tenth of them", ratio=marks[-1] / marks[0], at_most=1.1)


def resident() -> float:
    """Return the resident memory of this process in megabytes."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="largest number of rows already there")
    parser.add_argument("--events", type=int, default=100_000, help="events for the memory; 0 leaves it out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ssl") as base:
        url = f"sqlite:///{base}/loop.db"
        with open_store(url) as store:
            bench = Bench(store, url)
            number = bench_label(bench, options.rows)
            if options.events:
                bench_memory(bench, options.events, number)


if __name__ == "__main__":
    main()
