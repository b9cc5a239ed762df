"""A project that floods the service beside a quiet one: what the quiet one waits for.

    python benchmarks/flood.py [--rounds 20] [--events 100000] [--model bundled]

Starts `surespan serve` on SQLite with the worker inside. In each round the quiet project asks for a prediction of a new
task and then confirms a label of it; the seconds are those until the answer, and from the delivery until the label has
its calibration row. First alone; then beside two clients of another project that send documents of a megabyte (to be
predicted, and labelled); then documents of 20,000 characters, the longest that are predicted; then with 100,000 events
of another project in the inbox. Prints medians, the worst, and the ratio of medians to those alone. Aims: a label has
its row within a minute, a prediction takes at most twice its usual time.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from _claims import claim

from backend.store import Store
from backend.store.events import inbox_depth, store_events
from backend.store.tables import CalibrationScore, Event, Label, ScoringAttempt, Task

ROOT = Path(__file__).parents[1]
CONFIG = (
    '<View><Labels name="label" toName="text"><Label value="PER"/><Label value="LOC"/><Label value="ORG"/></Labels>'
    '<Text name="text" value="$text"/></View>'
)
STAMP = "2026-11-02T09:00:00.000000Z"
QUIET, LOUD = 1, 2
SENTENCE = "Alice Braun met Jordan in Paris, and then they went to the river. "
FLOOD = 10_000_000  # where the task numbers of the loud project begin


def event(number: int, text: str, *, project: int) -> dict[str, Any]:
    """Return a webhook about an annotation of the task of this number."""
    value = {"start": 0, "end": 11, "text": text[:11], "labels": ["PER"]}
    result = [{"id": "r", "from_name": "label", "to_name": "text", "type": "labels", "value": value}]
    return {
        "action": "ANNOTATION_CREATED",
        "annotation": {"id": number, "task": number, "result": result, "created_at": STAMP, "updated_at": STAMP}
        | {"was_cancelled": False, "ground_truth": False, "completed_by": 1},
        "task": {"id": number, "data": {"text": text}, "created_at": STAMP},
        "project": {"id": project, "title": "bench", "label_config": CONFIG, "sampling": "Uniform sampling"}
        | {"created_at": STAMP, "updated_at": STAMP},
    }


def question(number: int, text: str, *, project: int) -> dict[str, Any]:
    """Return what /predict is asked about one task."""
    return {"project": f"{project}.1", "label_config": CONFIG, "tasks": [{"id": number, "data": {"text": text}}]}


def call(port: int, path: str, body: object = None) -> Any:  # noqa: ANN401 - whatever JSON the route answers with
    """Call a route, each time on a connection of its own, as Label Studio does."""
    sent = None if body is None else json.dumps(body)
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=600)) as connection:
        connection.request("GET" if sent is None else "POST", path, sent, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        read = answer.read()
    if answer.status != http.client.OK:
        raise RuntimeError(f"{path}: {answer.status} {read[:300]!r}")
    return json.loads(read)


class Quiet:
    """The quiet project: asks for a prediction, confirms a label, waits for its row."""

    def __init__(self, port: int, store: Store) -> None:
        self._port, self._store = port, store
        self._number = 0
        self._usual: tuple[float, float] | None = None

    def run(self, what: str, rounds: int) -> None:
        """Print what the rounds took, with the ratios to the first time this was called."""
        answered, scored = zip(*(self.round() for _ in range(rounds)), strict=True)
        medians = statistics.median(answered), statistics.median(scored)
        if self._usual is not None and what.startswith("beside"):
            claim(f"a prediction {what}", peer="alone", ratio=medians[0] / self._usual[0], at_most=2)
            claim(f"a label's row {what}, the worst", peer="a minute", ratio=max(scored) / 60, at_most=1)
        usual = self._usual = self._usual or medians
        with self._store.read() as session:
            waiting = inbox_depth(session)["pending"]
        print(
            f"{what:<38}{1000 * medians[0]:>8.0f} ms{medians[0] / usual[0]:>6.2f}x{1000 * max(answered):>9.0f} ms"
            f"{medians[1]:>9.2f} s{max(scored):>8.2f} s{waiting:>9,}",
            flush=True,
        )

    def round(self) -> tuple[float, float]:
        """Return the seconds until the prediction was there, and from a label's delivery until it had its row."""
        self._number += 1
        text = f"{SENTENCE}It was the {self._number}th time."
        begun = time.perf_counter()
        call(self._port, "/predict", question(self._number, text, project=QUIET))
        answered = time.perf_counter() - begun
        begun = time.perf_counter()
        call(self._port, "/webhook", event(self._number, text, project=QUIET))
        while not self._has_row():
            time.sleep(0.02)
        return answered, time.perf_counter() - begun

    def _has_row(self) -> bool:
        rows = sa.select(CalibrationScore.id).join(Task, Task.id == CalibrationScore.task_id)
        with self._store.read() as session:
            return session.execute(rows.where(Task.external_id == str(self._number)).limit(1)).first() is not None


def send_documents(port: int, characters: int, *, labelled: bool, sent: Any, over: Any) -> None:  # noqa: ANN401
    """Send documents of this length until told to stop, to be predicted without a pause or labelled once a second."""
    number = FLOOD * (2 if labelled else 3) + characters
    long = (SENTENCE * (characters // len(SENTENCE) + 1))[: characters - 10]
    while not over.is_set():
        text = f"{long}{number:010}"
        if labelled:
            call(port, "/webhook", event(number, text, project=LOUD))
            over.wait(1.0)
        else:
            call(port, "/predict", question(number, text, project=LOUD))
        number += 1
        sent.value += 1


@contextmanager
def documents(port: int, characters: int) -> Iterator[list[Any]]:
    """Flood the service with documents from two processes until leaving; lends how many were predicted and labelled."""
    spawn = multiprocessing.get_context("spawn")  # of their own, so that they do not delay the one that measures
    over = spawn.Event()
    sent = [spawn.Value("i", 0), spawn.Value("i", 0)]
    clients = [
        spawn.Process(
            target=send_documents, args=(port, characters), kwargs={"labelled": bool(i), "sent": sent[i], "over": over}
        )
        for i in range(2)
    ]
    for client in clients:
        client.start()
    try:
        while not all(count.value for count in sent):
            time.sleep(0.1)
        yield sent
    finally:
        over.set()
        for client in clients:
            client.join()


def wait_until_ready(port: int) -> None:
    """Wait until the model is loaded."""
    while True:
        try:
            if call(port, "/health")["model"] == "ready":
                return
        except OSError:
            pass
        time.sleep(0.1)


def drain(store: Store, seconds: float) -> None:
    """Wait until every label has its row or is set aside, but not for ever."""
    counts = [
        sa.select(sa.func.count()).select_from(Event).where(Event.state == "pending").scalar_subquery(),
        sa.select(sa.func.count()).select_from(Label).scalar_subquery(),
        sa.select(sa.func.count()).select_from(CalibrationScore).scalar_subquery(),
        sa.select(sa.func.count()).where(ScoringAttempt.set_aside_at.is_not(None)).scalar_subquery(),
    ]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with store.read() as session:
            waiting, labels, rows, aside = session.execute(sa.select(*counts)).one()
        if not waiting and labels <= rows + aside:
            return
        time.sleep(0.5)


def measure(port: int, store: Store, *, rounds: int, events: int) -> None:
    """Run the quiet project alone and beside each flood."""
    quiet = Quiet(port, store)
    for _ in range(5):
        quiet.round()
    print(f"{'the quiet project':<38}{'prediction':>11}{'ratio':>7}{'worst':>12}{'row':>11}{'worst':>10}{'waiting':>9}")
    quiet.run("alone", rounds)
    for characters in (1_000_000, 20_000):
        with documents(port, characters) as sent:
            quiet.run(f"beside documents of {characters:,} char.", rounds)
        print(f"  meanwhile {sent[0].value} of them were asked about and {sent[1].value} labelled")
        drain(store, 180.0)
    quiet.run("alone again", rounds)
    begun = time.perf_counter()
    for first in range(0, events, 1_000):
        numbers = range(FLOOD + first, FLOOD + min(first + 1_000, events))
        store_events(store, [event(number, f"{SENTENCE}No. {number}.", project=LOUD) for number in numbers])
    print(f"  {events:,} events of the loud project were stored in {time.perf_counter() - begun:.0f} s")
    quiet.run(f"beside {events:,} events", rounds)


def main() -> None:
    """Start the service and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--model", default="")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="ssf") as directory:
        url = f"sqlite:///{directory}/flood.db"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SURESPAN_", "BASIC_AUTH_"))}
        environment = kept | {
            "SURESPAN_DATABASE_URL": url,
            "SURESPAN_REFIT_EVERY_LABELS": "1000000",
            "LOG_LEVEL": "error",
            "PYTHONPATH": str(ROOT),
        }
        if options.model:
            environment["SURESPAN_MODEL"] = options.model
        server = subprocess.Popen([sys.executable, "-m", "backend", "serve", "--port", str(port)], env=environment)
        try:
            wait_until_ready(port)
            with Store(url) as store:
                measure(port, store, rounds=options.rounds, events=options.events)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(120)


if __name__ == "__main__":
    main()
