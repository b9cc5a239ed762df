"""Benchmarks run seldom: what they take from the packages must be there all the time."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from tests.support.paths import ROOT

BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.name)
def test_what_a_benchmark_imports_of_ours_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in {"backend", "conformal"}:
            module = importlib.import_module(str(node.module))
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert missing == [], f"{node.module}, line {node.lineno}"


def test_every_benchmark_is_in_the_table() -> None:
    table = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in BENCHMARKS if f"`{path.name}`" not in table] == []
