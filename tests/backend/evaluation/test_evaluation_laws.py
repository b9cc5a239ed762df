"""The laws that an evaluation judges by, and the parts of it that other processes or merged classes take part in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from backend.evaluation.collect import _group_laws, coverage_law, tails
from backend.evaluation.decoding import decode_files
from backend.evaluation.law_tables import class_laws
from backend.evaluation.merging import merge_classes
from backend.evaluation.run import Plan, _pieces, evaluate
from backend.evaluation.study import Study
from backend.tagger.loading import load_tagger
from conformal.evaluation import cut_points, head_sizes, within
from conformal.pairs import PairTable
from conformal.quantile import CalibrationScores, ScoreTable
from tests.support.paths import SAMPLE


@pytest.mark.parametrize(
    ("total", "n", "alpha", "k"), [(30, 19, "0.05", 19), (7, 149, "0.18", 123), (12, 40, "0.2", 33)]
)
def test_the_law_of_a_split_is_beta_binomial(total: int, n: int, alpha: str, k: int) -> None:
    found = coverage_law(total, n=n, alpha=alpha)
    np.testing.assert_allclose(found, stats.betabinom(total, k, n + 1 - k).pmf(np.arange(total + 1)), atol=1e-12)
    below, above = tails(found, total - 1)
    assert below == pytest.approx(1 - found[-1])
    assert above == pytest.approx(found[-2] + found[-1])
    assert coverage_law(3, n=5, alpha="0.05").tolist() == [0, 0, 0, 1]  # too few rows: open, certain to cover
    certain = coverage_law(1_000_000, n=1_000_000, alpha="0.05", infinite=True)  # as long as the counts, no longer
    assert (certain.sum(), certain[-1], certain.nbytes) == (1, 1, 8 * 1_000_001)


def test_a_language_is_judged_by_the_sum_of_its_pools() -> None:
    """Against simulated splits of two pools: calibrate, cover, add up."""
    rng = np.random.default_rng(0)
    sizes, n, alpha = (40, 25), (30, 60), "0.1"
    counts = sum(
        rng.binomial(m, rng.beta(k, each + 1 - k, 200_000)) for m, each, k in zip(sizes, n, (28, 55), strict=True)
    )
    laws = [
        {"cells": [f"de/{length}"], "covered": 0, "tasks": m, "n": each, "alpha": alpha, "infinite": False}
        for length, m, each in zip(("1-10", "11-20"), sizes, n, strict=True)
    ]
    shared = {"cells": ["fr/1-10", "it/1-10"], "covered": 1, "tasks": 9, "n": 90, "alpha": alpha, "infinite": False}
    laws.append(shared)
    for covered in (50, 55, 60):
        laws[0]["covered"] = covered - 20
        laws[1]["covered"] = 20
        (found,) = _group_laws(laws, "language")  # the pool of two languages is left out
        assert (found["group"], found["tasks"], found["covered"]) == ("de", 65, covered)
        assert found["below"] == pytest.approx(np.mean(counts <= covered), abs=0.006)
        assert found["above"] == pytest.approx(np.mean(counts >= covered), abs=0.006)
    assert {law["group"] for law in _group_laws(laws, "length")} == {"1-10", "11-20"}
    laws[0] |= {"infinite": True, "covered": 40}  # all of it for certain: the law is that of the other pool
    (found,) = _group_laws(laws[:2], "language")
    (alone,) = _group_laws(laws[1:2], "language")
    assert (found["below"], found["above"]) == pytest.approx((alone["below"], alone["above"]))
    assert not found["infinite"]


def test_sizes_by_doubling_steps_are_those_of_every_rank() -> None:
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 40, 300)
    scores = np.sort(rng.random((300, 40)), axis=1)
    table = ScoreTable.of(rng.random(50))
    pairs = PairTable.of_pairs(CalibrationScores.of(rng.random((50, 2))), share="0.3")
    for one in (table, pairs):
        values = scores if one is table else np.stack([scores, scores**2], axis=-1)
        cuts = np.repeat(cut_points(one, "0.2")[None], 300, axis=0)
        found = head_sizes(lambda rows, r, v=values, c=cuts: within(v[rows, r - 1], c[rows]), counts)  # type: ignore[misc]
        held = np.stack([one.contains(row, "0.2") for row in values]) & (np.arange(40) < counts[:, None])
        np.testing.assert_array_equal(found, held.sum(axis=1))


@pytest.fixture(scope="module")
def study(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    merged = merge_classes(load_tagger(tiny_model), "ENTITY")
    path = tmp_path_factory.mktemp("data") / "sample.conll"
    path.write_text("\n".join([SAMPLE.read_text().rstrip("\n") + "\n"] * 3))
    return Study(decode_files(merged, [path], cache=tmp_path_factory.mktemp("cache"), merge="ENTITY"))


def test_merged_classes_are_one(study: Study, tiny_model: Path, tmp_path: Path) -> None:
    plain = decode_files(load_tagger(tiny_model), [SAMPLE], cache=tmp_path)
    merged = study.decoded
    assert merged.classes == ("ENTITY",)
    size = len(plain)
    np.testing.assert_array_equal(merged["task.entities"][:size], plain["task.entities"])
    assert (merged["task.rank"][:size] == 1).mean() > 0.9  # the small model knows its own texts by heart
    assert set(merged["entity.label"].tolist()) == {0, 1}


def test_two_processes_give_what_one_gives(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ("nc1|strata", "spans|raps+nc1", "spans|nc1", "int. naive+nc1, Šidák")

    def few(given: Study, plan: Plan) -> dict[str, object]:
        return {name: work for name, work in _pieces(given, plan).items() if name in chosen}

    monkeypatch.setattr("backend.evaluation.run._pieces", few)
    plan = Plan(splits=2, alphas=("0.1",))
    alone = evaluate(study, plan, store=tmp_path / "one", key="k")
    told: list[tuple[str, int, int]] = []
    both = evaluate(study, plan, store=tmp_path / "two", key="k", jobs=2, progress=lambda *each: told.append(each))
    assert both == alone
    assert told[-1] == ("done", 4, 4)
    assert {record["method"] for record in alone["spans"]} == {"nc1, hierarchical", "raps+nc1, hierarchical"}
    for law in class_laws(alone, ["0.1"]):
        assert 0 <= law["below"] <= 1
        assert law["covered"] <= law["tasks"]
