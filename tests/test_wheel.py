"""The wheel and the source distribution, installed where the repository cannot help: what users get."""

from __future__ import annotations

import json
import os
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import time
import urllib.request
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.backend.http.running import free_port

ROOT = Path(__file__).parents[1]
WAIT = 120.0
# The hooks that pip and build call; the first one changes sys.argv.
BUILD = "import sys; from setuptools import build_meta as b; out = sys.argv[1]; b.build_wheel(out); b.build_sdist(out)"
WHERE = "import backend, conformal, migrations; print(backend.__file__, conformal.__file__, migrations.__file__)"
PACKAGES = ("backend", "conformal", "migrations")
CONFIG = (
    '<View><Labels name="label" toName="text"><Label value="PER"/><Label value="LOC"/></Labels>'
    '<Text name="text" value="$text"/></View>'
)


class Built(NamedTuple):
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build from a copy, so that nothing is left in the working tree."""
    source = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.nb?"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return build(source, tmp_path_factory.mktemp("dist"))


def build(source: Path, out: Path) -> Built:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(out)], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Built(next(out.glob("*.whl")), next(out.glob("*.tar.gz")))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_everything_that_is_needed_at_run_time_is_in_the_wheel(built: Built) -> None:
    found = contents(built.wheel)
    wanted = {
        path.relative_to(ROOT).as_posix()
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted - set(found) == set()
    for name in sorted(wanted):
        assert found[name] == (ROOT / name).read_bytes(), name
    for name in ("migrations/env.py", "backend/tagger/bundled/model.safetensors", "backend/py.typed"):
        assert name in wanted
    assert not [name for name in found if name.split("/")[0] not in PACKAGES and ".dist-info/" not in name]


def test_the_source_distribution_makes_the_same_wheel(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as file:
        file.extractall(tmp_path / "source", filter="data")
    unpacked = next((tmp_path / "source").iterdir())
    (tmp_path / "dist").mkdir()
    again = contents(build(unpacked, tmp_path / "dist").wheel)
    assert again == contents(built.wheel)


class Installed:
    """An environment that has the wheel and, of everything else, what the test's own environment has."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        self.directory, self.home = directory / "env", directory / "home"
        self.home.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.directory)], check=True)
        self.python = self.directory / "bin" / "python"
        packages = next((self.directory / "lib").glob("python*")) / "site-packages"
        # Dependencies come from here. A path named in a .pth file does not get its own .pth files read, so the
        # working tree's editable install stays out.
        (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--no-index", "--disable-pip-version-check", str(wheel)], check=True)
        self.packages = packages
        self._lend_kernels()

    def _lend_kernels(self) -> None:
        """Copy the compiled kernels of the working tree, which are of the same bytes: compiling takes half a minute."""
        for source in (ROOT / "conformal").rglob("*.py"):
            target = self.packages / source.relative_to(ROOT)
            assert target.read_bytes() == source.read_bytes()
            os.utime(target, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
        for kept in (ROOT / "conformal").rglob("*.nb?"):
            target = self.packages / kept.relative_to(ROOT)
            target.parent.mkdir(exist_ok=True)
            shutil.copy2(kept, target)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        return kept | {"HOME": str(self.home), "OMP_NUM_THREADS": "1"}

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.home, env=self.environment, capture_output=True, text=True, check=False, timeout=WAIT * 5
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def surespan(self) -> str:
        return str(self.directory / "bin" / "surespan")


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), built.wheel)


def test_the_installed_package_works_outside_the_repository(installed: Installed) -> None:
    shown = installed.run(str(installed.python), "-c", WHERE)
    assert all(Path(each).is_relative_to(installed.packages) for each in shown.split())
    assert "schema none -> " in installed.run(installed.surespan, "db", "upgrade")
    assert json.loads(installed.run(installed.surespan, "db", "check", "--json"))["ok"] is True
    answer = json.loads(installed.run(installed.surespan, "predict", "--json", "Sarah is from New York City."))
    assert {"start": 14, "end": 27, "label": "LOC", "text": "New York City"} in answer["labelings"][0]["spans"]
    assert answer["guarantee"] == "borrowed"
    assert (installed.home / ".surespan" / "surespan.db").exists()


def test_the_installed_service_serves(installed: Installed) -> None:
    port, log = free_port(), installed.home / "serve.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [installed.surespan, "serve", "--port", str(port)],
            cwd=installed.home,
            env=installed.environment,
            stdout=stream,
            stderr=stream,
        )
    try:
        assert wait_for(port, process, log)["status"] == "UP"
        version = call(port, "/setup", {"project": "1.2", "schema": CONFIG})["model_version"]
        body = {
            "tasks": [{"id": 1, "data": {"text": "Anna lives in Berlin."}}],
            "project": "1.2",
            "label_config": CONFIG,
        }
        entries = call(port, "/predict", body)["results"]
        assert len(entries) == 1
        assert entries[0][-1]["model_version"] == version
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=WAIT) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> Any:
    for _ in range(int(WAIT / 0.1)):
        assert process.poll() is None, log.read_text()
        try:
            return call(port, "/health", timeout=1.0)
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the service did not come up: " + log.read_text())


def call(port: int, path: str, body: Any = None, *, timeout: float = WAIT) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data)
    with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - loopback
        return json.loads(answer.read())
