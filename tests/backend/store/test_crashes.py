"""Real processes, really killed: nothing acknowledged is lost, nothing counts twice, nothing is half done."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from backend.errors import LeaseLost
from backend.store import Store, open_store
from backend.store.tables import Event, Job, ThresholdVersion
from tests.support import store_workload as workload
from tests.support.paths import ROOT
from tests.support.waiting import WAIT

pytestmark = pytest.mark.crash


class Forks:
    """The program of `store_workload`, which forks a child per order."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.store_workload"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
        )

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def start(self, do: str, **options: Any) -> int:
        return int(self.ask({"do": do, "with": options})["pid"])

    def wait(self, pid: int) -> int:
        return int(self.ask({"do": "wait", "pid": pid})["status"])

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(WAIT)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    opened = Forks()
    yield opened
    opened.close()


def wait_until_quiet(store: Store) -> None:
    """A killed client's server process may still be rolling back."""
    if store.is_sqlite:
        return
    query = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    while True:
        with store.engine.connect() as connection:
            if connection.execute(query).scalar_one() == 0:
                return
        time.sleep(0.005)


def run_kills(url: str, forks: Forks, tmp_path: Path, *, kills: int, seed: int) -> Counter[str]:
    """Let children live until `kills` of them were killed at random points; check everything after each."""
    draw = random.Random(seed)
    done: Counter[str] = Counter()
    life = 0
    while done["killed"] < kills:
        life += 1
        acks = tmp_path / f"acks{life}"
        deliveries = workload.make_deliveries(draw.randrange(10**6), tasks=20)
        store = Store(url)
        with store.write() as session:
            for table in ("events", "jobs", "projects", "models"):
                session.execute(sa.text(f"DELETE FROM {table}"))
        acknowledged: dict[int, int] = {}
        while done["killed"] < kills:
            store.close()
            first = max(acknowledged, default=-1) + 1
            # Some die whenever the signal arrives, others right before a statement or commit of ingest, or of a refit.
            way = draw.choice(["by signal", "in ingest", "in a refit"])
            kill_at = {"by signal": None, "in ingest": draw.randint(1, 150), "in a refit": draw.randint(1, 40)}[way]
            options = {"url": url, "name": "only", "acks": str(acks), "deliveries": deliveries}
            pid = forks.start("live", **options, first=first, kill_at=kill_at, in_refit=way == "in a refit")
            if way == "by signal":
                time.sleep(draw.uniform(0, 0.3))
                os.kill(pid, signal.SIGKILL)
            status = forks.wait(pid)
            assert status in {0, -signal.SIGKILL}, f"the child failed by itself: {status}"
            wait_until_quiet(store)
            if acks.exists():
                for line in acks.read_text().splitlines():
                    number, event_id = line.split()
                    acknowledged[int(number)] = int(event_id)
            check_inbox(store, deliveries, acknowledged)
            workload.check_consistent(store)
            if status == 0:
                done["lives"] += 1
                break
            done["killed"] += 1
            done[way] += 1
        else:
            # The last life goes on to its end, so that it too is compared with the clean run.
            first = max(acknowledged, default=-1) + 1
            pid = forks.start("live", **options, first=first, kill_at=None, in_refit=False)
            assert forks.wait(pid) == 0
            done["lives"] += 1
        workload.check_consistent(store)
        done["versions"] += count(store, ThresholdVersion)
        done["events"] += count(store, Event)
        assert workload.snapshot(store) == clean_run(tmp_path, deliveries), "the end differs from a life without kills"
        store.close()
    return done


def count(store: Store, table: Any) -> int:
    with store.read() as session:
        return session.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def check_inbox(store: Store, deliveries: list[dict[str, Any]], acknowledged: dict[int, int]) -> None:
    with store.read() as session:
        stored = {row.id: json.loads(row.payload) for row in session.execute(sa.select(Event)).scalars()}
        dead = session.execute(sa.select(Event.error).where(Event.state == "dead")).scalars().all()
    assert dead == []
    for number, event_id in acknowledged.items():
        assert stored[event_id]["step"] == deliveries[number]["step"], "an acknowledged event is missing"


_CLEAN: dict[str, dict[str, Any]] = {}


def clean_run(tmp_path: Path, deliveries: list[dict[str, Any]]) -> dict[str, Any]:
    """The end of one process that delivers and processes everything in order, on SQLite."""
    key = json.dumps(deliveries)
    if key not in _CLEAN:
        with open_store(f"sqlite:///{tmp_path / f'clean{len(_CLEAN)}.db'}") as store:
            for each in deliveries:
                workload.store_event(store, each)
            workload.finish(store, "clean")
            _CLEAN[key] = workload.snapshot(store)
    return _CLEAN[key]


def test_kills_at_random_points(url: str, forks: Forks, tmp_path: Path) -> None:
    done = run_kills(url, forks, tmp_path, kills=12, seed=1)
    assert done["killed"] == 12
    assert done["versions"] > 0
    assert done["events"] > 0


@pytest.mark.slow
def test_many_kills_at_random_points(kind: str, url: str, forks: Forks, tmp_path: Path) -> None:
    done = run_kills(url, forks, tmp_path, kills=500, seed=2)
    print(f"\n{kind}: {dict(done)}")
    assert done["killed"] == 500


@pytest.mark.parametrize("processes", [2, 8])
@pytest.mark.parametrize("share", ["same", "different"])
def test_processes_side_by_side_end_like_one_in_order(
    url: str, forks: Forks, tmp_path: Path, processes: int, share: str
) -> None:
    deliveries = workload.make_deliveries(7, tasks=8 if processes == 2 else 4)
    pids = []
    for number in range(processes):
        mine = list(deliveries)
        if share == "different":
            mine = deliveries[number::processes]
        else:
            random.Random(number).shuffle(mine)
        pids.append(forks.start("ingest", url=url, name=f"w{number}", deliveries=mine, lease=60.0))
    assert [forks.wait(pid) for pid in pids] == [0] * processes
    with Store(url) as store:
        workload.finish(store, "last")
        repeats = processes if share == "same" else 1
        assert count(store, Event) == len(deliveries) * repeats, "one row per delivery"
        with store.read() as session:
            states = Counter(session.execute(sa.select(Event.state)).scalars())
            assert session.execute(sa.select(Event.id).where(Event.attempts > 0)).all() == []
        assert set(states) <= {"done", "skipped"}
        workload.check_consistent(store)
        assert workload.snapshot(store) == clean_run(tmp_path, deliveries)


def test_of_many_processes_one_refits(url: str, store: Store) -> None:
    for each in workload.make_deliveries(3, tasks=3):
        workload.store_event(store, each)
    workload.finish(store, "w")
    first = workload.refit(store, "a")
    with Store(url) as other:
        with other.write() as session:
            workload.enqueue_job(session, "refit", key="refit:1")
            held = workload.acquire_job(session, holder="b")
        assert held is not None
        assert workload.refit(store, "a") is None, "another process holds the job"
        with other.write() as session:
            workload.heartbeat(session, held, lease=workload.timedelta(0))
        second = workload.refit(store, "a")
        assert second is not None
        assert first is not None
        assert second > first
        with pytest.raises(LeaseLost), other.write() as session:
            workload.finish_job(session, held)
    with store.read() as session:
        states = Counter(session.execute(sa.select(Job.state)).scalars())
    assert states == {"done": 2, "queued": 1}
    workload.check_consistent(store)
