"""Whatever becomes of the deliveries, the rows are those of a clean run: same tasks, labelings, scores and reasons."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from backend.domain.streams import Order, draw_task
from backend.store import Store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.events import inbox_depth, store_events
from backend.store.projects import ensure_project
from backend.store.schema import upgrade
from backend.store.state import set_state
from backend.store.tables import (
    CalibrationCell,
    CalibrationScore,
    EntityScore,
    Event,
    Job,
    Label,
    Task,
    ThresholdVersion,
)
from tests.support.databases import Server
from tests.support.paths import ROOT
from tests.support.rebuilding import check_versions
from tests.support.replay_history import START, Delivery, World, deliver_badly
from tests.support.waiting import WAIT

pytestmark = pytest.mark.crash

UID = f"31.{int((START - timedelta(days=1)).timestamp())}"
Rows = dict[tuple[str, str], Any]


class Workers:
    """The process that makes workers."""

    def __init__(self, directory: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SURESPAN_")} | {
            "SURESPAN_LEARN": "off"
        }
        self._log = (directory / "workers.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/support/replay_worker.py")],
            env=kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._read() == "ready\n", (directory / "workers.log").read_text()

    def run(self, url: str, *, names: list[str], kill_at: list[int | None], tasks: int) -> list[int]:
        """Run these workers at once until nothing is left to do; returns how each ended, -9 for a kill."""
        refit = {"refit_every": tasks // 50}
        orders = [{"url": url, "name": name, "kill_at": at} | refit for name, at in zip(names, kill_at, strict=True)]
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(orders) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._read())
        return codes

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=WAIT)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@pytest.fixture(scope="module")
def quick_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replay")


@pytest.fixture(scope="module")
def workers(quick_directory: Path) -> Iterator[Workers]:
    made = Workers(quick_directory)
    yield made
    made.close()


def test_rows_do_not_depend_on_how_the_deliveries_came(
    workers: Workers, quick_directory: Path, postgresql: Server
) -> None:
    world = World(7, tasks=300)
    world.live(170)
    clean = _clean_run(workers, quick_directory / "clean.db", world)
    _check_variety(clean)
    assert _bad_run(workers, f"sqlite:///{quick_directory / 'bad.db'}", world, seed=1, kills=5) == clean
    with postgresql.database() as url:
        assert _bad_run(workers, url, world, seed=2, kills=2, at_once=2) == clean


@pytest.fixture(scope="module")
def large(workers: Workers, quick_directory: Path) -> tuple[World, Rows]:
    """A history of five thousand tasks, and the rows of its clean run."""
    world = World(11, tasks=5000)
    world.live(5000)
    clean = _clean_run(workers, quick_directory / "clean-large.db", world)
    _check_variety(clean)
    return world, clean


@pytest.mark.slow
def test_rows_of_five_thousand_tasks_on_sqlite(
    workers: Workers, quick_directory: Path, large: tuple[World, Rows]
) -> None:
    world, clean = large
    assert _bad_run(workers, f"sqlite:///{quick_directory / 'bad-large.db'}", world, seed=3, kills=150) == clean


@pytest.mark.slow
def test_rows_of_five_thousand_tasks_on_postgresql(
    workers: Workers, large: tuple[World, Rows], postgresql: Server
) -> None:
    world, clean = large
    with postgresql.database() as url:
        assert _bad_run(workers, url, world, seed=4, kills=60, at_once=3) == clean


def _clean_run(workers: Workers, path: Path, world: World) -> Rows:
    with Store(f"sqlite:///{path}") as store:
        _prepare(store, world)
        for each in world.deliveries:
            store_events(store, [each.payload], received_at=each.at + timedelta(seconds=0.2))
        assert workers.run(f"sqlite:///{path}", names=["clean"], kill_at=[None], tasks=len(world.first)) == [0]
        return _rows(store)


def _bad_run(workers: Workers, url: str, world: World, *, seed: int, kills: int, at_once: int = 1) -> Rows:
    chance = random.Random(seed)
    bad = deliver_badly(world, seed)
    names = [f"w{number}" for number in range(at_once)]
    with Store(url) as store:
        _prepare(store, world)
        ends: Counter[int] = Counter()
        for number, part in enumerate(_parts(bad, kills)):
            for each in part:
                store_events(store, [each.payload], received_at=each.at)
            kill_at: list[int | None] = [chance.randint(1, 900) for _ in names]
            kill_at = kill_at if number < kills else [None] * at_once
            ends.update(workers.run(url, names=names, kill_at=kill_at, tasks=len(world.first)))
        assert -signal.SIGKILL in ends
        assert set(ends) <= {0, -signal.SIGKILL}
        heard = _rows(store)
        store_events(store, world.healing())
        while _is_busy(store):
            assert workers.run(url, names=names[:1], kill_at=[None], tasks=len(world.first)) == [0]
        healed = _rows(store)
        assert heard != healed  # deliveries were lost, or this shows nothing
        with store.read() as session:
            assert inbox_depth(session)["dead"] > 0
            kinds = Counter(session.execute(sa.select(Job.kind).where(Job.state == "done")).scalars())
            assert kinds["reconsider"] > 0
            assert session.execute(sa.select(sa.func.count()).select_from(ThresholdVersion)).scalar_one() > 0
            events = Counter(session.execute(sa.select(Event.state)).scalars())
        assert check_versions(store) > 0
        print(f"\n{store.url.get_backend_name()}: {len(world.deliveries)} sent, {len(bad)} delivered,")
        print(f"  events left {dict(events)} (old ones that were done are removed),")
        print(f"  workers {dict(ends)}, jobs {dict(kinds)}, {len(heard)} labelings heard, {len(healed)} after healing,")
        print(f"  reasons {dict(_reasons(healed))}")
        return healed


def _reasons(rows: Rows) -> Counter[str]:
    return Counter(row[2][0][2] if row[2] else row[1] for row in rows.values())


def _prepare(store: Store, world: World) -> None:
    """A project whose first tasks were shown, two thirds of them, some of those blind; the salt is known."""
    upgrade(store)
    with store.write() as session:
        project = ensure_project(session, UID)
        set_state(session, project.id, "salt", {"salt": "pepper"})
        shown = [
            NewTask(
                str(number),
                text,
                draw=draw_task("pepper", UID, str(number), order=Order.UNIFORM, audit_share=0.3, blind=0.3),
                created_at=START,
            )
            for number, text in world.first.items()
            if number % 3
        ]
        ensure_tasks(session, project.id, shown)


def _parts(deliveries: list[Delivery], kills: int) -> Iterator[list[Delivery]]:
    size = max(1, len(deliveries) // (kills + 1))
    for begin in range(0, len(deliveries), size):
        yield deliveries[begin : begin + size]


def _is_busy(store: Store) -> bool:
    with store.read() as session:
        waiting = sa.select(Job.id).where(Job.state.in_(["queued", "running"]), Job.kind.in_(["reconsider", "refit"]))
        return bool(inbox_depth(session)["pending"]) or session.execute(waiting.limit(1)).first() is not None


def _rows(store: Store) -> Rows:
    """Every labeling that stands, with its row: whose, what, scores, and why it does not calibrate."""
    with store.read() as session:
        tasks = {
            row.id: (row.external_id, bytes(row.text_hash).hex()) for row in session.execute(sa.select(Task)).scalars()
        }
        entities: dict[int, list[Any]] = {}
        for each in session.execute(sa.select(EntityScore)).scalars():
            entities.setdefault(each.score_id, []).append(
                (each.start, each.end, each.label, each.probability, each.cumulative, each.class_rank, each.rank)
            )
        units: dict[int, dict[int, Any]] = {}
        live = sa.select(CalibrationScore, CalibrationCell).join(
            CalibrationCell, CalibrationCell.id == CalibrationScore.cell_id
        )
        for row, cell in session.execute(live.where(CalibrationScore.removed_at_revision.is_(None))):
            held = units.setdefault(row.task_id, {})
            assert row.unit not in held  # one model, one row a unit
            held[row.unit] = (
                (cell.stratum, cell.evidence, cell.exclusion),
                (row.nll, row.rank, row.cumulative, row.weight, row.entities),
                sorted(entities.get(row.id, [])),
            )
        scored = {task: (*held.pop(0), *(held[unit] for unit in sorted(held))) for task, held in units.items()}
        rows = {
            tasks[label.task_id]: (label.spans, label.exclusion, scored.pop(label.task_id, None))
            for label in session.execute(sa.select(Label)).scalars()
            if label.exclusion != "withdrawn"
        }
        assert not scored, "a row without a label"
        return rows


def _check_variety(rows: Rows) -> None:
    """The history must hold what the test claims to test."""
    reasons = _reasons(rows)
    assert {"", "queue", "sequential", "skipped", "bulk"} <= set(reasons), reasons
    evidence = Counter(row[2][0][1] for row in rows.values() if row[2])
    assert evidence["blind"] > 5, evidence
    assert any(row[0] == [] for row in rows.values())
    assert any(row[2] and row[2][1][0] == float("inf") for row in rows.values())
