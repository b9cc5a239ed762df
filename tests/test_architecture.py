"""What the tree promises: `conformal` stands alone, and says exactly what is public."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import conformal

ROOT = Path(__file__).parents[1]
FOREIGN = {"alembic", "backend", "flask", "label_studio_sdk", "pydantic", "sqlalchemy", "torch", "transformers"}


def imported_names(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize(
    "path", sorted((ROOT / "conformal").rglob("*.py")), ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_conformal_imports_only_numpy_numba_and_the_standard_library(path: Path) -> None:
    allowed = {"conformal", "numba", "numpy", *sys.stdlib_module_names}
    assert imported_names(path) <= allowed


def test_importing_conformal_brings_nothing_foreign_in() -> None:
    script = "import conformal, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT)
    assert not FOREIGN & set(done.stdout.split())


def packages_with_all() -> list[str]:
    names = ["conformal"]
    names += [info.name for info in pkgutil.walk_packages(conformal.__path__, "conformal.") if info.ispkg]
    return [name for name in names if hasattr(importlib.import_module(name), "__all__")]


@pytest.mark.parametrize("name", packages_with_all())
def test_all_is_sorted_and_complete(name: str) -> None:
    module = importlib.import_module(name)
    public = [key for key, value in vars(module).items() if key[0] != "_" and not isinstance(value, types.ModuleType)]
    assert list(module.__all__) == sorted(public)


def test_no_module_outgrows_a_screenful_of_ideas() -> None:
    long = {
        path.relative_to(ROOT).as_posix(): lines
        for folder in ("conformal", "backend", "migrations")
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 500
    }
    assert not long
