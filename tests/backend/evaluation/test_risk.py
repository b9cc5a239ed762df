"""`surespan evaluate --risk`: the columns it works on, its rules against counting by hand, and the page it writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from backend.cli import main
from backend.evaluation.risk import LevelRule, _oracle, study_lists, tuned_level
from backend.evaluation.risk_lists import Lists, Spans, list_texts
from backend.tagger.loading import load_tagger
from backend.tagger.readers import LabelledText, read_conll
from conformal.risk import find_errors
from conformal.rows import EntityRows

LINES = """-DOCSTART-\tO

Anna\tB-PER
sleeps\tO
.\tO

She\tO
left\tO
Rome\tB-LOC
.\tO

-DOCSTART-\tO

Bob\tB-PER
stays\tO
.\tO

"""
WIDTH = 100  # of a task in the made-up lists


def lists_of(tasks: list[dict[str, list[tuple[int, int, float]]]], entities: list[int]) -> Lists:
    """Lists in which `listed` are spans with doubts, `missing` and `false` errors, `right` right spans."""

    def spans(*names: str) -> Spans:
        found = [
            (i, i * WIDTH + s, i * WIDTH + e)
            for i, task in enumerate(tasks)
            for n in names
            for s, e, _ in task.get(n, [])
        ]
        return Spans(*np.array(found, np.int64).reshape(-1, 3).T)

    doubts = [doubt for task in tasks for _, _, doubt in task.get("listed", [])]
    probability = np.array([[doubt, 1 - doubt] for doubt in doubts]).reshape(-1, 2)
    false = [kind == "false" for task in tasks for kind in ("missing", "false") for _ in task.get(kind, [])]
    predicted = [len(task.get("right", [])) + len(task.get("false", [])) for task in tasks]
    return Lists(
        classes=("PER",),
        listed=spans("listed"),
        probability=probability,
        best=np.full(len(doubts), -1),
        errors=spans("missing", "false"),
        false=np.array(false, np.bool_),
        right=spans("right"),
        entities=np.array(entities),
        predicted=np.array(predicted),
        rows=EntityRows.join([]),
        doubt=np.array([max((each[2] for each in task.get("listed", [])), default=0.0) for task in tasks]),
        value=np.zeros(len(tasks)),
        units=np.ones(len(tasks), np.int64),
    )


@pytest.fixture
def made() -> Lists:
    return lists_of(
        [
            {"listed": [(0, 4, 0.5), (3, 6, 0.3), (10, 12, 0.2)], "missing": [(0, 2, 0)], "right": [(10, 12, 0)]},
            {"listed": [(0, 4, 0.1)], "false": [(2, 3, 0)], "right": [(20, 22, 0)]},
            {"listed": [(0, 4, 0.4)]},
            {"missing": [(0, 1, 0)], "right": [(5, 6, 0), (7, 8, 0), (9, 10, 0)]},
        ],
        [2, 1, 0, 4],
    )


def test_a_rules_figures_are_what_one_counts(made: Lists) -> None:
    rule, test = LevelRule(made, made.doubts), np.arange(4)
    none = rule.figures(np.inf, test)
    assert none == {
        "risk": pytest.approx((1 / 2 + 1 / 2 + 1 / 4) / 3),
        "places": 0,
        "nothing": 1,
        "everything": 0,
        "seen": 0,
        "marked": 0,
    }
    some = rule.figures(0.15, test)  # (0, 4) and (3, 6) are one place
    assert some["risk"] == pytest.approx((1 / 2 + 1 / 4) / 3)
    assert (some["places"], some["nothing"]) == (3 / 4, 2 / 4)
    assert some["seen"] == pytest.approx(1 / 3)
    assert some["marked"] == pytest.approx(1 / 5)
    everything = rule.figures(0.0, test)
    assert np.isnan(everything.pop("places"))
    assert everything == {"risk": 0, "nothing": 0, "everything": 1, "seen": 1, "marked": 1}
    only = rule.figures(0.15, np.array([2, 3]))
    assert (only["risk"], only["places"]) == (1 / 4, 1 / 2)


def test_the_tuned_level_is_the_greatest_that_keeps_the_risk_here(made: Lists) -> None:
    rule = LevelRule(made, made.doubts)
    assert tuned_level(rule.rows, 0.5) == np.inf
    assert tuned_level(rule.rows, 0.3) == 0.5
    assert tuned_level(rule.rows, 0.1) == pytest.approx(0.1)
    assert tuned_level(rule.rows, 0.05) == 0.0
    assert rule.seen_at(1 / 3, np.arange(4)) == 0.5
    assert rule.seen_at(1.0, np.arange(4)) == 0.0
    assert rule.seen_at(0.0, np.arange(4)) == np.inf


def test_the_oracle_looks_at_the_fewest_places(made: Lists) -> None:
    test = np.arange(4)
    for limit, places in ((0.5, 0), (0.3, 1), (0.1, 2), (0.05, 3)):
        found = _oracle(made, test, limit)
        assert found["places"] * 4 == places
        assert found["risk"] <= limit
        assert found["marked"] == 0


def test_columns_say_what_finding_errors_task_by_task_says(tiny_model: Path, tmp_path: Path) -> None:
    tagger = load_tagger(tiny_model)
    file = tmp_path / "texts.conll"
    file.write_text(LINES)
    texts = [*read_conll(file).texts, LabelledText("", ()), LabelledText("Nothing here", ())]
    lists = list_texts(tagger, texts)
    assert len(lists) == 4  # the text without a word is out
    rows = lists.error_rows(lists.doubts)
    for task in range(4):
        here = lists.listed.task == task
        wrong = lists.errors.task == task
        kinds = [
            [
                (int(s), int(e), str(kind))
                for s, e, f in zip(lists.errors.start[wrong], lists.errors.end[wrong], lists.false[wrong], strict=True)
                if f == kind
            ]
            for kind in (False, True)
        ]
        starts, ends = lists.listed.start[here], lists.listed.end[here]
        again = find_errors(kinds[0], kinds[1], starts=starts, ends=ends, doubts=lists.doubts[here])
        own = rows.take([task])
        assert sorted(own.level[~own.false].tolist()) == sorted(again.missing)
        assert sorted(own.level[own.false].tolist()) == sorted(again.false)
    assert lists.entities.tolist() == [1, 1, 1, 0]
    touching = np.ones(len(lists.listed), np.bool_)
    assert np.all((lists.places(touching) > 0) == (np.bincount(lists.listed.task, minlength=4) > 0))


def test_controlled_levels_keep_the_risk_on_made_up_tasks() -> None:
    rng = np.random.default_rng(0)
    tasks, entities = [], []
    for _ in range(900):
        doubt = float(rng.random())
        wrong = rng.random() < doubt * 0.6
        tasks.append({"listed": [(0, 4, doubt)], "missing" if wrong else "right": [(0, 4, 0.0)]})
        entities.append(1)
    found = study_lists(lists_of(tasks, entities), splits=20, seed=0, max_errors=("0.1",), calibration=300)
    rules = found["levels"][0]["rules"]
    assert found["risk"] == pytest.approx(0.3, abs=0.04)
    assert rules["controlled"]["risk"] < 0.11
    assert rules["sure"]["risk"] < rules["controlled"]["risk"]
    assert rules["tuned on the test tasks"]["risk"] <= 0.1 + 1e-9
    assert rules["oracle"]["places"] < rules["tuned on the test tasks"]["places"] <= 1.3 * rules["controlled"]["places"]
    assert 0 <= rules["controlled"]["above"] <= 1
    fixed = found["fixed flags"]
    assert fixed["seen, same errors seen"] >= fixed["seen"]


def test_the_command_writes_tables_for_each_file(tmp_path: Path, tiny_model: Path) -> None:
    file = tmp_path / "a.conll"
    file.write_text(LINES * 15)
    asked = ["evaluate", "--risk", "--model", str(tiny_model), "--data", str(file), "--splits", "2"]
    options = ["--out", str(tmp_path / "out"), "--json", str(tmp_path / "figures.json")]
    done = CliRunner().invoke(main, [*asked, *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "risk.md").read_text()
    assert "## a.conll" in page
    assert page.count("| controlled |") == 4
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["a.conll"]["tasks"], figures["a.conll"]["calibration"]) == (45, 22)
    strict = figures["a.conll"]["levels"][-1]["rules"]["controlled"]  # 22 labels cannot promise 1 %
    assert (strict["risk"], strict["places"], strict["everything"]) == (0.0, None, 1.0)
    joined = CliRunner().invoke(main, [*asked, "--documents", "--rows", "20", *options], catch_exceptions=False)
    assert joined.exit_code == 0, joined.output
    assert json.loads((tmp_path / "figures.json").read_text())["a.conll"]["tasks"] == 20
    few = tmp_path / "few.conll"
    few.write_text(LINES)
    refused = CliRunner().invoke(main, ["evaluate", "--risk", "--model", str(tiny_model), "--data", str(few)])
    assert refused.exit_code != 0
    assert "at least four labelled texts" in refused.output
