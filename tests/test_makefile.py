"""Every target of the Makefile sets up what it needs, from a clone in which nothing is installed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support.paths import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PHONY = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
# Which extra a target's set-up must install, beside what users get.
NEEDED = {
    "help": None,
    "clean": None,
    "setup": set(),
    "run": set(),
    "docs": set(),
    "lint": {"test"},
    "kernels": {"test"},
    "check": {"test"},
    "quick": {"test"},
    "test": {"test"},
    "suite": {"test"},
    "coverage": {"test"},
    "bench": {"test", "bench"},
    "image": {"test"},
    "soak": {"test", "ray"},
}
# Programs of .venv/bin that come with an extra; the others come with surespan or with Python.
PROGRAMS = {"pytest": "test", "ruff": "test", "mypy": "test"}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What make itself reads of a fresh clone."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    place = tmp_path_factory.mktemp("clone")
    for name in ("Makefile", "pyproject.toml", "backend/demo/install.py"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / name)
    return place


def make(clone: Path, *arguments: str) -> str:
    done = subprocess.run(["make", *arguments], cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed(recipe: str) -> list[str]:
    """Return what pip is asked to install, in order."""
    lines = [shlex.split(line.partition("||")[0]) for line in recipe.splitlines() if " -m pip install " in line]
    return [line[line.index("--editable") + 1] for line in lines]


@pytest.mark.parametrize("target", PHONY)
def test_a_target_installs_what_it_needs_before_it_uses_it(clone: Path, target: str) -> None:
    recipe = make(clone, "-n", target)
    asked = [re.fullmatch(r"\.(?:\[([a-z,]+)\])?", requirement) for requirement in installed(recipe)]
    assert all(asked), installed(recipe)
    extras = {extra for match in asked if match and match[1] for extra in match[1].split(",")}
    assert (extras if asked else None) == NEEDED[target]
    assert extras <= set(EXTRAS)
    begun = recipe.find(" -m pip install ")
    used = {match[1]: match.start() for match in re.finditer(r"^(?:\w+=\S+ )*\.venv/bin/(\w+) ", recipe, re.MULTILINE)}
    assert all(PROGRAMS.get(program) in {None, *extras} and at >= begun - 20 for program, at in used.items()), used


@pytest.mark.parametrize("stamp", sorted(set(re.findall(r"^\$\(VENV\)/(\.installed[\w-]*):", MAKEFILE, re.MULTILINE))))
def test_what_is_installed_is_not_installed_again(clone: Path, stamp: str, tmp_path: Path) -> None:
    copied = shutil.copytree(clone, tmp_path / "clone")
    (copied / ".venv" / "bin").mkdir(parents=True)
    shutil.copy("/bin/true", copied / ".venv" / "bin" / "python")  # a pip that finds all there is to do done
    assert installed(make(copied, "-n", f".venv/{stamp}"))
    make(copied, f".venv/{stamp}")
    assert installed(make(copied, "-n", f".venv/{stamp}")) == []
    assert installed(make(copied, "-n", "setup")) == []


def test_every_target_is_in_the_help(clone: Path) -> None:
    assert set(PHONY) == set(NEEDED)
    assert set(re.findall(r"^  make ([a-z]+) +\S", make(clone, "help"), re.MULTILINE)) == set(PHONY)
    assert set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE)) == set(PHONY)


def test_marks_that_the_quick_check_leaves_out_are_known() -> None:
    (quick,) = re.findall(r"^QUICK := (.*)$", MAKEFILE, re.MULTILINE)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    assert {mark.removeprefix("not ") for mark in quick.split(" and ")} == {
        line.partition(":")[0] for line in settings["markers"]
    }
