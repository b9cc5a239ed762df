"""Frozen thresholds: pools, merged classes, bytes, and scored tasks."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.errors import (
    EmptyCalibration,
    InvalidArgument,
    InvalidLabels,
    InvalidScores,
    InvalidThresholds,
    UnknownStratum,
)
from conformal.labels import LabelSpace, Span
from conformal.quantile import ScoreTable
from conformal.rows import EntityRows, TaskRows, score_unit, task_rows
from conformal.scores import Boundary, Method
from conformal.strata import Strata
from conformal.subsequence import EntityMethod, score_spans
from conformal.thresholds import Thresholds, calibrate
from conformal.trellis import Potentials, entity_marginals, kbest, log_probability

CLASSES = ("PER", "LOC", "EVT")
CELLS = ("de/1-10", "de/11-20", "en/1-10", "en/41+", "seen", "empty")

task_lists = st.lists(
    st.tuples(st.sampled_from(CELLS), st.sampled_from([0.1, 0.5, 1.0, 2.5, np.inf])), min_size=1, max_size=40
)
entity_lists = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from([*CLASSES, "O"]), st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])),
    max_size=40,
)


def rows_of(tasks: list[tuple[str, float]]) -> TaskRows:
    return TaskRows.of([cell for cell, _ in tasks], [-score for _, score in tasks])


def entities_of(entities: list[tuple[int, str, float]]) -> EntityRows:
    return EntityRows.of(
        [t for t, _, _ in entities], [w for _, w, _ in entities], probability=[p for _, _, p in entities]
    )


@given(task_lists, entity_lists, st.integers(1, 12), st.randoms(use_true_random=False))
def test_bytes_depend_on_rows_only_and_come_back_bit_for_bit(
    tasks: list[tuple[str, float]], entities: list[tuple[int, str, float]], n_min: int, random: np.random.Generator
) -> None:
    made = calibrate(rows_of(tasks), entities_of(entities), classes=CLASSES, n_min=n_min)
    data = made.to_bytes()
    again = Thresholds.from_bytes(data)
    assert again.to_bytes() == data
    assert again.digest == made.digest
    shuffled_tasks, shuffled_entities = list(tasks), list(entities)
    random.shuffle(shuffled_tasks)
    random.shuffle(shuffled_entities)
    renumbered = {t: i for i, t in enumerate(random.sample(range(10), 10))}
    shuffled_entities = [(renumbered[t], w, p) for t, w, p in shuffled_entities]
    refit = calibrate(rows_of(shuffled_tasks), entities_of(shuffled_entities), classes=CLASSES, n_min=n_min)
    assert refit.to_bytes() == data
    for cell in CELLS:
        for alpha in ("0.05", "0.3", "0.77"):
            assert again.threshold(cell, alpha) == made.threshold(cell, alpha)
    for label in (*CLASSES, "O"):
        assert again.label_threshold(label, "0.3") == made.label_threshold(label, "0.3")
        assert again.label_pool(label) == made.label_pool(label)


@given(task_lists, st.integers(1, 12), st.sampled_from([*CELLS, "fr/1-10"]), st.sampled_from(["0.05", "0.2", "0.5"]))
def test_cells_are_answered_by_their_pool(tasks: list[tuple[str, float]], n_min: int, cell: str, alpha: str) -> None:
    made = calibrate(rows_of(tasks), classes=CLASSES, n_min=n_min)
    pool = Strata().pool_of(cell, Counter(c for c, _ in tasks), n_min=n_min)
    inside = [score for c, score in tasks if c in pool.cells]
    answer = made.pool(cell)
    assert answer.pool == pool
    assert answer.n == len(inside)
    expected = ScoreTable.of(inside).threshold(alpha) if pool.calibrated else np.inf
    assert made.threshold(cell, alpha) == expected
    if pool.calibrated and inside:
        assert answer.unreachable == pytest.approx(np.mean(np.isinf(inside)))


@given(entity_lists, st.integers(1, 8), st.sampled_from(CLASSES), st.sampled_from(["hierarchical", "pooled"]))
def test_classes_stand_alone_or_are_merged_with_the_candidate_counted(
    entities: list[tuple[int, str, float]], n_min: int, label: str, weights: str
) -> None:
    made = calibrate(
        rows_of([("en/1-10", 1.0)]),
        entities_of(entities),
        classes=CLASSES,
        n_min=50,
        entity_method=EntityMethod(weights=weights, n_min=n_min),
    )
    counts = {w: len({t for t, v, _ in entities if v == w}) for w in CLASSES}
    merged = {label} if counts[label] + 1 >= n_min else {w for w in CLASSES if counts[w] + (w == label) < n_min}
    rows = [(t, p) for t, v, p in entities if v in merged]
    tasks = Counter(t for t, _ in rows)
    pool = made.label_pool(label)
    assert set(pool.labels) == merged
    assert pool.n == len(tasks)
    assert pool.calibrated == (len(tasks) + 1 >= n_min)
    assert (label in made.uncalibrated) == (not pool.calibrated)
    if not pool.calibrated:
        assert made.label_threshold(label, "0.3") == np.inf
        return
    with np.errstate(divide="ignore"):
        scores = [-np.log(p) for _, p in rows]
    sizes = [tasks[t] for t, _ in rows]
    table = (
        ScoreTable.hierarchical(scores, np.array(sizes, np.int64))
        if weights == "hierarchical"
        else ScoreTable.of(scores)
    )
    for alpha in ("0.1", "0.3", "0.6"):
        assert made.label_threshold(label, alpha) == table.threshold(alpha)


def test_outside_is_never_merged() -> None:
    rows = entities_of([(t, "O", 0.9) for t in range(3)] + [(t, "PER", 0.5) for t in range(30)])
    made = calibrate(rows_of([("en/1-10", 1.0)]), rows, classes=CLASSES, n_min=10)
    assert made.uncalibrated == ("LOC", "EVT", "O")
    assert made.label_pool("O").n == 3
    assert made.label_pool("LOC").labels == ("LOC", "EVT")


def space_and_chain(length: int = 5) -> tuple[LabelSpace, Potentials]:
    space = LabelSpace(["PER", "LOC"])
    rng = np.random.default_rng(1)
    return space, Potentials(
        emissions=rng.normal(size=(length, 5)) * 2,
        transitions=np.where(space.allowed, 0.0, -np.inf),
        start=np.where(space.allowed_start, 0.0, -np.inf),
        end=np.zeros(5),
    )


def test_a_task_is_scored_as_a_labeling_and_by_entity() -> None:
    space, potentials = space_and_chain()
    best = kbest(potentials, 10**6, space=space)
    marginals = entity_marginals(potentials, space)
    for r in (0, 1, 17, 200):
        spans = space.spans(best.labels[r])
        found = score_unit(potentials, space, spans=spans, task=3, limit=10**6)
        assert found.rank == r + 1
        assert found.log_probability == best.log_probabilities[r] == log_probability(potentials, best.labels[r])
        assert found.cumulative == np.cumsum(np.exp(best.log_probabilities[: r + 1]))[-1]
        assert found.previous == (best.log_probabilities[r - 1] if r else 0.0)
        rows = found.entities
        assert set(rows.task.tolist()) == {3}
        for i, span in enumerate(spans):
            assert rows.labels[i] == span.label
            row = marginals.of_span(span.start, span.end)
            assert rows.scored.probability[i] == row[space.classes.index(span.label)]
            class_rank = score_spans([[*row, max(0.0, 1 - row.sum())]]).class_rank[0, space.classes.index(span.label)]
            assert rows.scored.class_rank[i] == class_rank
            assert 1 <= rows.rank[i] <= r + 1
        assert set(rows.labels[len(spans) :]) <= {"O"}
    assert score_unit(potentials, space, spans=space.spans(best.labels[200]), limit=100).rank == 0


def test_labels_out_of_reach_are_counted() -> None:
    space, potentials = space_and_chain()
    lost = score_unit(potentials, space, spans=[Span(0, 1, "PER")], lost=["LOC"])
    assert not lost.expressible
    assert (lost.log_probability, lost.rank) == (-np.inf, 0)
    assert lost.entities.labels.count("LOC") == 1
    at = lost.entities.labels.index("LOC")
    for name in ("nc1", "nc2", "nc3"):
        assert lost.entities.scored.scores(name)[at] == np.inf
        assert np.isfinite(lost.entities.scored.scores(name)[0])
    overlapping = score_unit(potentials, space, spans=[Span(0, 2, "PER"), Span(1, 3, "LOC")])
    assert not overlapping.expressible
    assert np.all(np.isfinite(overlapping.entities.scored.scores("nc1")))
    rows = task_rows(["en/1-10", "en/1-10"], [lost, overlapping])
    made = calibrate(rows, classes=space.classes, n_min=2)
    assert made.threshold("en/1-10", "0.4") == np.inf
    assert made.pool("en/1-10").unreachable == 1.0
    unknown_class = score_unit(potentials, space, spans=[Span(0, 1, "PER")], inexpressible=True)
    assert not unknown_class.expressible
    assert np.isfinite(unknown_class.entities.scored.scores("nc1")[0])
    top = score_unit(potentials, space, spans=[Span(0, 1, "PER")], top_k=5)
    assert 0 < top.mass < 1
    nothing = score_unit(space_and_chain(0)[1], space, spans=[])
    assert (nothing.log_probability, nothing.rank, len(nothing.entities)) == (0.0, 1, 0)


@pytest.mark.parametrize(
    "method", [Method("nc2"), Method("nc3", Boundary.SMOOTHED), Method("nc1", Boundary.PAPER, top_k=50)]
)
def test_any_method_survives_storage(method: Method) -> None:
    rng = np.random.default_rng(0)
    rows = TaskRows.of(
        ["en/1-10"] * 50,
        -rng.exponential(size=50),
        rank=rng.integers(0, 9, 50),
        cumulative=rng.random(50),
        mass=np.full(50, 0.9),
        u=rng.random(50),
    )
    entity = EntityMethod("nc3", "pooled", 0.02, 7, 50)
    strata = Strata(lengths=(10, 50), entities=(1, 2))
    with pytest.raises(UnknownStratum):
        calibrate(rows, classes=CLASSES, method=method, strata=strata)
    made = calibrate(rows, classes=CLASSES, method=method, entity_method=entity, n_min=20)
    back = Thresholds.from_bytes(made.to_bytes())
    assert (back.method, back.entity_method, back.strata, back.classes) == (method, entity, Strata(), CLASSES)
    assert back.threshold("en/1-10", "0.1") == made.threshold("en/1-10", "0.1")


def test_every_level_is_answered_exactly() -> None:
    scores = np.random.default_rng(2).exponential(size=149)
    made = calibrate(TaskRows.of(["en/1-10"] * 149, -scores), classes=CLASSES)
    for text in ("0.18", "0.05", "0.5", "0.99"):
        k = -((-(1 - Fraction(text)) * 150) // 1)
        assert made.threshold("en/1-10", text) == np.sort(scores)[int(k) - 1]
    assert made.n == 149


def test_rows_are_taken_joined_and_relabelled() -> None:
    rows = rows_of([("en/1-10", 1.0), ("de/1-10", 2.0), ("en/1-10", 3.0)])
    assert rows.cells == ("en/1-10", "de/1-10", "en/1-10")
    assert rows.take([2, 1]).cells == ("en/1-10", "de/1-10")
    assert rows.take(np.array([True, False, False])).ranks.log_probability.tolist() == [-1.0]
    assert rows.with_cells(["seen", "empty", "seen"]).cells == ("seen", "empty", "seen")
    first, second = entities_of([(0, "PER", 0.5), (0, "O", 0.9)]), entities_of([(1, "EVT", 0.25)])
    joined = EntityRows.join([first, second])
    assert joined.labels == ("PER", "O", "EVT")
    assert joined.task.tolist() == [0, 0, 1]
    assert joined.take([2]).labels == ("EVT",)
    assert joined.with_tasks([5, 6, 7]).task.tolist() == [5, 6, 7]
    assert len(EntityRows.join([])) == 0


def test_bad_input_is_refused() -> None:
    good = rows_of([("en/1-10", 1.0)])
    with pytest.raises(EmptyCalibration, match="at least one calibration row"):
        calibrate(rows_of([]), classes=CLASSES)
    assert calibrate(rows_of([]), classes=CLASSES, allow_empty=True).threshold("en/1-10", "0.5") == np.inf
    with pytest.raises(UnknownStratum):
        calibrate(rows_of([("nowhere", 1.0)]), classes=CLASSES)
    with pytest.raises(UnknownStratum):
        calibrate(good, classes=CLASSES).threshold("en/3-4", "0.1")
    with pytest.raises(InvalidLabels, match="'XXX'"):
        calibrate(good, entities_of([(0, "XXX", 0.5)]), classes=CLASSES)
    with pytest.raises(InvalidLabels, match="'XXX'"):
        calibrate(good, classes=CLASSES).label_threshold("XXX", "0.1")
    with pytest.raises(InvalidArgument, match="n_min"):
        calibrate(good, classes=CLASSES, n_min=0)
    with pytest.raises(InvalidArgument, match="alpha"):
        calibrate(good, classes=CLASSES).threshold("en/1-10", "1.0")
    with pytest.raises(InvalidScores, match="NaN"):
        rows_of([("en/1-10", np.nan)])
    with pytest.raises(InvalidScores, match="at most 0"):
        rows_of([("en/1-10", -0.5)])
    with pytest.raises(InvalidScores, match="cumulative and class_rank"):
        calibrate(good, entities_of([(0, "PER", 0.5)]), classes=CLASSES, entity_method=EntityMethod("nc2"))
    with pytest.raises(InvalidArgument, match="expected u"):
        calibrate(good, classes=CLASSES, method=Method("nc3", Boundary.SMOOTHED))
    with pytest.raises(InvalidScores, match="2 values of log_probability"):
        TaskRows.of(["a", "b"], [-1.0])
    with pytest.raises(InvalidScores, match="ranks"):
        TaskRows.of(["a"], [-1.0], rank=[-1])
    with pytest.raises(InvalidScores, match="between 0 and 1"):
        entities_of([(0, "PER", 1.5)])
    with pytest.raises(InvalidScores, match="task numbers"):
        EntityRows.of([0, 1], ["PER"], probability=[0.5])
    with pytest.raises(InvalidScores, match="1 task numbers"):
        entities_of([(0, "PER", 0.5)]).with_tasks([1, 2])
    with pytest.raises(InvalidArgument, match="one cell per row"):
        good.with_cells([])
    with pytest.raises(InvalidScores, match="ranks of classes and labelings"):
        EntityRows.of([0], ["PER"], probability=[0.5], class_rank=[1, 2])
    with pytest.raises(InvalidArgument, match="one cell per unit"):
        task_rows(["a"], [])
    space, potentials = space_and_chain()
    with pytest.raises(InvalidLabels):
        score_unit(potentials, space, spans=[Span(0, 1, "XXX")])
    with pytest.raises(InvalidLabels, match="inside"):
        score_unit(potentials, space, spans=[Span(3, 9, "PER")])


def test_damaged_bytes_are_refused() -> None:
    made = calibrate(rows_of([("en/1-10", 1.0), ("en/1-10", 2.0)]), entities_of([(0, "PER", 0.5)]), classes=CLASSES)
    document = json.loads(made.to_bytes())
    for data in (b"\xff", b"[]", b"{}", json.dumps({**document, "version": 2}).encode()):
        with pytest.raises(InvalidThresholds):
            Thresholds.from_bytes(data)
    unsorted = {"en/1-10": document["cells"]["en/1-10"][::-1]}
    for change in (
        {"cells": {"en/1-10": "%%"}},
        {"cells": {"xx": ""}},
        {"cells": unsorted},
        {"cells": {"en/1-10": "AAAA"}},
        {"labels": {}},
        {"labels": {**document["labels"], "PER": {"scores": "", "sizes": document["labels"]["PER"]["sizes"]}}},
        {"rare": {**document["rare"], "task": ""}},
        {"method": {"name": "nc9"}},
        {"classes": []},
        {"strata": None},
    ):
        with pytest.raises(InvalidThresholds):
            Thresholds.from_bytes(json.dumps({**document, **change}).encode())
