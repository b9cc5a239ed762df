"""Two services and a worker on PostgreSQL, killed at random while people label: the end is that of a clean run.

Real processes, killed by SIGKILL with all their children. The test plays Label Studio, which in its place would lose a
delivery that fails; here it is sent again, to the other service.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from backend.app import create_app, service_of
from backend.calibration.order import record_sampling
from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.settings import load_settings
from backend.store import Store
from backend.store.events import inbox_depth
from backend.store.labels import unscored_labels
from backend.store.projects import ensure_project, find_project
from backend.store.schema import upgrade
from backend.store.state import set_state
from backend.store.tables import Event, Job, Model, ServedSet, Task, ThresholdVersion
from backend.tagger.readers import LabelledText, read_labelled
from backend.worker.worker import Worker
from tests.backend.worker.test_replay import _rows
from tests.support import payload_shapes as shapes
from tests.support.paths import SAMPLE
from tests.support.running import environment, free_port

pytestmark = [pytest.mark.crash, pytest.mark.e2e]

UID = f"31.{int(datetime.fromisoformat(shapes.STAMP).timestamp())}"  # as Label Studio makes it of id and creation
LONG = 120.0  # seconds after which something that was waited for is called lost
START = datetime(2026, 11, 2, 9, tzinfo=UTC)
CONFIG = """<View><Labels name="label" toName="text">
<Label value="PER"/><Label value="LOC"/><Label value="ORG"/><Label value="MISC"/></Labels>
<Text name="text" value="$text"/></View>"""
LOOP = {
    "SURESPAN_BLIND": "0.3",
    "SURESPAN_AUDIT_SHARE": "0.3",
    "SURESPAN_REFIT_EVERY_LABELS": "5",
    "SURESPAN_SYNC_EVERY_MINUTES": "0",
    "LOG_LEVEL": "info",
}


class Process:
    """A service or the worker, which may be killed and started again; every life has a log of its own."""

    def __init__(self, name: str, command: list[str], directory: Path, env: dict[str, str], port: int = 0) -> None:
        self.name, self.port, self.logs = name, port, []  # type: ignore[var-annotated]
        self._command, self._directory, self._env = command, directory, env
        self.process: subprocess.Popen[bytes] | None = None
        self.pids: list[int] = []
        self.start()

    def start(self) -> None:
        log = self._directory / f"{self.name}-{len(self.logs)}.log"
        self.logs.append(log)
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "backend", *self._command],
                env=self._env,
                cwd=self._directory,
                stdout=stream,
                stderr=stream,
                start_new_session=True,  # gunicorn's children die with it
            )
        self.pids.append(self.process.pid)

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=LONG)

    def call(self, path: str, body: Any = None) -> Any:
        """Call a route; None when the service is not there (any more)."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data=data, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=LONG) as answer:  # noqa: S310
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            if error.code != 503:  # 503: its model is not there yet
                raise
            return None
        except (OSError, ValueError, EOFError):
            return None  # killed before, or in the middle


class World:
    """What people do: tasks in turn, each shown and then labelled; some labels are changed, skipped or taken back."""

    def __init__(self, tasks: int, seed: int) -> None:
        texts = [text for text in read_labelled(SAMPLE).texts if text.text.strip()]
        self.chance = random.Random(seed)
        self.texts = [texts[i % len(texts)] for i in range(tasks)]
        self.steps: list[tuple[int, list[dict[str, Any]]]] = []
        for i in range(tasks):
            self.steps.append((i, self._events(i)))

    def task(self, i: int) -> dict[str, Any]:
        return shapes.task(i, f"{self.texts[i].text} {i}")

    def _events(self, i: int) -> list[dict[str, Any]]:
        text = self.texts[i]
        first = self._event("ANNOTATION_CREATED", i, text, minutes=2 * i, was_cancelled=i % 17 == 5)
        more = []
        if i % 5 == 3:  # somebody thinks again: the first entity goes
            fewer = LabelledText(text.text, text.spans[1:], language=text.language)
            more.append(self._event("ANNOTATION_UPDATED", i, fewer, minutes=2 * i + 1))
        if i % 23 == 7:
            more.append({"action": "ANNOTATIONS_DELETED", "annotations": [{"id": 1000 + i}], "project": self.project()})
        return [first, *more]

    def _event(self, action: str, i: int, text: LabelledText, *, minutes: int, **more: Any) -> dict[str, Any]:
        at = (START + timedelta(minutes=minutes)).isoformat()
        whole = f"{text.text} {i}"
        regions = [
            shapes.region(start, end, whole, label, origin="manual", id=f"r{start}") for start, end, label in text.spans
        ]
        made = shapes.annotation(
            1000 + i, task_id=i, result=regions, created_at=at, updated_at=at, updated_by=1, **more
        )
        return {"action": action, "annotation": made, "task": self.task(i), "project": self.project()}

    @staticmethod
    def project() -> dict[str, Any]:
        return shapes.project_object() | {"label_config": CONFIG, "sampling": "Uniform sampling"}


@contextmanager
def database(server: Any) -> Iterator[Store]:
    """A migrated database whose project is known, with a salt that both runs share."""
    name = f"t{uuid.uuid4().hex[:12]}"
    server.admin(f"CREATE DATABASE {name}")
    try:
        with Store(server.uri(name)) as store:
            upgrade(store)
            with store.write() as session:
                project = ensure_project(session, UID, label_config=CONFIG)
                set_state(session, project.id, "salt", {"salt": "pepper"})
                record_sampling(
                    session, project.id, sampling="Uniform sampling", at=START - timedelta(days=1), source="connect"
                )
            yield store
    finally:
        server.admin(f"DROP DATABASE {name} WITH (FORCE)")


def clean_run(store: Store, world: World, model: Path) -> Any:
    """The same work in one process, nothing killed."""
    values = {name.removeprefix("SURESPAN_").lower(): value for name, value in LOOP.items()}
    chosen = load_settings(
        database_url=store.url.render_as_string(hide_password=False), model=str(model), n_min=20, alpha="0.1", **values
    )
    app = create_app(chosen)
    try:
        for i, events in world.steps:
            body = shapes.predict([world.task(i)], config=CONFIG, project=UID)
            assert app.test_client().post("/predict", json=body, buffered=True).status_code == 200
            for event in events:
                assert app.test_client().post("/webhook", json=event).status_code == 200
        loader = ModelLoader(chosen)
        loader.start()
        Worker(chosen, store, loader=loader, views=Views(chosen, store, loader)).drain()
        loader.close()
    finally:
        service_of(app).close()
    return rounded(_rows(store))


def rounded(value: Any) -> Any:
    """Scores to nine digits: the last bits of a float depend on the texts that are scored together."""
    if isinstance(value, float):
        return value if value in {float("inf"), float("-inf")} else round(value, 9)
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


class Trial:
    """The replicas, and what they answered."""

    def __init__(self, store: Store, world: World, model: Path, directory: Path, *, kills: int) -> None:
        self.store, self.world, self.chance = store, world, random.Random(kills)
        url = store.url.render_as_string(hide_password=False)
        env = environment(directory, model, SURESPAN_DATABASE_URL=url, **LOOP)
        ports = (free_port(), free_port())
        self.services = [
            Process(f"service{i}", ["serve", "--port", str(port)], directory, env, port) for i, port in enumerate(ports)
        ]
        self.worker = Process("worker", ["worker"], directory, env)
        self.answers: list[tuple[str, datetime]] = []
        self.killed: Counter[str] = Counter()
        # Evenly over the work, in random order of victims: each process at least once.
        everyone = [*self.services, self.worker]
        victims = [everyone[i % 3] for i in range(kills)]
        self.chance.shuffle(victims)
        at = [(i + 1) * len(world.steps) // (kills + 1) for i in range(kills)]
        self.kill_at = dict(zip(at, victims, strict=True))

    def run(self) -> None:
        for process in (*self.services, self.worker):
            until(lambda process=process: "model loaded" in process.logs[-1].read_text(), process.logs[-1])  # type: ignore[misc]
        for number, (i, events) in enumerate(self.world.steps):
            if number in self.kill_at:
                if not self.killed:
                    until(lambda: self.versions() > 0, self.worker.logs[-1])  # so that there is something to follow
                # A service answers without its record when that takes seconds; a kill then loses it, as documented.
                until(self.are_recorded, self.services[0].logs[-1])
                self.kill(self.kill_at[number])
            body = shapes.predict([self.world.task(i)], config=CONFIG, project=UID)
            found = self.ask("/predict", body)
            (entry,) = found["results"]
            self.answers.append((entry[-1]["model_version"], datetime.now(UTC)))
            for event in events:
                assert self.ask("/webhook", event)["status"] == "stored"
        self.settle()

    def are_recorded(self) -> bool:
        with self.store.read() as session:
            shown = session.execute(sa.select(sa.func.count(sa.distinct(ServedSet.task_id)))).scalar_one()
        return int(shown) >= len(self.answers)

    def kill(self, victim: Process) -> None:
        victim.kill()
        self.killed[victim.name] += 1
        self.time_passes()
        victim.start()

    def time_passes(self) -> None:
        """What dead workers held is free again, as it would be after a minute or two."""
        alive = f":{self.worker.process.pid}" if self.worker.process and self.worker.process.poll() is None else "-"
        past = datetime.now(UTC) - timedelta(hours=1)
        with self.store.write() as session:
            dead = sa.and_(Event.claimed_by.is_not(None), ~Event.claimed_by.endswith(alive))
            session.execute(sa.update(Event).where(Event.state == "pending", dead).values(due_at=past))
            lost = sa.and_(Job.state == "running", ~Job.holder.endswith(alive))
            session.execute(sa.update(Job).where(lost).values(lease_until=past))

    def ask(self, path: str, body: Any) -> Any:
        """Ask one service, and the other when that fails, until somebody answers."""
        order = list(self.services)
        self.chance.shuffle(order)
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            for service in order:
                answer = service.call(path, body)
                if answer is not None:
                    return answer
            time.sleep(0.05)
        raise AssertionError(f"no service answered {path}: " + self.services[0].logs[-1].read_text()[-2000:])

    def settle(self) -> None:
        """Wait until everything is processed and both services say the newest version."""
        until(self.is_idle, self.worker.logs[-1])
        for service in self.services:
            until(lambda service=service: self.follows(service), service.logs[-1])  # type: ignore[misc]

    def is_idle(self) -> bool:
        with self.store.read() as session:
            waiting = sa.select(Job.id).where(Job.state.in_(["queued", "running"]), Job.kind != "publish")
            if inbox_depth(session)["pending"] or session.execute(waiting.limit(1)).first() is not None:
                return False
            project = find_project(session, UID)
            model = session.execute(sa.select(Model.id)).scalar_one()
            assert project is not None
            # Also those whose scoring has begun: the worker may be in the middle of them.
            ways = [unscored_labels(session, project.id, model_id=model, tried=tried) for tried in (False, True)]
            return all(label.spans is None for left in ways for label in left)

    def versions(self) -> int:
        with self.store.read() as session:
            return int(session.execute(sa.select(sa.func.count()).select_from(ThresholdVersion)).scalar_one())

    def follows(self, service: Process) -> bool:
        with self.store.read() as session:
            newest = session.execute(sa.select(sa.func.max(ThresholdVersion.id))).scalar_one()
        answer = service.call("/setup", shapes.setup(CONFIG, project=UID))
        return answer is not None and answer["model_version"].endswith(f"+cal.{newest}")

    def close(self) -> None:
        for process in (*self.services, self.worker):
            if process.process is not None and process.process.poll() is None:
                process.kill()


def until(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it never came to that: " + log.read_text()[-3000:])


def check_served(trial: Trial) -> Counter[str]:
    """Every served set names a version of its own model that was there when it was served."""
    with trial.store.read() as session:
        made = ThresholdVersion
        versions = {row.id: row for row in session.execute(sa.select(made.id, made.model_id, made.created_at)).all()}
        kept = ServedSet
        served = session.execute(sa.select(kept.task_id, kept.model_id, kept.version_id, kept.served_at)).all()
        tasks = session.execute(sa.select(sa.func.count()).select_from(Task)).scalar_one()
    found: Counter[str] = Counter()
    for each in served:
        found[str(each.version_id)] += 1
        if each.version_id is not None:
            assert versions[each.version_id].created_at <= each.served_at
            assert versions[each.version_id].model_id == each.model_id
    # A set whose record was lost with its process has been shown again, or its task would be missing.
    assert len({each.task_id for each in served}) == tasks == len(trial.world.steps)
    for name, at in trial.answers:
        number = int(name.rpartition(".")[2])
        assert number == 0 or versions[number].created_at <= at
    return found


def check_loaded(trial: Trial) -> int:
    """No process served a version before the model of that version was in its memory; returns how often one served."""
    count = 0
    for service in trial.services:
        for log in service.logs:
            loaded: set[str] = set()
            for line in log.read_text().splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue  # cut off by a kill
                if entry["message"] == "model loaded":
                    loaded.add(entry["model"])
                elif entry["message"] == "version serves":
                    count += 1
                    assert entry["model_version"].partition("+")[0] in loaded, log
                assert entry["level"] != "error", line
    return count


def try_it(server: Any, model: Path, directory: Path, *, tasks: int, kills: int) -> None:
    world = World(tasks, seed=5)
    with database(server) as quiet:
        expected = clean_run(quiet, world, model)
    reasons = Counter(row[2][0][2] if row[2] else row[1] for row in expected.values())
    assert reasons[""] > tasks / 2  # otherwise nothing is compared
    assert reasons["skipped"] > 0
    with database(server) as store:
        trial = Trial(store, world, model, directory, kills=kills)
        try:
            trial.run()
        finally:
            trial.close()
        assert rounded(_rows(store)) == expected
        served = check_served(trial)
        assert check_loaded(trial) >= 3
        versions = trial.versions()
        with store.read() as session:
            assert inbox_depth(session)["dead"] == 0
    assert versions >= 2
    assert sum(trial.killed.values()) == kills
    print(
        f"\n{tasks} tasks, killed {dict(trial.killed)}; {len(expected)} labels and their rows as in the clean run; "
        f"{versions} versions; sets served by version {dict(served)}"
    )


def test_replicas_killed_during_labelling(served_model: Path, tmp_path: Path, postgresql: Any) -> None:
    try_it(postgresql, served_model, tmp_path, tasks=40, kills=3)


@pytest.mark.slow
def test_replicas_killed_often(served_model: Path, tmp_path: Path, postgresql: Any) -> None:
    try_it(postgresql, served_model, tmp_path, tasks=400, kills=30)
