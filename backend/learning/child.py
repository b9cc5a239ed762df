"""The process that trains: reads a request from a directory, writes a model there, says on its output how far it is.

It knows no database, so whatever happens to it leaves nothing half done; and it ends with the process that started it.

    python -m backend.learning.child DIRECTORY
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from backend.learning.request import CHOICE, MODEL, REFUSED, REQUEST, RESULT, TRAINING, read_texts
from backend.tagger.entity_f1 import entity_f1
from backend.tagger.errors import TaggerError
from backend.tagger.linear.saved import load_linear_tagger
from backend.tagger.linear.training_run import train_linear
from backend.tagger.training_data import Material

_ANY = "Any text."
_PDEATHSIG = 1  # of prctl: the signal to get when the parent ends


def train(directory: Path) -> dict[str, Any]:
    """Train what the request asks for; return what is to be said about the model.

    Raises:
        TaggerError: when there is nothing to learn from, or nothing to begin with.
    """
    request = json.loads((directory / REQUEST).read_text(encoding="utf-8"))
    texts, choice = list(read_texts(directory / TRAINING)), list(read_texts(directory / CHOICE))
    saved = train_linear(
        Material(train=texts, files=[{"name": request["name"], "labels": str(len(texts))}]),
        directory / MODEL,
        name=request["name"],
        start=request["start"],
        progress=say,
    )
    tagger = load_linear_tagger(directory / MODEL)
    tagger.potentials([_ANY])  # what cannot be served must not get as far as the registry
    report = dict(saved.training["report"])
    return {
        "name": saved.name,
        "hash": saved.hash,
        "classes": list(saved.classes),
        "base": "bundled" if saved.bundled else saved.base or "nothing",
        "ancestors": list(saved.ancestors),
        "report": report,
        "choice_f1": entity_f1(tagger, choice) if choice else None,
    }


def say(stage: str, share: float) -> None:
    """Tell the process that waits how far training is."""
    sys.stdout.write(json.dumps([stage, share]) + "\n")
    sys.stdout.flush()


def end_with_parent(parent: int) -> None:
    """End when the parent does, also when it is killed; on other systems than Linux its own end is noticed later."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        sys.exit(1)


def main(directory: Path) -> int:
    """Do a request; returns the exit code."""
    end_with_parent(int(json.loads((directory / REQUEST).read_text(encoding="utf-8"))["parent"]))
    try:
        result = train(directory)
    except TaggerError as error:
        result = {"refused": str(error)}
    (directory / RESULT).write_text(json.dumps(result), encoding="utf-8")
    return REFUSED if "refused" in result else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
