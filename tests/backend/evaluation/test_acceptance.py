"""`surespan evaluate --accept`: the study's figures obey what they are bounded by, and the command writes its page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from backend.acceptance.decision import Wish
from backend.acceptance.losses import loss_of
from backend.cli import main
from backend.evaluation.acceptance import (
    Collection,
    decide_all,
    draw_work,
    oracle_share,
    permitted_level,
    study_collection,
)
from backend.evaluation.risk_lists import list_texts
from backend.tagger.loading import load_tagger
from backend.tagger.readers import read_conll
from conformal.risk.acceptance import Promise
from tests.backend.evaluation.test_risk import LINES

TASKS = 1_500


def made_up(*, shares: bool = False) -> Collection:
    """Tasks whose doubt is right on average; one in six is flagged, whoever labels."""
    rng = np.random.default_rng(3)
    doubts = rng.random(TASKS) ** 4
    wrong = (rng.random(TASKS) < doubts).astype(np.float64)
    flagged = np.arange(TASKS) % 6 == 0
    losses = wrong * rng.random(TASKS) if shares else wrong
    return Collection(doubts, losses, doubts, shares, lambda _: flagged)


@pytest.mark.parametrize("shares", [False, True])
def test_figures_obey_what_bounds_them(shares: bool) -> None:
    tasks = made_up(shares=shares)
    found = study_collection(tasks, draws=12, seed=1, max_errors=("0.05", "0.02"))
    assert [(row["of"], row["max_error"]) for row in found["wishes"]] == [
        (promise, eps) for promise in ("all", "accepted") for eps in ("0.05", "0.02")
    ]
    for row in found["wishes"]:
        assert 0 <= row["unopened"] <= row["unflagged"] <= row["share"] <= row["permitted"] <= 1
        assert row["of all"] <= row["share"]
        assert row["exceeded"] <= 2 / 12
        # Labels that nobody read say that what is wrong is right, so that more is accepted.
        assert row["stamped"]["share"] >= row["share"]
    strict, loose = found["wishes"][1], found["wishes"][0]
    assert 0.3 < strict["share"] < loose["share"]
    assert loose["share"] / loose["permitted"] == loose["of permitted"] > 0.97
    assert loose["share"] < loose["oracle"]
    assert loose["stamped"]["share"] > loose["share"]
    assert loose["stamped"]["exceeded"] > 0.5


def test_work_is_in_review_order_with_blind_tasks_at_random_places() -> None:
    tasks = made_up()
    work = draw_work(tasks, salt="s", share=0.4)
    assert sorted(work.order.tolist()) == list(range(TASKS))
    shown = work.order[~work.blind[work.order]]
    assert np.all(np.diff(tasks.values[shown]) <= 0)  # what is worth most comes first
    blind = work.order[work.blind[work.order]]
    assert 0.35 < blind.size / TASKS < 0.45
    half = blind.size // 2
    assert abs(tasks.doubts[blind[:half]].mean() - tasks.doubts[blind[half:]].mean()) < 0.06
    assert np.array_equal(draw_work(tasks, salt="s", share=0.4).order, work.order)
    assert not np.array_equal(draw_work(tasks, salt="t", share=0.4).order, work.order)


def test_decisions_come_at_their_counts_and_each_has_its_share_of_the_error() -> None:
    tasks = made_up()
    labelled = np.random.default_rng(0).permutation(TASKS)
    for wish, counts in ((Wish("0.05"), [125, 250, 500]), (Wish("0.02"), [250, 500]), (Wish("0.01"), [500])):
        made = decide_all(tasks, labelled, tasks.losses, wish=wish)
        assert [each.rows.doubts.size for each in made] == counts
        assert [each.number for each in made] == list(range(1, len(counts) + 1))
        for each in made:
            assert each.level is None or each.level <= permitted_level(tasks, each, wish=wish)
    assert decide_all(tasks, labelled[:124], tasks.losses, wish=Wish("0.05")) == []
    first = decide_all(tasks, labelled, tasks.losses, wish=Wish("0.05"))
    inside = tasks.doubts[labelled[:250]] <= (first[0].level or -1)
    assert np.array_equal(first[1].rows.earlier, np.where(inside, tasks.losses[labelled[:250]], 0.0))


def test_the_oracle_takes_what_the_true_curve_allows() -> None:
    doubts = np.arange(10) / 10
    losses = np.array([0, 0, 0, 0, 1, 0, 0, 1, 1, 1.0])
    tasks = Collection(doubts, losses, doubts, False, lambda _: np.zeros(10, np.bool_))
    assert oracle_share(tasks, Wish("0.1")) == 0.7
    assert oracle_share(tasks, Wish("0.05")) == 0.4
    assert oracle_share(tasks, Wish("0.2", Promise.ACCEPTED)) == 0.7
    assert oracle_share(tasks, Wish("0.01", Promise.ACCEPTED)) == 0.4


def test_a_collection_loses_what_the_product_would_say(tiny_model: Path, tmp_path: Path) -> None:
    tagger = load_tagger(tiny_model)
    file = tmp_path / "texts.conll"
    file.write_text(LINES)
    texts = read_conll(file).texts
    lists = list_texts(tagger, texts)
    tasks = Collection.of(lists)
    assert np.all((tasks.doubts >= 0) & (tasks.doubts <= 1))
    for at, text in enumerate(texts):
        errors = int((lists.errors.task == at).sum())
        wrong = loss_of(text.spans if not errors else (), text.spans, text=text.text, units=1)
        assert (tasks.losses[at] > 0) == (errors > 0) == (wrong > 0)


def test_the_command_writes_its_page(tmp_path: Path, tiny_model: Path) -> None:
    file = tmp_path / "a.conll"
    file.write_text(LINES * 60)
    asked = ["evaluate", "--accept", "--model", str(tiny_model), "--data", str(file), "--splits", "2"]
    options = ["--out", str(tmp_path / "out"), "--json", str(tmp_path / "figures.json")]
    done = CliRunner().invoke(main, [*asked, *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "acceptance.md").read_text()
    assert "## a.conll" in page
    assert page.count("| all |") == page.count("| accepted |") == 3
    figures = json.loads((tmp_path / "figures.json").read_text())["a.conll"]
    assert (figures["tasks"], figures["draws"]) == (180, 2)
    few = CliRunner().invoke(main, [*asked, "--rows", "20"])
    assert few.exit_code != 0
    assert "at least 50 labelled texts" in few.output
    both = CliRunner().invoke(main, [*asked, "--risk"])
    assert "expected --risk or --accept" in both.output
