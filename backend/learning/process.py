"""Training in a process of its own, at low priority: who waits for it tells how far it is, and may break it off."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from backend.errors import BackendError
from backend.learning.parts import Parts
from backend.learning.request import MODEL, REFUSED, RESULT, Request
from backend.tagger.errors import InvalidTraining

NICE = 10
BEAT = 2.0  # seconds between two words to whoever watches
_LAST_LINES = 2_000  # characters of what a process said before it ended
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

Tell = Callable[[str, float], None]
"""Is told every few seconds what is being done and how far it is (0 to 1); what it raises breaks training off."""


class TrainingFailed(BackendError):
    """The process that trained ended without a model."""


@dataclass(frozen=True)
class Trained:
    """A model as it came out of the process: what is said about it, and the directory it lies in."""

    name: str
    hash: str
    classes: tuple[str, ...]
    base: str
    ancestors: tuple[str, ...]
    report: dict[str, Any]
    choice_f1: float | None
    directory: Path


def train_apart(parts: Parts, directory: Path, *, name: str, start: str, tell: Tell) -> Trained:
    """Train a linear chain in a process of its own, in a directory that is there; the same parts give the same model.

    Raises:
        InvalidTraining: when there is nothing to learn from, or nothing to begin with.
        TrainingFailed: when the process ended without a model, for want of memory or disk, say.
    """
    try:
        Request(name, start, os.getpid()).write(directory, training=parts.training, choice=parts.choice)
    except OSError as error:
        raise TrainingFailed(f"expected room for the texts to train on, got {error.strerror}; free some") from None
    code, said = _run(directory, tell)
    result = _result(directory, code, said)
    return Trained(
        result["name"],
        result["hash"],
        tuple(result["classes"]),
        result["base"],
        tuple(result["ancestors"]),
        result["report"],
        result["choice_f1"],
        directory / MODEL,
    )


def _run(directory: Path, tell: Tell) -> tuple[int, str]:
    """Run the process to its end; returns its exit code and the last of what it said."""
    environment = os.environ | dict.fromkeys(_ONE_THREAD, "1")
    log = directory / "log"
    with log.open("wb") as errors:
        child = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "backend.learning.child", str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=Path(__file__).parents[2],
        )
        try:
            os.setpriority(os.PRIO_PROCESS, child.pid, NICE)
            code = _follow(child, tell)
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
    return code, log.read_text(encoding="utf-8", errors="replace")[-_LAST_LINES:]


def _follow(child: subprocess.Popen[bytes], tell: Tell) -> int:
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    assert child.stdout is not None  # noqa: S101 - it is a pipe
    reader = threading.Thread(target=_read, args=(child.stdout, lines), daemon=True)
    reader.start()
    stage, share = "starting", 0.0
    while True:
        tell(stage, share)
        try:
            line = lines.get(timeout=BEAT)
        except queue.Empty:
            continue
        if not line:
            return child.wait()
        stage, share = json.loads(line)


def _read(stream: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    for line in stream:
        if line.startswith(b"["):
            lines.put(line)
    lines.put(b"")


def _result(directory: Path, code: int, said: str) -> dict[str, Any]:
    if code in {0, REFUSED}:
        result: dict[str, Any] = json.loads((directory / RESULT).read_text(encoding="utf-8"))
        if code == REFUSED:
            raise InvalidTraining(str(result["refused"]))
        return result
    ended = f"signal {-code}" if code < 0 else f"exit code {code}"
    reason = said.strip().splitlines()[-1:] or ["it said nothing"]
    raise TrainingFailed(f"expected a trained model, got {ended} from the process that trained it: {reason[0]}")
