"""Coverage over splits: counts, strata, laws."""

from __future__ import annotations

import numpy as np
import pytest

from conformal.errors import EmptyCalibration, InvalidArgument
from conformal.metrics import covers, split_coverage, split_entity_coverage
from conformal.rows import EntityRows, TaskRows
from conformal.scores import Boundary, Method
from conformal.strata import Strata
from conformal.subsequence import EntityMethod
from conformal.thresholds import calibrate

RNG = np.random.default_rng(0)
CELLS = np.array(["en/1-10", "en/41+", "ru/1-10", "ru/41+"])[RNG.integers(0, 4, 4000)]
HARD = np.array([{"en/1-10": 1.0, "en/41+": 3.0, "ru/1-10": 2.0, "ru/41+": 9.0}[cell] for cell in CELLS])
RANK = 1 + RNG.geometric(0.7, 4000)
LOGS = -RNG.exponential(size=4000) * HARD
ROWS = TaskRows.of(
    CELLS.tolist(),
    LOGS,
    rank=RANK,
    cumulative=np.minimum(1.0, np.exp(LOGS) * RANK),
    previous=LOGS * 0.5,
    u=RNG.random(4000),
)


def test_strata_repair_what_one_threshold_breaks() -> None:
    rng = np.random.default_rng(1)
    alphas = ("0.1", "0.05")
    groups = [cell.split("/")[0] for cell in ROWS.cells]
    flat = split_coverage(ROWS, alphas=alphas, rng=rng, groups=ROWS.cells, splits=10)
    assert flat.groups == ("en/1-10", "en/41+", "ru/1-10", "ru/41+")
    assert flat.mean[0, 0] > 0.97
    assert flat.mean[0, 3] < 0.8
    repaired = split_coverage(ROWS, alphas=alphas, rng=rng, strata=Strata(), splits=10)
    assert np.all(np.abs(repaired.mean - [[0.9], [0.95]]) < 0.02)
    for split in range(10):
        assert np.nanmin(repaired.below(split)) > 1e-5
    assert np.nanmin(flat.below(0)) < 1e-6
    by_language = split_coverage(ROWS, alphas=alphas, rng=rng, strata=Strata(), groups=groups, splits=3)
    assert np.all(by_language.n == 0)  # several pools answered
    assert np.all(np.isnan(by_language.below(0)))
    assert by_language.total.sum(axis=1).tolist() == [2000] * 3
    assert repaired.spread.shape == (2, 4)
    assert repaired.open.sum() == 0


def test_every_boundary_rule_is_judged_row_by_row() -> None:
    thresholds = {
        boundary: calibrate(ROWS.take(np.arange(2000)), classes=["X"], method=Method("nc1", boundary))
        for boundary in Boundary
    }
    test = ROWS.take(np.arange(2000, 4000))
    found = {boundary: covers(made, test, "0.1") for boundary, made in thresholds.items()}
    assert np.all(found[Boundary.EARLY].covered <= found[Boundary.INCLUDE].covered)
    assert np.all(found[Boundary.EARLY].covered <= found[Boundary.PAPER].covered)
    assert np.all(found[Boundary.PAPER].covered <= found[Boundary.FULL].covered)
    include = found[Boundary.INCLUDE]
    made = thresholds[Boundary.INCLUDE]
    expected = [
        -log <= made.threshold(cell, "0.1") for cell, log in zip(test.cells, test.ranks.log_probability, strict=True)
    ]
    assert include.covered.tolist() == expected
    assert include.n.tolist() == [made.pool(cell).n for cell in test.cells]
    for name in ("nc2", "nc3"):
        rng = np.random.default_rng(2)
        for boundary in Boundary:
            share = split_coverage(
                ROWS, alphas=["0.2"], rng=rng, method=Method(name, boundary), groups=["all"] * 4000, splits=2
            ).mean
            assert 0.0 <= share[0, 0] <= 1.0


def test_small_groups_are_open() -> None:
    rows = TaskRows.of(["en/1-10"] * 30 + ["seen"] * 30, -RNG.exponential(size=60))
    found = split_coverage(rows, alphas=["0.1"], rng=np.random.default_rng(0), strata=Strata(), splits=2)
    assert np.array_equal(found.open[:, 0, :], found.total)
    assert np.array_equal(found.covered[:, 0, :], found.total)


def test_entities_are_covered_per_class() -> None:
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 5, 1500)
    task = np.repeat(np.arange(1500), sizes)
    hard = rng.random(1500)[task]
    labels = np.array(["PER", "LOC", "O"])[rng.integers(0, 3, task.size)]
    rows = EntityRows.of(task, labels.tolist(), probability=np.clip(hard * rng.random(task.size) ** 0.2, 0, 1))
    for weights in ("hierarchical", "pooled"):
        found = split_entity_coverage(
            rows,
            tasks=1500,
            classes=["PER", "LOC"],
            alphas=["0.1"],
            rng=rng,
            method=EntityMethod(weights=weights),
            splits=10,
        )
        assert found.labels == ("PER", "LOC", "O")
        assert np.all(np.abs(found.by_task.mean(axis=0) - 0.9) < 0.02)
        assert np.all(np.abs(found.by_entity.mean(axis=0) - 0.9) < 0.02)
    lonely = EntityRows.of([0, 1], ["PER", "PER"], probability=[0.5, 0.6])
    found = split_entity_coverage(lonely, tasks=2, classes=["PER"], alphas=["0.1"], rng=rng, splits=1)
    assert found.by_task[0, 0, 0] == 1.0  # uncalibrated: open
    assert np.isnan(found.by_task[0, 0, 1])


def test_bad_input_is_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidArgument, match="share"):
        split_coverage(ROWS, alphas=["0.1"], rng=rng, share=1.0)
    with pytest.raises(EmptyCalibration, match="both sides"):
        split_coverage(ROWS.take([0]), alphas=["0.1"], rng=rng)
    with pytest.raises(InvalidArgument, match="one group per row"):
        split_coverage(ROWS, alphas=["0.1"], rng=rng, groups=["a"])
