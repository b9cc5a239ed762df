"""Tasks per second of /predict by batch size and concurrency, where the time goes, and peak memory.

    python benchmarks/service.py [--seconds 8] [--model bundled] [--threads 32]

Starts `surespan serve` on SQLite and a free loopback port and calls it over real HTTP with texts that are new each
time, so that nothing comes from the cache; the last line of the table asks the same texts again. Speeds are given as
ratios to one client with batches of one task. Stages are the service's own clock (`/metrics`): tagging (tokens,
language, network), decoding (k-best and marginals), sets, rendering (with packing of the ranked list), storing (an
answer waits for its record). Peak memory is that of the serving process.
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
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil

ROOT = Path(__file__).parents[1]
CONFIG = """<View><Labels name="label" toName="text"><Label value="PER"/><Label value="ORG"/>
<Label value="LOC"/></Labels>
<Labels name="flag" toName="text"><Label value="Needs review"/></Labels><Text name="text" value="$text"/></View>"""
NAMES = ["Anna Berg", "Luc Morel", "Giulia Conti", "Иван Волков", "Northgate Ltd", "Editorial Faro", "Gdańsk", "Lima"]
WORDS = (
    "the a of and in with year town river met moved opened der die das und mit Jahr Stadt traf zog la el los en con "
    "año ciudad le les avec ville il città nel anno de het een stad jaar w z rok miasto o cidade ano com город год река"
)
VOCABULARY = WORDS.split(" ")
CASES = [(1, 1), (1, 8), (10, 1), (10, 4), (50, 4), (300, 1), (300, 4), (3000, 1)]


class Load:
    """Clients that send batches of new texts until the time is over."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.next = 0
        self.kept: list[tuple[int, str]] = []
        self.lock = threading.Lock()

    def texts(self, count: int) -> list[tuple[int, str]]:
        with self.lock:
            first, self.next = self.next, self.next + count
        made = []
        for number in range(first, first + count):
            rng = np.random.default_rng(number)
            words = [
                NAMES[int(rng.integers(len(NAMES)))]
                if rng.random() < 0.14
                else VOCABULARY[int(rng.integers(len(VOCABULARY)))]
                for _ in range(int(rng.integers(8, 41)))
            ]
            made.append((number, " ".join(words).capitalize() + "."))
        return made

    def run(self, batch: int, clients: int, seconds: float, *, again: int | None = None) -> tuple[int, float]:
        """Return tasks answered and the seconds that took."""
        answered = [0] * clients
        deadline = time.perf_counter() + seconds

        def client(place: int) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
            while time.perf_counter() < deadline:
                texts = self.texts(batch) if again is None else [(again + i, t) for i, (_, t) in enumerate(self.kept)]
                tasks = [{"id": number, "data": {"text": text}} for number, text in texts]
                body = json.dumps({"project": "1.1", "label_config": CONFIG, "tasks": tasks})
                connection.request("POST", "/predict", body)
                results = json.loads(connection.getresponse().read())["results"]
                assert len(results) == len(tasks)
                answered[place] += len(tasks)
            connection.close()

        begun = time.perf_counter()
        threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(answered), time.perf_counter() - begun


def ask(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


def stages(port: int) -> dict[str, float]:
    """Seconds by stage so far."""
    found = {}
    for line in ask(port, "/metrics").splitlines():
        if line.startswith("surespan_predict_stage_seconds_total{"):
            found[line.split('"')[1]] = float(line.rsplit(" ", 1)[1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=8.0, help="for each line of the table")
    parser.add_argument("--model", default="")
    parser.add_argument("--threads", default="32")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        environment = os.environ | {
            "SURESPAN_DATABASE_URL": f"sqlite:///{directory}/bench.db",
            "SURESPAN_MODEL": options.model,
            "THREADS": options.threads,
            "LOG_LEVEL": "warning",
            "PYTHONPATH": str(ROOT),
        }
        if not options.model:
            del environment["SURESPAN_MODEL"]
        server = subprocess.Popen([sys.executable, "-m", "backend", "serve", "--port", str(port)], env=environment)
        try:
            measure(server, port, options.seconds)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(120)


def measure(server: subprocess.Popen[bytes], port: int, seconds: float) -> None:
    begun = time.perf_counter()
    up = None
    while True:
        try:
            state = json.loads(ask(port, "/health"))["model"]
        except OSError:
            time.sleep(0.02)
            continue
        up = up or time.perf_counter() - begun
        if state == "ready":
            break
        time.sleep(0.02)
    ready = time.perf_counter() - begun
    print(f"/health answered after {up:.2f} s, the model was ready after {ready:.2f} s")
    worker = psutil.Process(server.pid).children()[0]
    peak = [worker.memory_info().rss]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            peak[0] = max(peak[0], worker.memory_info().rss)

    threading.Thread(target=watch, daemon=True).start()
    print(f"resident memory with the model loaded: {peak[0] / 1e6:.0f} MB")
    load = Load(port)
    load.run(1, 1, 1.0)
    first = None
    print(f"{'batch':>6}{'clients':>9}{'tasks/s':>10}{'ratio':>8}   share of the answer's time by stage")
    for batch, clients in CASES:
        before = stages(port)
        count, took = load.run(batch, clients, seconds)
        spent = {name: value - before.get(name, 0.0) for name, value in stages(port).items()}
        first = first or count / took
        show(str(batch), clients, count / took, first, spent)
    load.kept = load.texts(300)
    load.run(300, 1, 0.01, again=load.kept[0][0])
    before = stages(port)
    count, took = load.run(300, 1, seconds / 2, again=load.kept[0][0])
    spent = {name: value - before.get(name, 0.0) for name, value in stages(port).items()}
    show("300*", 1, count / took, first or 1.0, spent)
    over.set()
    print("* the same 300 tasks again and again, from the cache")
    print(f"peak resident memory: {peak[0] / 1e6:.0f} MB")


def show(batch: str, clients: int, speed: float, first: float, spent: dict[str, float]) -> None:
    total = sum(spent.values()) or 1.0
    shares = "  ".join(f"{name} {100 * spent.get(name, 0.0) / total:3.0f} %" for name in
                       ("tagging", "decoding", "sets", "rendering", "storing"))  # fmt: skip
    print(f"{batch:>6}{clients:>9}{speed:>10.1f}{speed / first:>7.1f}x   {shares}")


if __name__ == "__main__":
    main()
