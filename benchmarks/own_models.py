"""Eight projects, each with a model of its own, in hardly more memory than one.

    python benchmarks/own_models.py [--labels 100] [--data bc5cdr/train.tsv.gz]

Trains eight models with the bundled network's opinion, from made-up texts or from parts of a labelled file, stores them
in a database, and lets a process that holds 1, 4 or 8 of them predict for all projects in turn, three times over. Each
number of models has a process of its own. Memory is what it has beyond the base model (Pss); that of one is mostly the
network whose opinion all of them use. Aim: eight take at most 1.5 times the memory of one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from _claims import claim
from rich.console import Console
from training_load import config_of, made_up

from backend.app import create_app, service_of
from backend.calibration.promotion import add_model, promote
from backend.domain.records import TextSpan
from backend.settings import Settings, load_settings
from backend.store import Store
from backend.store.projects import ensure_project
from backend.store.schema import upgrade
from backend.tagger.linear.training_run import train_linear
from backend.tagger.readers import LabelledText, read_labelled
from backend.tagger.training_data import Material

PROJECTS = 8
ROUNDS = 3
ALLOWED = 1.5
TEXT = "The patient took Bakolimol every day ."


def names_of(number: int) -> tuple[str, str]:
    """Return the labels of a project."""
    return f"Drug{number}", f"Symptom{number}"


def texts_of(number: int, *, labels: int, data: str | None) -> list[LabelledText]:
    """Return the texts of a project, with its own names for their labels."""
    if data is None:
        rng = np.random.default_rng(number)
        texts = [LabelledText(text, tuple(TextSpan(*span) for span in spans)) for text, spans in _made_up(rng, labels)]
    else:
        texts = list(read_labelled(data).texts)[number * labels : (number + 1) * labels]
    first = min(span.label for text in texts for span in text.spans)
    drug, symptom = names_of(number)
    return [
        LabelledText(text.text, tuple(TextSpan(a, b, drug if name == first else symptom) for a, b, name in text.spans))
        for text in texts
    ]


def _made_up(rng: np.random.Generator, count: int) -> list[tuple[str, list[tuple[int, int, str]]]]:
    return [made_up(rng) for _ in range(count)]


def prepare(settings: Settings, folder: Path, *, labels: int, data: str | None) -> int:
    """Train and store the models; returns the bytes of their files."""
    size = 0
    with Store(settings.database_url) as store:
        upgrade(store)
        for number in range(PROJECTS):
            out = folder / f"trained-{number}"
            texts = texts_of(number, labels=labels, data=data)
            saved = train_linear(Material(train=texts), out, name=f"own{number}", console=Console(quiet=True))
            size += sum(file.stat().st_size for file in out.iterdir())
            with store.write() as session:
                project = ensure_project(session, f"{number + 1}.1", label_config=config_of(names_of(number)))
                add_model(
                    session, project, out, settings=settings, base="bundled", labels=labels, trained_on={}, asked_by=""
                )
                promote(session, project, saved.hash, settings=settings, who="", why="the first model")
    return size


def taken() -> float:
    """Return the MB of this process; a page that is mapped twice counts once (Pss)."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


def measure(url: str, held: int) -> dict[str, float]:
    """Predict for all projects in turn; return what the process has beyond the base model, and how many models."""
    app = create_app(load_settings(database_url=url, worker=False, models_in_memory=held))
    service = service_of(app)
    client = app.test_client()

    def predict(uid: str, labels: tuple[str, str]) -> None:
        asked = {"project": uid, "label_config": config_of(labels), "tasks": [{"id": 1, "data": {"text": TEXT}}]}
        answer = client.post("/predict", json=asked, buffered=True)
        assert answer.status_code == 200, answer.text

    try:
        service.loader.tagger(120.0)
        predict("99.1", ("PER", "LOC"))
        before, grown = taken(), []
        for _ in range(ROUNDS):
            for number in range(PROJECTS):
                predict(f"{number + 1}.1", names_of(number))
            grown.append(taken() - before)
        return {"first": grown[0], "last": grown[-1], "models": service.views.models.loaded}
    finally:
        service.close()


def main() -> None:
    """Prepare, then measure each number of models in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--data", help="a labelled file of two classes; made-up texts if left out")
    parser.add_argument("--held", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.held:
        print(json.dumps(measure(options.url, options.held)))
        return
    with tempfile.TemporaryDirectory(prefix="ssm") as folder:
        url = f"sqlite:///{folder}/models.db"
        settings = load_settings(database_url=url, worker=False)
        size = prepare(settings, Path(folder), labels=options.labels, data=options.data)
        print(f"{PROJECTS} models, {size / 2**20:.1f} MB of files")
        print("| held at once | MB after each once | MB after three rounds | models in memory |\n|---|---|---|---|")
        found = {}
        for held in (1, 4, PROJECTS):
            command = [sys.executable, __file__, "--held", str(held), "--url", url]
            found[held] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            one = found[held]
            print(f"| {held} | {one['first']:.0f} | {one['last']:.0f} | {one['models']:.0f} |", flush=True)
    ratio = found[PROJECTS]["last"] / found[1]["last"]
    claim("memory of eight models of projects", peer="of one", ratio=ratio, at_most=ALLOWED)
    print(f"eight: {ratio:.2f} times the memory of one (aim: {ALLOWED})")


if __name__ == "__main__":
    main()
