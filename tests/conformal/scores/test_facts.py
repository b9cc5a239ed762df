"""Scores carry their own facts: nothing outside `conformal/scores` looks at the name of one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformal.scores import METHODS, SCORES, SPAN_METHODS, Boundary, EntityMethod, Method, Sets

ROOT = Path(__file__).parents[3]
PARTS = {part for name in SCORES for part in (name, *name.split("+"))}
# The evaluation compares chosen methods in its tables, and has the paper's own variants beside the library's; settings
# need not import the library to know that their default is a method.
SPELL_NAMES = {"evaluation", "settings.py"}


def texts(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def lines_with_names(path: Path) -> list[int]:
    """Return the lines that compare with the name of a score, or with the beginning or end of one."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        called = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        if isinstance(node, ast.Compare | ast.MatchValue) or called in {"startswith", "endswith", "removeprefix"}:
            lines += [node.lineno for text in texts(node) if text in PARTS]  # type: ignore[attr-defined]
    return lines


def test_only_the_scores_themselves_know_their_names() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("conformal", "backend")
        for path in (ROOT / folder).rglob("*.py")
        if not SPELL_NAMES & set(path.parts) and ROOT / "conformal/scores" not in path.parents
        for line in lines_with_names(path)
    }
    assert not found


def test_the_scan_sees_what_it_looks_for(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        'a = method.name == "nc1"\n'
        'b = method.family in ("raps", "naive")\n'
        'c = name.startswith("integrated")\n'
        'd = results["nc1"] == "exact"\n'
        'e = Method("nc1")\n'
    )
    assert sorted(set(lines_with_names(path))) == [1, 2, 3, 4]


def test_every_score_is_entered_under_its_own_name_with_its_worth() -> None:
    assert {name: score.name for name, score in SCORES.items()} == {name: name for name in SCORES}
    assert {name: Method(name).worth for name in SCORES} == METHODS
    assert set(METHODS.values()) == {"exact", "approximate", "heuristic"}


@pytest.mark.parametrize("name", SCORES)
def test_facts_agree_with_one_another(name: str) -> None:
    score, method = SCORES[name], Method(name)
    assert Boundary.INCLUDE in score.boundaries
    assert method.needs_rank == (method.limit is not None)
    assert method.makes_heads == (score.sets is Sets.HEADS) == (not method.is_integrated and not method.is_heuristic)
    assert score.tunes or not score.searches_lists
    assert not score.smooths or Boundary.SMOOTHED in score.boundaries
    assert not (score.is_pair and Boundary.SMOOTHED in score.boundaries)
    assert score.spans in SPAN_METHODS
    # What is beyond the rank search: judged by probability where no rank is needed, and where the score says so.
    assert method.goes_on == (not score.needs_rank or score.goes_on)
    with_rest = Method(name, limit=7)
    assert with_rest.goes_on == score.goes_on


def test_spans_have_their_own_facts() -> None:
    plain = [name for name in SPAN_METHODS if not EntityMethod(name).needs_rank]
    assert plain == ["nc1", "nc2", "nc3"]
    assert [name for name in plain if SCORES[name].needs_rank] == ["nc2", "nc3"]  # of labelings, not of spans
    assert [name for name in SPAN_METHODS if EntityMethod(name).is_pair] == ["naive+nc1", "naive+nc2"]
    for name in SPAN_METHODS:
        assert EntityMethod(name).needs_tuning == EntityMethod(name).needs_rank
