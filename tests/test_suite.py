"""The tests keep house themselves: fixtures are known from one place, and marks say what a test needs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

FOLDER = ROOT / "tests"
SUPPORT = FOLDER / "support"


def fixtures_in(path: Path) -> set[str]:
    """Return the names of the functions that a file makes fixtures."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any("pytest.fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def test_fixtures_are_made_known_in_one_place() -> None:
    assert list(FOLDER.rglob("conftest.py")) == [FOLDER / "conftest.py"]
    shared = [name for path in SUPPORT.glob("*.py") for name in fixtures_in(path)]
    assert sorted(shared) == sorted(set(shared)), "one name, one fixture"
    known = ast.parse((FOLDER / "conftest.py").read_text(encoding="utf-8"))
    imported = {
        alias.name
        for node in known.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.support")
        for alias in node.names
    }
    assert set(shared) == imported - {"ROOT", "memory_directory"}


def test_no_test_imports_a_fixture() -> None:
    shared = {name for path in SUPPORT.glob("*.py") for name in fixtures_in(path)}
    for path in FOLDER.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
                assert not shared & {alias.name for alias in node.names}, path


def test_marks_are_set_by_folder_and_fixture(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        marks = {mark.name for mark in item.iter_markers()}
        assert ("statistical" in marks) == item.nodeid.startswith("tests/statistical/")
        assert "e2e" in marks or not item.nodeid.startswith("tests/e2e/")
        assert "postgresql" in marks or not re.search(r"\[postgresql[\]-]", item.nodeid)
