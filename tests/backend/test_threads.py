"""A process computes in one thread, whatever libraries are loaded, and settings about threads do what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformal.trellis.batches import usual_threads
from tests.support.paths import ROOT

_VARIABLES = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY", "SURESPAN_TORCH_THREADS"}

# What threads spent is read from the kernel: (comm) ends the name of a thread, user and system ticks are 12 and 13 on.
_SCRIPT = """
import json, time
from pathlib import Path

import backend
from backend.settings import load_settings
from backend.tagger.configured import load_configured
import conformal, numpy, torch, transformers, tokenizers

def spent():
    threads = {}
    for stat in Path("/proc/self/task").glob("*/stat"):
        fields = stat.read_text().rpartition(")")[2].split()
        threads[stat.parent.name] = int(fields[11]) + int(fields[12])
    return threads

tagger = load_configured(load_settings())
texts = [f"Anna Nowak met Bob Stone number {i} in Rome, then went home to Berlin." for i in range(256)]
conformal.kbest([one.potentials for one in tagger.potentials(texts[:8])], 5)
before, begun, used = spent(), time.monotonic(), time.process_time()
for _ in range(4):
    conformal.kbest([one.potentials for one in tagger.potentials(texts)], 5)
    a = numpy.ones((300, 300))
    a @ a
elapsed, processor, after = time.monotonic() - begun, time.process_time() - used, spent()
ticks = sorted((after[name] - before.get(name, 0) for name in after), reverse=True)
print(json.dumps({"ticks": ticks, "elapsed": elapsed, "processor": processor, "torch": torch.get_num_threads()}))
"""


@contextmanager
def _neighbours() -> Iterator[None]:
    """Keep every core busy with something else."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL)
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()


def _predict(tmp_path: Path, **variables: str) -> dict[str, object]:
    kept = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env=kept | {"PYTHONPATH": str(ROOT)} | variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    said: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted by what Linux says of them")
def test_one_thread_computes_beside_a_busy_neighbour(tmp_path: Path) -> None:
    with _neighbours():
        said = _predict(tmp_path)
    ticks = said["ticks"]
    assert isinstance(ticks, list)
    assert said["torch"] == 1
    assert sum(ticks[1:]) <= 0.05 * ticks[0] + 2
    # One thread cannot spend more than what passes; threads that spin beside it do.
    assert float(str(said["processor"])) <= 1.02 * float(str(said["elapsed"])) + 0.05


@pytest.mark.heavy
@pytest.mark.parametrize("variable", ["SURESPAN_TORCH_THREADS", "OMP_NUM_THREADS"])
def test_who_asks_for_threads_gets_them(tmp_path: Path, variable: str) -> None:
    assert _predict(tmp_path, **{variable: "2"})["torch"] == 2


@pytest.mark.parametrize(("said", "expected"), [("3", 3), ("0", None), ("many", None), ("", None)])
def test_the_library_goes_by_what_numerical_libraries_go_by(
    monkeypatch: pytest.MonkeyPatch, said: str, expected: int | None
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert usual_threads() == (expected or os.cpu_count())
