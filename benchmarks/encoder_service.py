"""/predict with a BERT-base-size checkpoint: Surespan against a plain Hugging Face backend, same weights and tasks.

    python benchmarks/encoder_service.py [--tasks 500] [--batch 50] [--layers 12] [--width 768]
        [--peer-url http://127.0.0.1:9091 --peer-pid 4711]

The peer is whatever serves the same contract: name a running one (label-studio-ml-backend's huggingface_ner example,
say, started beside with the checkpoint this prints under --keep), or without that, a stand-in of a few lines that
makes the calls such an example makes: `pipeline("ner")` on the texts as they come, spans from runs of equal labels.
Requests alternate between the two, so that a busy machine slows both. Ratios are of elapsed time and of the processor
time of the serving processes. Surespan also makes sets: its checkpoint gets a starter calibration first. The share of
decoding and sets in its own clock (/metrics) is the price of that over plain tagging.
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
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
from _claims import claim
from encoder import LABELS, make_checkpoint, make_texts

ROOT = Path(__file__).parents[1]
OPTIONS = "".join(f'<Label value="{name}"/>' for name in ("PER", "ORG", "LOC", "MISC"))
CONFIG = f'<View><Labels name="label" toName="text">{OPTIONS}</Labels><Text name="text" value="$text"/></View>'


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stand_in(folder: str, port: int) -> None:
    """Serve the calls a plain backend makes."""
    from flask import Flask, request
    from transformers import pipeline

    app = Flask("stand-in")
    ner = pipeline("ner", model=folder, device="cpu")

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "UP"}

    @app.post("/predict")
    def predict() -> dict[str, Any]:
        found = ner([task["data"]["text"] for task in request.get_json(force=True)["tasks"]])
        answers = []
        for pieces in found:
            spans = []
            for label, run in groupby(pieces, key=lambda piece: piece["entity"].split("-")[-1]):
                parts = list(run)
                value = {"start": parts[0]["start"], "end": parts[-1]["end"], "labels": [label]}
                score = float(np.mean([part["score"] for part in parts]))
                spans.append(
                    {"from_name": "label", "to_name": "text", "type": "labels", "value": value, "score": score}
                )
            answers.append({"result": spans, "score": float(np.mean([s["score"] for s in spans] or [0.0]))})
        return {"results": answers}

    app.run("127.0.0.1", port, threaded=True)


def calibrate(folder: Path) -> None:
    """Put a starter calibration beside the checkpoint: its own best labelings, one in ten spoilt, as the truth."""
    from backend.prediction.make_starter import make_starter
    from backend.prediction.starter import save_starter
    from backend.tagger.loading import load_tagger
    from conformal.trellis.kbest import kbest

    tagger = load_tagger(folder)
    rng = np.random.default_rng(9)
    texts = make_texts(160, rng, longest=40)
    lines = []
    for tagged in tagger.potentials(texts, languages=["en"] * len(texts)):
        labels = kbest(tagged.potentials, 2).labels
        chosen = tagger.space.decode(labels[1 if rng.random() < 0.1 and len(labels) > 1 else 0])
        words = [tagged.text[start:end] for start, end in tagged.tokens]
        lines.append("".join(f"{word}\t{label}\n" for word, label in zip(words, chosen, strict=True)))
    path = folder / "starter.conll"
    path.write_text("\n".join(lines), encoding="utf-8")
    save_starter(make_starter(tagger, [path], per_file=1_000, seed=0, about="made up"), folder)


class Side:
    """A serving process under load: its address, its processes, its clock and its memory."""

    def __init__(self, name: str, url: str, pid: int) -> None:
        self.name, self.place = name, urlsplit(url)
        self._root = psutil.Process(pid)
        self.wall = self.cpu = 0.0
        self.peak = 0
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _processes(self) -> Iterator[psutil.Process]:
        yield from (self._root, *self._root.children(recursive=True))

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            try:
                self.peak = max(self.peak, sum(each.memory_info().rss for each in self._processes()))
            except psutil.Error:
                continue

    def _used(self) -> float:
        return sum(sum(each.cpu_times()[:2]) for each in self._processes())

    def ask(self, method: str, path: str, body: str | None = None) -> bytes:
        connection = http.client.HTTPConnection(self.place.hostname or "", self.place.port, timeout=3600)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{self.name} answered {answer.status}: {content[:200]!r}")
        return content

    def wait(self) -> None:
        for _ in range(3_000):
            try:
                found = json.loads(self.ask("GET", "/health"))
                if found.get("model", "ready") == "ready":
                    return
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.2)
        raise SystemExit(f"{self.name} did not come up")

    def predict(self, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        body = json.dumps({"project": "1.1", "label_config": CONFIG, "tasks": tasks})
        wall, cpu = time.perf_counter(), self._used()
        results: list[dict[str, Any]] = json.loads(self.ask("POST", "/predict", body))["results"]
        self.wall += time.perf_counter() - wall
        self.cpu += self._used() - cpu
        return results

    def close(self) -> None:
        self._over.set()


@contextmanager
def started(command: list[str], environment: dict[str, str]) -> Iterator[int]:
    server = subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(120)


def stages(side: Side) -> dict[str, float]:
    found = {}
    for line in side.ask("GET", "/metrics").decode().splitlines():
        if line.startswith("surespan_predict_stage_seconds_total{"):
            found[line.split('"')[1]] = float(line.rsplit(" ", 1)[1])
    return found


def measure(ours: Side, peer: Side, tasks: int, batch: int) -> None:
    texts = make_texts(tasks + 16, np.random.default_rng(5))
    made = [{"id": i, "data": {"text": text, "language": "en"}} for i, text in enumerate(texts)]
    for side in (ours, peer):
        side.wait()
        side.predict(made[tasks:])
        side.wall = side.cpu = 0.0
    before = stages(ours)
    labelings = answered = 0
    for first in range(0, tasks, batch):
        part = made[first : min(tasks, first + batch)]
        found = ours.predict(part)
        labelings += sum(len(ranked) if isinstance(ranked, list) else 1 for ranked in found)
        answered += len(peer.predict(part))
        print(f"{first + len(part)} of {tasks} tasks", flush=True)
    spent = {name: value - before.get(name, 0.0) for name, value in stages(ours).items()}
    for side in (ours, peer):
        print(
            f"{side.name:34} {tasks / side.wall:7.2f} tasks/s, {side.cpu:7.1f} s of processor, "
            f"peak memory {side.peak / 1e6:6.0f} MB"
        )
    print(
        f"surespan / peer: {peer.wall / ours.wall:.2f}x elapsed, {peer.cpu / ours.cpu:.2f}x processor (target 1.5x), "
        f"memory {ours.peak / peer.peak:.2f}x; {labelings} ranked labelings with sets for {tasks} tasks, "
        f"{answered} answers of the peer"
    )
    claim("the service with an encoder, processor", peer=peer.name, ratio=peer.cpu / ours.cpu, at_least=1.5)
    share = (spent.get("decoding", 0.0) + spent.get("sets", 0.0)) / max(spent.get("tagging", 0.0), 1e-9)
    print(
        "stages: "
        + ", ".join(f"{name} {value:.2f} s" for name, value in spent.items())
        + f"; decoding and sets are {100 * share:.2f} % of tagging (target: at most 5 %)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--threads", default="1", help="CPU threads of either side")
    parser.add_argument("--peer-url", default="", help="a running backend with the same checkpoint")
    parser.add_argument("--peer-pid", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep the checkpoint here, or use the one that lies here")
    parser.add_argument("--only-make", action="store_true", help="make the checkpoint in --folder and stop")
    parser.add_argument("--stand-in", nargs=2, metavar=("FOLDER", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stand_in:
        import torch

        torch.set_num_threads(int(options.threads))
        stand_in(options.stand_in[0], int(options.stand_in[1]))
        return
    with tempfile.TemporaryDirectory() as directory:
        folder = options.folder or Path(directory) / "base"
        if not (folder / "config.json").exists():
            make_checkpoint(folder, layers=options.layers, width=options.width)
            calibrate(folder)
        if options.only_make:
            return
        print(f"checkpoint of {len(LABELS)} labels, {options.tasks} tasks in batches of {options.batch}", flush=True)
        port, other = free_port(), free_port()
        threads = {"OMP_NUM_THREADS": options.threads, "MKL_NUM_THREADS": options.threads, "PYTHONPATH": str(ROOT)}
        environment = {
            **threads,
            "SURESPAN_DATABASE_URL": f"sqlite:///{directory}/bench.db",
            "SURESPAN_MODEL": str(folder),
            "SURESPAN_TORCH_THREADS": options.threads,
            "SURESPAN_MODEL_WAIT": "600",
            "LOG_LEVEL": "error",
        }
        serve = [sys.executable, "-m", "backend", "serve", "--port", str(port)]
        plain = [sys.executable, __file__, "--threads", options.threads, "--stand-in", str(folder), str(other)]
        with started(serve, environment) as pid:
            ours = Side("surespan (sets and all)", f"http://127.0.0.1:{port}", pid)
            if options.peer_url:
                measure(ours, Side("peer", options.peer_url, options.peer_pid), options.tasks, options.batch)
                return
            with started(plain, threads) as peer_pid:
                peer = Side("stand-in: pipeline as it comes", f"http://127.0.0.1:{other}", peer_pid)
                measure(ours, peer, options.tasks, options.batch)


if __name__ == "__main__":
    main()
