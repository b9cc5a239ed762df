"""Campaigns on a toy language: the loop is the product's own, finished ones are kept, and the command prints them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from backend.cli import main
from backend.models.loading import ModelLoader
from backend.settings import Settings, load_settings
from backend.simulation.annotators import Habits
from backend.simulation.campaign import Played, Point, Rules, play
from backend.simulation.policies import POLICIES, Policy, Sequence
from backend.simulation.report import chance_of, drawings, report, summarise
from backend.simulation.study import Plan, sample, study
from backend.tagger.errors import InvalidData
from backend.tagger.readers import read_labelled
from tests.support.paths import SAMPLE
from tests.support.toy_texts import untidy_texts

TOY = untidy_texts(260, seed=4)
LABELS = ("Drug", "Symptom")


@pytest.fixture
def own_settings(served_model: Path) -> Settings:
    return load_settings(model=str(served_model), n_min=20, learn_from="nothing")


def test_work_by_hand_is_what_all_else_is_measured_by(own_settings: Settings, loader: ModelLoader) -> None:
    corpus = sample(TOY, LABELS, tasks=60, seed=1)
    played = play(corpus, POLICIES["hand"], Rules(), settings=own_settings, loader=loader, seed=1)
    assert (played.share, played.end.opened, played.end.loss, played.end.whole) == (1.0, 60, 0.0, 0.0)
    assert [point.loss for point in played.points] == sorted((point.loss for point in played.points), reverse=True)
    careless = Rules(habits=Habits(accuracy=0.5))
    half = play(corpus, POLICIES["hand"], careless, settings=own_settings, loader=loader, seed=1)
    assert half.share < 1.0
    assert half.end.loss > 0.3


def test_a_model_that_knows_the_labels_saves_work_and_keeps_the_promise(
    loader: ModelLoader, served_model: Path
) -> None:
    """Whatever the order, everything is opened in the end, with evidence of the project's own, and the promise kept."""
    texts = read_labelled(SAMPLE).texts * 3
    labels = tuple(sorted({span.label for text in texts for span in text.spans}))
    settings = load_settings(model=str(served_model), n_min=20)
    corpus = sample(texts, labels, tasks=60, seed=0)
    for order in (Sequence.RANDOM, Sequence.LEAST_CONFIDENT):
        policy = Policy("trial", "", sequence=order, learns=False)
        played = play(corpus, policy, Rules(blind=0.4), settings=settings, loader=loader, seed=0)
        assert played.end.opened == played.tasks == 60
        assert 15 < played.blind < 40
        assert played.end.loss <= 0.05
        assert played.share < 1.0
        assert Played.from_dict(json.loads(json.dumps(played.as_dict()))) == played


@pytest.mark.heavy
def test_a_project_learns_and_accepts(own_settings: Settings, loader: ModelLoader) -> None:
    """No model knows the labels: the first tasks come blank, models take over, and sure tasks are never opened."""
    corpus = sample(TOY, LABELS, tasks=None, seed=2)
    rules = Rules("0.1", blind=0.55)
    played = play(corpus, POLICIES["accept"], rules, settings=own_settings, loader=loader, seed=2)
    assert played.trained >= 2
    assert played.decisions
    assert played.end.opened + played.end.accepted == 260
    assert played.end.accepted > 0
    assert played.accepted_wrong <= 0.1
    assert played.end.loss <= 0.1
    assert played.share < 1.0


def test_a_study_goes_on_where_it_was_stopped(own_settings: Settings, loader: ModelLoader, tmp_path: Path) -> None:
    plan = Plan((POLICIES["hand"],), (Rules(),), (0, 1, 2), tasks=50)
    told: list[int] = []
    times = iter([0.0, 0.0, 61.0, 61.0])

    def tell(_policy: Policy, _rules: Rules, seed: int, _total: int, _done: int) -> None:
        told.append(seed)

    def go(plan: Plan, clock: Callable[[], float] = time.monotonic) -> tuple[Played, ...]:
        found = study(TOY, plan, settings=own_settings, loader=loader, kept=tmp_path, tell=tell, clock=clock)
        assert len(found.played) + found.missing == len(plan.seeds)
        return found.played

    first = go(replace(plan, minutes=1.0), clock=lambda: next(times))
    assert [each.seed for each in first] == [0]
    assert set(told) == {0}
    told.clear()
    every = go(plan)
    assert every[0] == first[0]
    assert set(told) == {1, 2}
    told.clear()
    assert go(plan) == every
    assert not told  # nothing was played again
    other = go(replace(plan, rules=(Rules(habits=Habits(accuracy=0.5)),), seeds=(0,)))
    assert other != every[:1]


def test_too_few_texts_are_refused(own_settings: Settings, loader: ModelLoader, tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="at least 50 labelled texts"):
        study(TOY[:20], Plan((), (), ()), settings=own_settings, loader=loader, kept=tmp_path)


def made(policy: str, *, seed: int, losses: tuple[float, ...], wrong: float = 0.0) -> Played:
    points = tuple(Point(10.0 * place, place, 0, loss, loss) for place, loss in enumerate(losses))
    return Played(policy, seed, 10, "0.05", 40.0, 2, 3, 0, wrong, 8, points)


def test_the_report_counts_what_was_exceeded() -> None:
    played = [
        made("hand", seed=0, losses=(1.0, 0.5, 0.2, 0.1, 0.0)),
        made("accept", seed=0, losses=(1.0, 0.04, 0.06, 0.01), wrong=0.06),
        made("accept", seed=1, losses=(1.0, 0.04), wrong=0.01),
    ]
    rows = {row["policy"]: row for row in summarise(played)}
    assert (rows["hand"]["work"], rows["hand"]["hindsight"]) == (1.0, 1.0)
    assert rows["accept"]["work"] == pytest.approx(0.5)
    assert rows["accept"]["hindsight"] == pytest.approx(0.5)  # that it was low for a while does not count
    assert (rows["accept"]["above"], rows["accept"]["p"]) == (1, chance_of(1, 2))
    page = report(played, about="Made up.", drawings=["errors-0.05.svg"])
    assert "| accept: amber places, sure tasks accepted | 2 | 50.0% |" in page
    assert all(picture.startswith("<svg") and "accept" in picture for picture in drawings(played).values())


def test_the_command_prints_and_draws(served_model: Path, tmp_path: Path) -> None:
    asked = ["simulate", "--data", str(SAMPLE), "--data", str(SAMPLE), "--policies", "hand", "--out", str(tmp_path)]
    asked += ["--seeds", "2", "--json"]
    done = CliRunner().invoke(main, asked, env={"SURESPAN_MODEL": str(served_model)})
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["policy"], row["campaigns"], row["work"]) == ("hand", 2, 1.0)
    assert {path.name for path in tmp_path.iterdir()} == {
        "campaigns", "simulation.md", "errors-0.05.svg", "done-0.05.svg"
    }  # fmt: skip
    refused = CliRunner().invoke(main, [*asked[:5], "--policies", "magic"])
    assert refused.exit_code == 2
    assert "expected policies among hand, check" in refused.stderr
