"""Many clients at once against the real service, with refits in the middle; part of `make soak`, prints its figures."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy.orm import Session

from backend.calibration.refit import refit
from backend.calibration.score_rows import error_row, unit_rows
from backend.domain.records import AnnotationRecord, Draw
from backend.labelstudio.config import parse_config
from backend.prediction.scoring import ScoredText, score_labelled
from backend.store import Store
from backend.store.calibration import record_units
from backend.store.events import load_event
from backend.store.labels import record_annotation
from backend.store.projects import ensure_model, ensure_project, ensure_task
from backend.tagger.loading import load_tagger
from backend.tagger.project_classes import project_tagger
from backend.tagger.readers import read_labelled
from backend.tagger.tagger import Tagger
from tests.support import payload_shapes as shapes
from tests.support.paths import SAMPLE
from tests.support.running import Running, running

CLIENTS = 64
SECONDS = 60.0
REFITS = 4
AIMS = {"/health": 1.0, "/setup": 3.0, "/webhook": 1.0}


class Client(threading.Thread):
    """Sends a mix of requests until told to stop, and keeps what came back."""

    def __init__(self, number: int, port: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.random = random.Random(number)
        self.number, self.port, self.stopped = number, port, stop
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.events: list[int] = []
        self.versions: set[str] = set()
        self.failures: list[str] = []
        self.tasks = 0

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        for turn in itertools.count():
            if self.stopped.is_set():
                break
            method, path, body = self.choose(turn)
            begun = time.perf_counter()
            try:
                connection.request(method, path, None if body is None else json.dumps(body))
                answer = connection.getresponse()
                found = json.loads(answer.read())
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.failures.append(f"{path}: {error!r}")
                connection.close()
                continue
            self.seconds[path].append(time.perf_counter() - begun)
            self.statuses[path, answer.status] += 1
            if answer.status == 200:
                self.keep(path, body, found)
        connection.close()

    def choose(self, turn: int) -> tuple[str, str, Any]:
        kind = self.random.random()
        if kind < 0.25:
            return "GET", "/health", None
        if kind < 0.5:
            return "POST", "/setup", shapes.setup(project=f"{31 + self.number % 3}.1790000000")
        if kind < 0.75:
            return "POST", "/webhook", self.random.choice(shapes.events())
        size = 1 if self.random.random() < 0.8 else 40
        first = self.random.randrange(500)
        tasks = [shapes.task(i, f"{shapes.TEXTS[i % 4]} {i} {turn % 50}") for i in range(first, first + size)]
        return "POST", "/predict", shapes.predict(tasks, project=f"{31 + self.number % 3}.1790000000")

    def keep(self, path: str, body: Any, found: Any) -> None:
        if path == "/webhook":
            self.events.append(found["event"])
        elif path == "/predict":
            assert len(found["results"]) == len(body["tasks"])
            self.tasks += len(body["tasks"])
            self.versions |= {entry[-1]["model_version"] for entry in found["results"]}


def tagger_of_the_project(model: Path) -> Tagger:
    tagger = load_tagger(model)
    return project_tagger(tagger, parse_config(shapes.CONFIG).target(tagger.space.classes))


def label_and_refit(store: Store, tagger: Tagger, first: int, count: int) -> int:
    """Confirm labels of the sample, score them and refit, while the service serves; returns the new version."""
    texts = read_labelled(SAMPLE).texts
    part = [texts[i % len(texts)] for i in range(first, first + count)]
    with store.write() as session:
        project = ensure_project(session, shapes.PROJECT)
        model = ensure_model(session, tagger.name, tagger.hash, classes=tagger.space.classes)
    for number, scored in enumerate(score_labelled(tagger, part), start=first):
        store.run(lambda session, n=number, s=scored: confirm(session, project.id, model.id, n, s))  # type: ignore[misc]
    return refit(store, project, model=model, alpha="0.1", n_min=20).version.id


def confirm(session: Session, project: int, model: int, number: int, scored: ScoredText) -> None:
    draw = Draw("audit", 0.5, 1.0, blind=True)
    task = ensure_task(session, project, external_id=f"L{number}", text=scored.tagged.text, draw=draw)
    change = record_annotation(session, task.id, AnnotationRecord(10_000 + number, datetime.now(UTC), ()))[0]
    assert change.label is not None
    record_units(
        session,
        project,
        model_id=model,
        task_id=task.id,
        label_revision=change.label.revision,
        units=unit_rows(scored),
        evidence="blind",
        errors=error_row(scored),
    )


def load(service: Running, store: Store, tagger: Tagger, *, clients: int, seconds: float) -> list[Client]:
    """Run the clients with a refit in the middle, and check what may never happen."""
    label_and_refit(store, tagger, 0, 200)
    stop = threading.Event()
    crowd = [Client(i, service.port, stop) for i in range(clients)]
    for client in crowd:
        client.start()
    for step in range(REFITS):
        stop.wait(seconds / (REFITS + 1))
        version = label_and_refit(store, tagger, 200 + 20 * step, 20)
    stop.wait(seconds / (REFITS + 1))
    stop.set()
    for client in crowd:
        client.join(120)
        assert not client.is_alive()
    report(crowd, seconds)
    assert [failure for client in crowd for failure in client.failures] == []
    statuses = sum((client.statuses for client in crowd), Counter[tuple[str, int]]())
    assert {status for _, status in statuses} == {200}
    events = [number for client in crowd for number in client.events]
    assert len(set(events)) == len(events)
    with store.read() as session:
        assert all(load_event(session, number) is not None for number in events)
    served = {name for client in crowd for name in client.versions}
    assert any(name.endswith(f"+cal.{version}") for name in served)  # picked up without a restart
    assert len({name for name in served if "+cal.0" not in name}) > 1
    return crowd


def report(crowd: list[Client], seconds: float) -> None:
    print(f"\n{len(crowd)} clients, {seconds:g} s, {sum(client.tasks for client in crowd)} tasks predicted")
    for path in ("/health", "/setup", "/webhook", "/predict"):
        times = np.array([each for client in crowd for each in client.seconds[path]])
        shares = " ".join(f"p{q:g} {np.percentile(times, q):.3f} s" for q in (50, 99, 99.9))
        aim = f" (aim {AIMS[path]:g} s)" if path in AIMS else ""
        print(f"{path:9} {times.size:6} requests  {shares}{aim}")


def try_it(model: Path, directory: Path, *, clients: int, seconds: float) -> None:
    tagger = tagger_of_the_project(model)
    with running(directory, model, LOG_LEVEL="warning") as service:
        service.wait_until_up()
        assert service.call("/predict", shapes.predict([shapes.task(1, "warm")]))[0] == 200
        with Store(f"sqlite:///{directory / 'served.db'}") as store:
            load(service, store, tagger, clients=clients, seconds=seconds)
        assert service.stop() == 0
        assert service.log.read_text() == ""


@pytest.mark.e2e
@pytest.mark.slow
def test_many_clients_and_a_refit(served_model: Path, tmp_path: Path) -> None:
    try_it(served_model, tmp_path, clients=CLIENTS, seconds=SECONDS)
