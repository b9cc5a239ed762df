"""The wheels and the source distributions, installed where the repository cannot help: what users get."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import time
import tomllib
import urllib.request
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backend import __version__
from tests.support.paths import ROOT
from tests.support.running import free_port

pytestmark = pytest.mark.heavy

WAIT = 120.0
# The hooks that pip and build call; the first one changes sys.argv.
BUILD = "import sys; from setuptools import build_meta as b; out = sys.argv[1]; b.build_wheel(out); b.build_sdist(out)"
WHERE = "import backend, conformal, migrations; print(backend.__file__, conformal.__file__, migrations.__file__)"
EVERYTHING, LIBRARY = ("backend", "conformal", "migrations"), ("conformal",)
LIGHT = ("numpy", "numba", "llvmlite")  # all that the library may need, numba's own dependency included
CONFIG = (
    '<View><Labels name="label" toName="text"><Label value="PER"/><Label value="LOC"/></Labels>'
    '<Text name="text" value="$text"/></View>'
)


class Built(NamedTuple):
    packages: tuple[str, ...]
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    """Build from a copy, so that nothing is left in the working tree."""
    source = tmp_path_factory.mktemp("source")
    for name in EVERYTHING:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.nb?"))
    shutil.copytree(ROOT / "packaging", source / "packaging", symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return {
        "surespan": Built(EVERYTHING, *build(source, tmp_path_factory.mktemp("product"))),
        "surespan-conformal": Built(
            LIBRARY, *build(source / "packaging/conformal", tmp_path_factory.mktemp("library"))
        ),
    }


def build(source: Path, out: Path) -> tuple[Path, Path]:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(out)], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.mark.parametrize("name", ["surespan", "surespan-conformal"])
def test_everything_that_is_needed_at_run_time_is_in_the_wheel_and_nothing_else(
    built: dict[str, Built], name: str
) -> None:
    packages, wheel, _ = built[name]
    packed = contents(wheel)
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {file for file in packed if ".dist-info/" not in file} == wanted
    for file in sorted(wanted):
        assert packed[file] == (ROOT / file).read_bytes(), file
    for file in ("migrations/env.py", "backend/tagger/bundled/model.safetensors", "backend/py.typed"):
        assert (file in wanted) == (packages == EVERYTHING)
    licence = next(file for file in packed if file.endswith(".dist-info/licenses/LICENSE"))
    assert packed[licence] == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("name", ["surespan", "surespan-conformal"])
def test_the_source_distribution_makes_the_same_wheel(built: dict[str, Built], name: str, tmp_path: Path) -> None:
    with tarfile.open(built[name].sdist) as file:
        file.extractall(tmp_path / "source", filter="data")
    unpacked = next((tmp_path / "source").iterdir())
    (tmp_path / "dist").mkdir()
    wheel, _ = build(unpacked, tmp_path / "dist")
    assert contents(wheel) == contents(built[name].wheel)


def test_the_two_distributions_are_released_together() -> None:
    """The product holds the library, of its own version, and needs what it needs."""
    product, library = (
        tomllib.loads((ROOT / file).read_text())["project"]
        for file in ("pyproject.toml", "packaging/conformal/pyproject.toml")
    )
    assert product["version"] == library["version"] == __version__
    assert set(library["dependencies"]) <= set(product["dependencies"])
    assert {re.split(r"[<>=]", each)[0] for each in library["dependencies"]} == {"numba", "numpy"}


class Installed:
    """An environment with wheels of ours and, of all else, what the test's own environment has, or `only` that."""

    def __init__(self, directory: Path, wheels: list[Path], *, only: tuple[str, ...] | None = None) -> None:
        self.directory, self.home = directory / "env", directory / "home"
        self.home.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.directory)], check=True)
        self.python = self.directory / "bin" / "python"
        self.packages = next((self.directory / "lib").glob("python*")) / "site-packages"
        if only is None:
            # Dependencies come from here. A path named in a .pth file does not get its own .pth files read, so the
            # working tree's editable install stays out.
            (self.packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
        else:
            self._lend(only)
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-index"]
        # With its dependencies where they are lent one by one: what the wheel needs beyond them is an error.
        subprocess.run(
            [*pip, *(["--no-deps"] if only is None else []), "--disable-pip-version-check", *map(str, wheels)],
            check=True,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        self._lend_kernels()

    def _lend(self, names: tuple[str, ...]) -> None:
        """Link single distributions of the test's own environment."""
        for name in names:
            lent = distribution(name)
            tops = {file.parts[0] for file in lent.files or () if ".." not in file.parts}
            for top in tops:
                (self.packages / top).symlink_to(Path(str(lent.locate_file(top))))

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
def installed(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), [each.wheel for each in built.values()])


@pytest.fixture(scope="module")
def library(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("library"), [built["surespan-conformal"].wheel], only=LIGHT)


@pytest.mark.parametrize("page", ["README.md", "packaging/conformal/README.md"])
def test_the_library_works_with_numpy_and_numba_alone(library: Installed, page: str) -> None:
    example = next(code for code in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
    best, marginal = library.run(str(library.python), "-c", example).splitlines()
    assert [float(each) for each in best.strip("[]").split()] == sorted(
        (float(each) for each in best.strip("[]").split()), reverse=True
    )
    assert 0 < float(marginal) < 1
    absent = "import importlib.util as u; print([name for name in ('torch', 'flask', 'backend') if u.find_spec(name)])"
    assert library.run(str(library.python), "-c", absent).strip() == "[]"
    assert not (library.directory / "bin" / "surespan").exists()


def test_the_installed_package_works_outside_the_repository(installed: Installed) -> None:
    shown = installed.run(str(installed.python), "-c", WHERE)
    assert all(Path(each).is_relative_to(installed.packages) for each in shown.split())
    assert "schema none -> " in installed.run(installed.surespan, "db", "upgrade")
    assert json.loads(installed.run(installed.surespan, "db", "check", "--json"))["ok"] is True
    answer = json.loads(installed.run(installed.surespan, "predict", "--json", "Sarah is from New York City."))
    assert {"start": 14, "end": 27, "label": "LOC", "text": "New York City"} in answer["labelings"][0]["spans"]
    assert answer["guarantee"] == "borrowed"
    assert (installed.home / ".surespan" / "surespan.db").exists()


@pytest.mark.e2e
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
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data=data, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - loopback
        return json.loads(answer.read())
