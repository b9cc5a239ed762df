"""The demonstration's parts that need no server: its texts, its notes, its processes, its refusals."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from backend.cli import main
from backend.demo import guard
from backend.demo.errors import DemoError
from backend.demo.install import LABEL_STUDIO_VERSION, empty_database, install_label_studio, label_studio_command
from backend.demo.processes import Child, free_port, is_free
from backend.demo.sample import KITCHEN, NAMES, sample_texts
from backend.demo.service import service_variables
from backend.demo.state import load_state, save_state, sole_use
from backend.demo.variables import Account, label_studio_variables
from backend.labelstudio.config import parse_config
from tests.support.waiting import wait_for


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_texts_are_in_nine_languages_and_of_many_lengths() -> None:
    texts = sample_texts()
    assert 90 <= len(texts) <= 120
    languages = Counter(each["language"] for each in texts)
    assert set(languages) == {"de", "en", "es", "fr", "it", "nl", "pl", "pt", "ru"}
    assert min(languages.values()) >= 10
    lengths = {min(len(each["text"].split()) // 10, 4) for each in texts}
    assert lengths == {0, 1, 2, 3, 4}
    assert len({each["text"] for each in texts}) == len(texts)
    assert any(ord(char) > 0xFFFF for each in texts for char in each["text"]), "some have emoji"


def test_the_label_config_takes_every_class_of_the_bundled_model() -> None:
    target = parse_config(NAMES.label_config).target(("LOC", "MISC", "ORG", "PER"))
    assert set(target.labels) == {"LOC", "MISC", "ORG", "PER"}
    assert target.flag is None  # connecting adds it, and shows how


def test_the_second_project_has_labels_that_no_model_knows_and_varied_texts() -> None:
    target = parse_config(KITCHEN.label_config).target(("LOC", "MISC", "ORG", "PER"))
    assert target.blank
    assert target.unknown == ("Ingredient", "Tool", "Dish")
    texts = [each["text"] for each in KITCHEN.texts()]
    assert 50 <= len(set(texts)) == len(texts) <= 80
    assert len({text.split()[0] for text in texts}) > len(texts) / 2


def test_notes_of_a_demo_without_the_second_project_can_be_read(tmp_path: Path) -> None:
    state = load_state(tmp_path)
    (notes,) = tmp_path.iterdir()
    earlier = {name: value for name, value in asdict(state).items() if name != "kitchen"} | {"project": 7}
    notes.write_text(json.dumps(earlier), encoding="utf-8")
    assert load_state(tmp_path) == replace(state, project=7, kitchen=None)


def test_notes_survive_and_are_for_their_owner_only(tmp_path: Path) -> None:
    first = load_state(tmp_path)
    changed = save_state(tmp_path, replace(first, project=7, kitchen=8))
    assert load_state(tmp_path) == changed == replace(first, project=7, kitchen=8)
    (notes,) = tmp_path.iterdir()
    assert stat.S_IMODE(notes.stat().st_mode) == 0o600
    (tmp_path / "other").mkdir()
    assert load_state(tmp_path / "other").password != first.password


def test_notes_that_cannot_be_read_are_refused_with_the_remedy(tmp_path: Path) -> None:
    load_state(tmp_path)
    (notes,) = tmp_path.iterdir()
    notes.write_text("{", encoding="utf-8")
    with pytest.raises(DemoError, match="--reset"):
        load_state(tmp_path)


def test_a_directory_serves_one_demo_at_a_time(tmp_path: Path) -> None:
    with sole_use(tmp_path, reset=False):
        (tmp_path / "kept").write_text("x", encoding="utf-8")
        script = (
            "from pathlib import Path; from backend.demo.state import sole_use\n"
            f"with sole_use(Path({str(tmp_path)!r}), reset=True): pass"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert f"process {os.getpid()}" in done.stderr
        assert (tmp_path / "kept").exists()
    with sole_use(tmp_path, reset=True):
        assert not (tmp_path / "kept").exists()


def test_ports_in_use_are_named_with_the_remedy(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
        options = ["--directory", str(tmp_path), "--once"]
        for option, other in (("--port", "--backend-port"), ("--backend-port", "--port")):
            done = CliRunner().invoke(main, ["demo", option, str(port), other, str(free_port()), *options])
            assert done.exit_code == 1
            assert f"port {port}" in done.output
            assert option in done.output.partition("is in use")[2]
    both = CliRunner().invoke(main, ["demo", "--port", "9000", "--backend-port", "9000", *options])
    assert "two different ports" in both.output


def test_an_incomplete_installation_is_none(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "label-studio").write_text("", encoding="utf-8")
    assert label_studio_command(environment) is None
    (environment / "installed.txt").write_text("1.0.0\n", encoding="utf-8")
    assert label_studio_command(environment) is None
    (environment / "installed.txt").write_text(f"{LABEL_STUDIO_VERSION}\n", encoding="utf-8")
    command = label_studio_command(environment)
    assert command is not None
    assert empty_database(environment).parent.parent == environment
    assert install_label_studio(environment, say=pytest.fail, progress=pytest.fail) == command


@pytest.mark.heavy
def test_an_installation_that_fails_says_what_pip_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    environment = tmp_path / "environment"
    said: list[str] = []
    with pytest.raises(DemoError, match=r"package index(.|\n)*No matching distribution"):
        install_label_studio(environment, say=said.append, progress=lambda _: None)
    assert "1 GB" in said[0]
    assert label_studio_command(environment) is None


def test_label_studio_is_told_nothing_of_ours_and_tells_nobody(tmp_path: Path) -> None:
    ours = {"SURESPAN_ALPHA": "0.5", "PORT": "1", "PYTHONPATH": "x", "LABEL_STUDIO_HOST": "y", "PATH": "/bin"}
    variables = label_studio_variables(tmp_path, base=ours, account=Account("u", "p", "t" * 40))
    assert not {"SURESPAN_ALPHA", "PORT", "PYTHONPATH", "LABEL_STUDIO_HOST"} & set(variables)
    assert variables["PATH"] == "/bin"
    assert (variables["COLLECT_ANALYTICS"], variables["SENTRY_DSN"]) == ("false", "")


def test_the_service_listens_on_loopback_with_its_own_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURESPAN_MODEL", "somebody's")
    variables = service_variables(tmp_path, load_state(tmp_path), url="http://127.0.0.1:1", port=2)
    assert "SURESPAN_MODEL" not in variables
    assert variables["SURESPAN_HOST"] == "127.0.0.1"
    assert min(len(variables[name]) for name in ("BASIC_AUTH_PASS", "SURESPAN_WEBHOOK_SECRET")) >= 20


def test_a_child_that_ends_says_why(tmp_path: Path) -> None:
    child = Child(
        "server",
        [sys.executable, "-c", "print('no such table'); raise SystemExit(3)"],
        url=f"http://127.0.0.1:{free_port()}",
        log=tmp_path / "log",
        environment=os.environ,
        directory=tmp_path,
    )
    with pytest.raises(DemoError, match=r"exit code 3(.|\n)*no such table"):
        child.wait_until_up(30)
    assert child.stop() == 3


def test_a_child_is_forced_when_asking_does_not_help(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(60)"
    )
    child = Child(
        "server",
        [sys.executable, "-c", stubborn],
        url="http://127.0.0.1:1",
        log=tmp_path / "log",
        environment=os.environ,
        directory=tmp_path,
    )
    wait_for(lambda: (tmp_path / "log").read_text(encoding="utf-8"), "it ignores the signal by now")
    assert child.alive
    assert child.stop(grace=0.2) < 0
    assert not child.alive


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_child_ends_with_its_parent_even_if_that_is_killed() -> None:
    script = (
        "import subprocess, sys, os, time\n"
        f"child = subprocess.Popen([sys.executable, {guard.__file__!r}, str(os.getpid()), 'sleep', '60'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        command = Path(f"/proc/{pid}/cmdline")
        wait_for(lambda: command.read_bytes().startswith(b"sleep"), "the guard has become what it guards")
        parent.kill()
    wait_for(lambda: not is_running(pid), "the child ends with its parent")
