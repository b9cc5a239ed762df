"""Thresholds from rows that were selected with known, different probabilities (METHODS 3.7)."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.errors import InvalidArgument, InvalidScores, InvalidThresholds
from conformal.quantile import ScoreTable, effective_sample_size
from conformal.rows import EntityRows, TaskRows
from conformal.scores import Method
from conformal.subsequence import EntityMethod
from conformal.thresholds import Thresholds, calibrate

CLASSES = ("PER", "LOC")
CELLS = ("de/1-10", "en/1-10", "en/41+")

weighted_tasks = st.lists(
    st.tuples(st.sampled_from(CELLS), st.sampled_from([0.1, 0.5, 2.5, np.inf]), st.sampled_from([1.0, 5.0, 10.0, 0.3])),
    min_size=1,
    max_size=30,
)
entity_lists = st.lists(
    st.tuples(st.integers(0, 29), st.sampled_from([*CLASSES, "O"]), st.sampled_from([0.0, 0.1, 0.9, 1.0])), max_size=30
)


def rows_of(tasks: list[tuple[str, float, float]], *, weights: bool = True) -> TaskRows:
    return TaskRows.of(
        [cell for cell, _, _ in tasks],
        [-score for _, score, _ in tasks],
        weight=[weight for _, _, weight in tasks] if weights else None,
    )


def entities_of(entities: list[tuple[int, str, float]], count: int) -> EntityRows:
    kept = [(t % count, w, p) for t, w, p in entities]
    return EntityRows.of([t for t, _, _ in kept], [w for _, w, _ in kept], probability=[p for _, _, p in kept])


@given(weighted_tasks, entity_lists, st.integers(1, 6), st.sampled_from([0.7, 1.0, 3.0]))
def test_equal_weights_change_no_byte(
    tasks: list[tuple[str, float, float]], entities: list[tuple[int, str, float]], n_min: int, weight: float
) -> None:
    alike = [(cell, score, weight) for cell, score, _ in tasks]
    rows = entities_of(entities, len(tasks))
    plain = calibrate(rows_of(tasks, weights=False), rows, classes=CLASSES, n_min=n_min)
    assert calibrate(rows_of(alike), rows, classes=CLASSES, n_min=n_min).to_bytes() == plain.to_bytes()
    assert json.loads(plain.to_bytes())["version"] == 1


@given(weighted_tasks, entity_lists, st.integers(1, 6), st.randoms(use_true_random=False))
def test_weighted_bytes_depend_on_rows_only_and_come_back(
    tasks: list[tuple[str, float, float]],
    entities: list[tuple[int, str, float]],
    n_min: int,
    random: np.random.Generator,
) -> None:
    made = calibrate(rows_of(tasks), entities_of(entities, len(tasks)), classes=CLASSES, n_min=n_min)
    data = made.to_bytes()
    again = Thresholds.from_bytes(data)
    assert again.to_bytes() == data
    order = random.sample(range(len(tasks)), len(tasks))
    moved = [(order.index(t % len(tasks)), w, p) for t, w, p in entities]
    random.shuffle(moved)
    other = calibrate(rows_of([tasks[i] for i in order]), entities_of(moved, len(tasks)), classes=CLASSES, n_min=n_min)
    assert other.to_bytes() == data
    for cell in CELLS:
        assert again.threshold(cell, "0.3") == made.threshold(cell, "0.3")
    for label in (*CLASSES, "O"):
        assert again.label_threshold(label, "0.3") == made.label_threshold(label, "0.3")


@given(weighted_tasks, st.sampled_from(["0.1", "0.3", "0.6"]))
def test_a_pool_answers_with_the_weighted_quantile_and_the_greatest_test_weight(
    tasks: list[tuple[str, float, float]], alpha: str
) -> None:
    made = calibrate(rows_of(tasks), classes=CLASSES, n_min=1)
    greatest = max(weight for _, _, weight in tasks)
    for cell in {cell for cell, _, _ in tasks}:
        here = [(score, weight) for name, score, weight in tasks if name == cell]
        mass = sum(weight for _, weight in here) + greatest
        reached = [t for t, _ in here if sum(w for s, w in here if s <= t) >= (1 - float(alpha)) * mass * (1 - 1e-12)]
        found = made.threshold(cell, alpha)
        assert found == pytest.approx(min(reached, default=np.inf))
        assert made.effective_n(cell) == pytest.approx(effective_sample_size([w for _, w in here]))


def test_classes_weigh_an_entity_by_its_task_over_their_number() -> None:
    tasks = TaskRows.of(["en/1-10"] * 3, [-1.0] * 3, weight=[1.0, 4.0, 2.0])
    entities = EntityRows.of([0, 0, 1, 2], ["PER"] * 4, probability=[0.9, 0.8, 0.5, 0.1])
    made = calibrate(tasks, entities, classes=CLASSES, n_min=1)
    scores = -np.log([0.9, 0.8, 0.5, 0.1])
    expected = ScoreTable.weighted(scores, [0.5, 0.5, 4.0, 2.0], test_weight=4.0)
    for alpha in ("0.2", "0.4", "0.5", "0.6", "0.9"):
        assert made.label_threshold("PER", alpha) == expected.threshold(alpha)
    pooled = calibrate(tasks, entities, classes=CLASSES, n_min=1, entity_method=EntityMethod(weights="pooled"))
    assert pooled.label_threshold("PER", "0.6") == ScoreTable.weighted(
        scores, [1.0, 1.0, 4.0, 2.0], test_weight=4.0
    ).threshold("0.6")


def test_rare_classes_are_merged_with_their_weights() -> None:
    tasks = TaskRows.of(["en/1-10"] * 4, [-1.0] * 4, weight=[1.0, 4.0, 2.0, 1.0])
    entities = EntityRows.of([0, 1, 1, 2], ["PER", "PER", "LOC", "LOC"], probability=[0.9, 0.8, 0.5, 0.1])
    made = calibrate(tasks, entities, classes=CLASSES, n_min=4)
    pool = made.label_pool("PER")
    assert (pool.name, pool.n, pool.calibrated) == ("PER+LOC", 3, True)
    expected = ScoreTable.weighted(-np.log([0.9, 0.8, 0.5, 0.1]), [1.0, 2.0, 2.0, 2.0], test_weight=4.0)
    assert [pool.table.threshold(a) for a in ("0.3", "0.5", "0.8")] == [
        expected.threshold(a) for a in ("0.3", "0.5", "0.8")
    ]


def test_methods_with_two_thresholds_take_weights_too() -> None:
    rng = np.random.default_rng(3)
    rank = rng.integers(1, 9, 200)
    logs = -rng.exponential(size=200)
    weight = rng.choice([1.0, 10.0], 200)
    for name in ("naive+nc1", "conditional_paper+nc1", "raps+nc1"):
        rows = TaskRows.of(["en/1-10"] * 200, logs, rank=rank, cumulative=np.full(200, 0.5), weight=weight)
        made = calibrate(rows, classes=CLASSES, method=Method(name), n_min=10)
        plain = calibrate(
            TaskRows.of(["en/1-10"] * 200, logs, rank=rank, cumulative=np.full(200, 0.5)),
            classes=CLASSES, method=Method(name), n_min=10,
        )  # fmt: skip
        assert made.weights
        assert Thresholds.from_bytes(made.to_bytes()).threshold("en/1-10", "0.2") == made.threshold("en/1-10", "0.2")
        assert made.threshold("en/1-10", "0.2") != plain.threshold("en/1-10", "0.2")


def test_bad_weights_are_refused() -> None:
    rows = TaskRows.of(["en/1-10"] * 2, [-1.0, -2.0], weight=[1.0, 0.0])
    with pytest.raises(InvalidArgument, match="weights above 0"):
        calibrate(rows, classes=CLASSES)
    good = TaskRows.of(["en/1-10"] * 2, [-1.0, -2.0], weight=[1.0, 2.0])
    with pytest.raises(InvalidScores, match="task of every entity row"):
        calibrate(good, EntityRows.of([7], ["PER"], probability=[0.5]), classes=CLASSES)
    document = json.loads(calibrate(good, classes=CLASSES).to_bytes())
    assert document["version"] == 2
    document["weights"]["en/1-10"] = ""
    with pytest.raises(InvalidThresholds, match="2 weights above 0"):
        Thresholds.from_bytes(json.dumps(document).encode())
