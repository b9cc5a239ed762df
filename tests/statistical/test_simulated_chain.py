"""A chain whose truth is known: labels are drawn from the model itself, scored and predicted through the trellis.

The rows are fixed once drawn. Over random choices of n calibration rows and one test row from them, the coverage of
continuous scores is exactly k/(n+1), whatever the rows are; so 2 * 10^5 choices measure the whole pipeline closely.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np
import pytest

from conformal.labels import LabelSpace
from conformal.metrics import split_entity_coverage
from conformal.prediction import predict_set
from conformal.quantile import StackedTable
from conformal.rows import EntityRows, TaskRows, UnitScores, score_unit, task_rows
from conformal.scores import Boundary, Method, Ranks, hash_u
from conformal.strata import Strata
from conformal.subsequence import EntityMethod
from conformal.thresholds import calibrate
from conformal.trellis import Chain, Potentials, kbest

SPACE = LabelSpace(["PER", "LOC"])
TASKS = 3000
N = 99
LEVELS = ("0.2", "0.1", "0.05", "0.025", "0.01")


class Simulation:
    def __init__(self) -> None:
        rng = np.random.default_rng(42)
        L = len(SPACE)
        chain = Chain(
            transitions=np.where(SPACE.allowed, rng.normal(0, 0.5, (L, L)), -np.inf),
            start=np.where(SPACE.allowed_start, 0.0, -np.inf),
            end=np.zeros(L),
        )
        self.potentials: list[Potentials] = []
        self.truth: list[np.ndarray] = []
        self.scores: list[UnitScores] = []
        for task in range(TASKS):
            length = int(rng.integers(1, 7))
            emissions = rng.normal(0, 1.6, (length, L))
            emissions[:, 0] += 1.5
            p = chain.potentials(emissions)
            everything = kbest(p, 10**6)
            assert everything.exhausted
            shares = np.exp(everything.log_probabilities)
            assert shares.sum() == pytest.approx(1.0, abs=1e-9)
            labels = everything.labels[rng.choice(shares.size, p=shares / shares.sum())]
            self.potentials.append(p)
            self.truth.append(labels)
            self.scores.append(score_unit(p, SPACE, spans=SPACE.spans(labels), task=task, limit=10**6))
        self.u = np.array([hash_u("s", task) for task in range(TASKS)])
        self.rows = task_rows(["en/1-10"] * TASKS, self.scores, u=self.u)
        self.entities = EntityRows.join([scores.entities for scores in self.scores])
        self.order = np.concatenate(
            [
                rng.permutation(TASKS)[: TASKS // (N + 1) * (N + 1)].reshape(-1, N + 1)
                for _ in range(200_000 * 100 // TASKS + 1)
            ]
        )  # (R, n + 1): disjoint blocks of one permutation after the other


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return Simulation()


@pytest.mark.parametrize("name", ["nc1", "nc2", "nc3"])
def test_full_sequence_coverage_at_five_levels(simulation: Simulation, name: str) -> None:
    assert len(simulation.order) >= 200_000
    assert all(scores.expressible and scores.rank for scores in simulation.scores)
    for boundary in (Boundary.INCLUDE, Boundary.SMOOTHED):
        method = Method(name, boundary, 10**6)
        scores = method.scores(simulation.rows.ranks, u=simulation.u)[simulation.order]  # (R, n + 1)
        rng = np.random.default_rng(1)
        table, test, u = StackedTable(scores[:, :-1]), scores[:, -1], rng.random(len(scores))
        for alpha in LEVELS:
            target = 1 - float(Fraction(alpha))
            share = method.members(test, table, alpha, u=u).mean()
            print(f"{name} {boundary.value}: target {target:.3f}, covered {share:.4f} of {len(test)}")
            if boundary is Boundary.SMOOTHED:
                assert abs(share - target) <= 1 / (N + 1), (alpha, share)
            elif name == "nc1":
                assert share == pytest.approx(ceil((1 - Fraction(alpha)) * (N + 1)) / (N + 1), abs=0.004)
            else:
                assert share >= target - 0.004, (alpha, share)


def test_class_coverage_at_five_levels(simulation: Simulation) -> None:
    for name, splits in (("nc1", 120), ("nc2", 20), ("nc3", 20)):
        found = split_entity_coverage(
            simulation.entities,
            tasks=TASKS,
            classes=SPACE.classes,
            alphas=LEVELS,
            rng=np.random.default_rng(2),
            method=EntityMethod(name),
            splits=splits,
        )
        targets = np.array([1 - float(Fraction(alpha)) for alpha in LEVELS])[:, None]
        error = 4.5 * found.by_task.std(axis=0) / np.sqrt(splits)  # splits are independent given the rows
        mean = found.by_task.mean(axis=0)  # (levels, PER LOC O)
        for alpha, row in zip(LEVELS, mean, strict=True):
            shares = ", ".join(f"{label} {share:.4f}" for label, share in zip(found.labels, row, strict=True))
            print(f"{name}_ent hierarchical: target {1 - float(alpha):.3f}, {shares}")
        assert np.all(mean >= targets - error), (name, mean)
        if name == "nc1":
            assert np.all(mean <= targets + 0.01 + error), mean


def test_predicted_sets_hold_the_mass_they_promise(simulation: Simulation) -> None:
    """Truth is drawn from the model, so a set's exact chance to cover is the mass of its members."""
    half = TASKS // 2
    for method in (Method("nc1"), Method("nc2", limit=10**6), Method("nc3", limit=10**6)):
        thresholds = calibrate(
            simulation.rows.take(np.arange(half)), classes=SPACE.classes, method=method, strata=Strata()
        )
        for alpha in ("0.2", "0.05"):
            masses, hits = [], []
            for task in range(half, half + 300):
                made = predict_set(
                    simulation.potentials[task],
                    SPACE,
                    stratum="en/1-10",
                    thresholds=thresholds,
                    alpha=alpha,
                    max_shown=10**6,
                )
                members = [labeling for labeling in made.labelings if labeling.member]
                assert not made.open
                assert len(members) == made.set_size
                masses.append(sum(labeling.probability for labeling in members))
                truth = tuple(SPACE.decode(simulation.truth[task]))
                hit = any(labeling.labels == truth for labeling in members)
                score = method.scores(Ranks(*[column[[task]] for column in _columns(simulation.rows)]))[0]
                assert hit == (score <= thresholds.threshold("en/1-10", alpha))  # what is listed is what is scored
                hits.append(hit)
            target = 1 - float(Fraction(alpha))
            assert np.mean(masses) >= target - 4.5 * np.std(masses) / np.sqrt(300) - 0.02
            assert np.mean(hits) == pytest.approx(np.mean(masses), abs=4.5 * np.sqrt(0.25 / 300))


def _columns(rows: TaskRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rows.ranks.log_probability, rows.ranks.rank, rows.ranks.cumulative
