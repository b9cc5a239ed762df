"""Training in a process of its own: the model that training here would give, and every way in which it can end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from rich.console import Console

from backend.domain.records import TextSpan
from backend.learning import process
from backend.learning.parts import Parts
from backend.learning.process import TrainingFailed, train_apart
from backend.tagger.errors import InvalidTraining
from backend.tagger.linear.training_run import train_linear
from backend.tagger.loading import load_tagger
from backend.tagger.readers import LabelledText
from backend.tagger.training_data import Material
from tests.support.paths import ROOT
from tests.support.toy_texts import toy_texts
from tests.support.waiting import wait_for

pytestmark = pytest.mark.heavy

PARTS = Parts(toy_texts(40, seed=1), toy_texts(20, seed=2), {})


def test_the_process_gives_the_model_that_training_here_gives(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    trained = train_apart(PARTS, tmp_path, name="mine", start="nothing", tell=lambda *said: told.append(said))
    here = train_linear(
        Material(train=PARTS.training, files=[{"name": "mine", "labels": "40"}]),
        tmp_path / "here",
        name="mine",
        start="nothing",
        console=Console(quiet=True),
    )
    assert (trained.hash, trained.classes, trained.base) == (here.hash, ("Drug", "Symptom"), "nothing")
    assert load_tagger(trained.directory).hash == trained.hash
    assert trained.choice_f1 is not None
    assert trained.choice_f1 > 0.7
    stages = [stage for stage, _ in told]
    assert stages[0] == "starting"
    assert any(re.fullmatch(r"learning from all labels, F1 \d\.\d\d on held-out labels", stage) for stage in stages)
    assert any(stage.startswith("held-out labels, 5 of 5") for stage in stages)
    assert [share for _, share in told] == sorted(share for _, share in told)


@pytest.mark.parametrize(
    ("texts", "start", "reason"),
    [
        ([LabelledText("Nothing here.", ())], "nothing", "expected at least one labelled entity, got none"),
        ([], "nothing", "expected labelled texts, got none"),
        (
            [LabelledText("Take bakomol now", (TextSpan(5, 16, "Drug"), TextSpan(0, 12, "Symptom")))],
            "nothing",
            "it overlaps another span",
        ),
        (PARTS.training, "no/such/place", "no/such/place"),
    ],
)
def test_labels_that_teach_nothing_are_refused_with_the_reason(
    tmp_path: Path, texts: list[LabelledText], start: str, reason: str
) -> None:
    with pytest.raises(InvalidTraining, match=reason):
        train_apart(Parts(texts, [], {}), tmp_path, name="mine", start=start, tell=lambda *_: None)


@pytest.mark.parametrize(
    "texts",
    [
        [LabelledText("Take bakomol now .", (TextSpan(5, 12, "Drug"),))],  # one class, one example
        [
            LabelledText("Take bakomol now .", (TextSpan(5, 12, "Drug"),)),
            LabelledText("Take bakomol now .", (TextSpan(5, 12, "Symptom"),)),
            LabelledText("Take bakomol now .", ()),
        ],
        [
            LabelledText("Take bakomol now .", (TextSpan(5, 12, "Drug"),)),
            LabelledText("Take bakomol now .", (TextSpan(5, 12, "Drug"), TextSpan(0, 12, "Symptom"))),
        ],
        [
            LabelledText("Take bakomol now .", (TextSpan(5, 12, "Drug"),), "en"),
            LabelledText("12 %", (TextSpan(0, 2, "Drug"),), "und"),
            LabelledText("vIjatlh bakomol", (TextSpan(8, 15, "Drug"),), "tlh"),
        ],
        [LabelledText("mol " * 10_000, tuple(TextSpan(4 * i, 4 * i + 3, "Drug") for i in range(10_000)))],
    ],
    ids=["one example", "contradictions", "overlap", "languages that nobody can tell", "10,000 labels in a text"],
)
def test_odd_labels_still_give_a_model_that_loads(tmp_path: Path, texts: list[LabelledText]) -> None:
    trained = train_apart(Parts(texts, texts, {}), tmp_path, name="m", start="nothing", tell=lambda *_: None)
    (one,) = load_tagger(trained.directory).potentials(["Take bakomol now ."])
    assert one.tokens


class Stopped(Exception):
    """Who waits does not want to any more."""


def test_whoever_waits_may_break_it_off_and_nothing_is_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def start(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        child = real(*arguments, **options)  # type: ignore[call-overload]
        started.append(child)
        return child  # type: ignore[no-any-return]

    monkeypatch.setattr(process.subprocess, "Popen", start)

    def stop(*_: object) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        train_apart(PARTS, tmp_path, name="mine", start="nothing", tell=stop)
    assert started[0].poll() == -signal.SIGKILL

    def kill(*_: object) -> None:
        if started[-1].poll() is None:
            os.kill(started[-1].pid, signal.SIGKILL)

    with pytest.raises(TrainingFailed, match="got signal 9 from the process that trained it"):
        train_apart(PARTS, tmp_path, name="mine", start="nothing", tell=kill)


def test_a_full_disk_is_a_failure_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file may grow beyond a few kilobytes, in the process that trains: its model does not fit."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
    with pytest.raises(
        (TrainingFailed, InvalidTraining), match=r"expected a trained model, got exit code 1.*|No space"
    ):
        train_apart(PARTS, tmp_path, name="mine", start="nothing", tell=lambda *_: None)
    assert not (tmp_path / "model" / "model.safetensors").exists()


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        from backend.learning.parts import Parts
        from backend.learning.process import train_apart
        from tests.support.toy_texts import toy_texts

        directory = Path(sys.argv[1])
        tell = lambda stage, share: (directory / "told").write_text(stage)
        train_apart(Parts(toy_texts(20_000, seed=1), [], {}), directory, name="m", start="nothing", tell=tell)
    """)
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT)
    told = tmp_path / "told"

    def children() -> list[int]:
        listed = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text()
        return [int(each) for each in listed.split()]

    try:
        wait_for(lambda: told.exists() and children(), "the process that trains has begun", seconds=120)
        (child,) = children()
        os.kill(parent.pid, signal.SIGKILL)
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not _runs(child), "it has ended too", seconds=60)


def _runs(pid: int) -> bool:
    try:
        return "backend.learning.child" in Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
