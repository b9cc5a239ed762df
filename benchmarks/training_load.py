"""What predictions and deliveries feel of a training in the background.

    python benchmarks/training_load.py [--labels 1000] [--rounds 60] [--postgresql]

Starts `surespan serve` on SQLite with the worker inside, or on PostgreSQL with two workers beside it.
A project with label names of its own gets its labels and is asked to learn from them. Before, and while the process
that trains runs, another project asks for a prediction of a new task and delivers a label of it, in turn. Prints p50,
p99 and the worst of both, and the ratios of the second time to the first. Aims: no delivery takes a second, which is
as long as Label Studio waits for one.
The texts are made up: it needs no data.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from store import database

ROOT = Path(__file__).parents[1]
STAMP = "2026-11-02T09:00:00.000000Z"
QUIET, LEARNING = 1, 2
SYLLABLES = ["ba", "ko", "li", "mu", "re", "ta", "vi", "zo"]
PAUSE = 0.1  # seconds between two rounds: people, not a flood
QUIET_NAMES, OWN_NAMES = ("PER", "LOC"), ("Drug", "Symptom")


def config_of(names: tuple[str, ...]) -> str:
    """Return a label config with these labels."""
    labels = "".join(f'<Label value="{name}"/>' for name in names)
    return f'<View><Labels name="label" toName="text">{labels}</Labels><Text name="text" value="$text"/></View>'


def made_up(rng: np.random.Generator) -> tuple[str, list[tuple[int, int, str]]]:
    """Return a text of four sentences with the drugs and symptoms in it."""
    text, spans = "", []
    for _ in range(4):
        drug, symptom = ("".join(rng.choice(SYLLABLES, 3)) for _ in range(2))
        for word, label in (
            [("The patient took", ""), (f"{drug}mol", "Drug"), ("every day .", "")],
            [(f"{drug.capitalize()}zine", "Drug"), ("caused", ""), (symptom, "Symptom"), ("in some of them .", "")],
            [("Nothing was seen after the", ""), (symptom, ""), ("that came first .", "")],
        )[int(rng.integers(3))]:
            start = len(text) + bool(text)
            text = f"{text} {word}" if text else word
            if label:
                spans.append((start, start + len(word), label))
    return text, spans


def event(number: int, text: str, spans: list[tuple[int, int, str]], *, project: int) -> dict[str, Any]:
    """Return a webhook about an annotation of the task of this number."""
    result = [
        {"id": f"r{start}", "from_name": "label", "to_name": "text", "type": "labels"}
        | {"value": {"start": start, "end": end, "text": text[start:end], "labels": [label]}}
        for start, end, label in spans
    ]
    config = config_of(OWN_NAMES if project == LEARNING else QUIET_NAMES)
    return {
        "action": "ANNOTATION_CREATED",
        "annotation": {"id": number, "task": number, "result": result, "created_at": STAMP, "updated_at": STAMP}
        | {"was_cancelled": False, "ground_truth": False, "completed_by": 1},
        "task": {"id": number, "data": {"text": text}, "created_at": STAMP},
        "project": {"id": project, "title": "bench", "label_config": config, "sampling": "Uniform sampling"}
        | {"created_at": STAMP, "updated_at": STAMP},
    }


class Service:
    """`surespan serve`, called as Label Studio does: each time on a connection of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._number = 0

    def call(self, path: str, body: object = None, *, method: str | None = None) -> Any:  # noqa: ANN401 - any JSON
        """Call a route."""
        sent = None if body is None else json.dumps(body)
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)) as connection:
            connection.request(
                method or ("GET" if sent is None else "POST"), path, sent, {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            read = answer.read()
        if answer.status != http.client.OK:
            raise RuntimeError(f"{path}: {answer.status} {read[:300]!r}")
        return json.loads(read)

    def wait_until_ready(self) -> None:
        """Wait until the model is loaded."""
        while True:
            try:
                if self.call("/health")["model"] == "ready":
                    return
            except OSError:
                pass
            time.sleep(0.1)

    def measure(self, *, rounds: int, go_on: Callable[[], bool] = lambda: True) -> tuple[list[float], list[float]]:
        """Return the seconds of predictions and of deliveries, of as many rounds or until told to end."""
        predictions, deliveries = [], []
        while len(predictions) < rounds and go_on():
            self._number += 1
            text = (
                f"Alice Braun met Jordan in Paris, and then they went to the river. It was the {self._number}th time."
            )
            task = {"id": self._number, "data": {"text": text}}
            asked = {"project": f"{QUIET}.1", "label_config": config_of(QUIET_NAMES), "tasks": [task]}
            begun = time.perf_counter()
            self.call("/predict", asked)
            predictions.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            self.call("/webhook", event(self._number, text, [(0, 11, "PER")], project=QUIET))
            deliveries.append(time.perf_counter() - begun)
            time.sleep(PAUSE)
        return predictions, deliveries

    def learning(self, project: str) -> dict[str, Any]:
        """Return what is said about the models of a project."""
        return dict(self.call(f"/api/v1/projects/{project}/models"))


def report(what: str, quiet: list[float], busy: list[float]) -> None:
    """Print a row for one route."""
    figures = [[1000 * float(f) for f in (*np.percentile(each, [50, 99]), max(each))] for each in (quiet, busy)]
    alone = " | ".join(f"{each:.0f}" for each in figures[0])
    beside = " | ".join(f"{each:.0f}" for each in figures[1])
    ratios = " | ".join(f"{b / a:.2f}" for a, b in zip(*figures, strict=True))
    print(f"| {what} | {len(quiet)} | {alone} | {len(busy)} | {beside} | {ratios} |", flush=True)


def run(service: Service, *, labels: int, rounds: int) -> None:
    """Deliver the labels to learn from, measure alone, ask for a training, measure beside it."""
    rng = np.random.default_rng(7)
    for number in range(1, labels + 1):
        text, spans = made_up(rng)
        service.call("/webhook", event(10_000 + number, text, spans, project=LEARNING))
    project = str(LEARNING)
    while service.learning(project)["learning"]["labels"] < labels:
        service.measure(rounds=1)
    service.measure(rounds=20)  # nothing is measured cold
    quiet = service.measure(rounds=rounds)
    asked = service.call(f"/api/v1/projects/{project}/train", method="POST")["job"]

    def state() -> str:
        training = service.learning(project)["learning"]["training"]
        return "done" if training is None or training["job"] != asked else str(training["state"])

    while state() == "queued":
        time.sleep(0.05)
    begun = time.perf_counter()
    busy = service.measure(rounds=10 * rounds, go_on=lambda: state() == "running")
    seconds = time.perf_counter() - begun
    serving = service.learning(project)["serving"]
    print(f"{labels:,} labels; a training of {seconds:.0f} s, its model {'serves' if serving else 'DOES NOT SERVE'}")
    head = ["", "alone: times", "p50 ms", "p99", "worst", "beside: times", "p50 ms", "p99", "worst"]
    print("| " + " | ".join([*head, "ratio of p50", "of p99", "of worst"]) + " |\n" + "|---" * 12 + "|")
    report("/predict", quiet[0], busy[0])
    report("/webhook", quiet[1], busy[1])
    print(f"deliveries beside the training that took a second or more: {sum(each >= 1.0 for each in busy[1])}")


def main() -> None:
    """Start the service and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--postgresql", action="store_true", help="on PostgreSQL, with two workers")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with database("postgresql" if options.postgresql else "sqlite") as url:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SURESPAN_", "BASIC_AUTH_"))}
        environment = kept | {
            "SURESPAN_DATABASE_URL": url,
            "SURESPAN_LEARN": "manual",  # one training, when it is asked for
            "LOG_LEVEL": "error",
            "PYTHONPATH": str(ROOT),
        }
        commands = [["serve", "--port", str(port)]]
        if options.postgresql:
            subprocess.run([sys.executable, "-m", "backend", "db", "upgrade"], env=environment, check=True)
            commands += [["worker"], ["worker"]]
        processes = [subprocess.Popen([sys.executable, "-m", "backend", *each], env=environment) for each in commands]
        try:
            service = Service(port)
            service.wait_until_ready()
            run(service, labels=options.labels, rounds=options.rounds)
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait(120)


if __name__ == "__main__":
    main()
