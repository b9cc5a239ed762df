"""Units: a text cut at its sentences, thresholds that count tasks, and the product of the units' sets (METHODS 10)."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.errors import InvalidArgument, InvalidScores, InvalidThresholds
from conformal.labels import LabelSpace, Span
from conformal.metrics import covers
from conformal.prediction import PredictionSet, RankedLabeling, predict_set
from conformal.quantile import ScoreTable
from conformal.rows import EntityRows, TaskRows, score_unit
from conformal.scores import Method
from conformal.thresholds import Thresholds, calibrate
from conformal.trellis import Chain, Potentials, kbest, log_probability
from conformal.units import SEVERAL, best_products, cut_units, join_units, unit_bounds

SPACE = LabelSpace(["PER", "LOC"])
CHAIN = Chain(
    transitions=np.where(SPACE.allowed, 0.3, -np.inf),
    start=np.where(SPACE.allowed_start, 0.1, -np.inf),
    end=np.linspace(-0.2, 0.2, 5),
)
CELLS = ("en/1-10", "en/11-20", "en/21-30")

falling = st.lists(st.floats(-5, 0), min_size=1, max_size=4).map(lambda values: sorted(values, reverse=True))


def text(length: int, boundaries: tuple[int, ...], *, seed: int = 0) -> Potentials:
    rng = np.random.default_rng(seed)
    return CHAIN.potentials(rng.normal(size=(length, 5)), boundaries=boundaries)


def rows(tasks: list[list[tuple[str, float]]], order: np.ndarray | None = None) -> TaskRows:
    """Rows of tasks, each a list of (cell, score) of its units."""
    flat = [(task, unit, cell, score) for task, units in enumerate(tasks) for unit, (cell, score) in enumerate(units)]
    flat = flat if order is None else [flat[i] for i in order.tolist()]
    return TaskRows.of(
        [cell for _, _, cell, _ in flat],
        [-score for _, _, _, score in flat],
        task=[task for task, _, _, _ in flat],
        unit=[unit for _, unit, _, _ in flat],
    )


@given(st.integers(1, 9), st.sets(st.integers(1, 8)), st.integers(0, 5))
def test_a_labelings_probability_is_the_product_of_its_units(length: int, cuts: set[int], seed: int) -> None:
    boundaries = tuple(sorted(j for j in cuts if j < length))
    whole = text(length, boundaries, seed=seed)
    parts = cut_units(whole)
    bounds = unit_bounds(length, boundaries)
    assert [part.length for part in parts] == [end - start for start, end in bounds]
    best = kbest(whole, 5)
    for labels, log_p in zip(best.labels, best.log_probabilities, strict=True):
        each = [log_probability(part, labels[a:b]) for part, (a, b) in zip(parts, bounds, strict=True)]
        assert sum(each) == pytest.approx(log_p, abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_merged_lists_are_the_ranked_list_of_the_whole(seed: int) -> None:
    whole = text(9, (2, 3, 6), seed=seed)
    lists = [kbest(part, 10**5) for part in cut_units(whole)]
    ranked = kbest(whole, 200)
    merged = list(islice(best_products([each.log_probabilities.tolist() for each in lists]), 200))
    assert [total for total, _ in merged] == pytest.approx(ranked.log_probabilities.tolist(), abs=1e-9)
    for rank, (_, choice) in enumerate(merged[:20]):
        picked = dict(choice)
        labels = np.concatenate([each.labels[picked.get(i, 0)] for i, each in enumerate(lists)])
        assert log_probability(whole, labels) == pytest.approx(float(ranked.log_probabilities[rank]), abs=1e-9)


@given(st.lists(falling, min_size=1, max_size=4))
def test_products_come_best_first_and_each_once(lists: list[list[float]]) -> None:
    found = list(best_products(lists))
    everything = sorted((sum(values) for values in product(*lists)), reverse=True)
    assert [total for total, _ in found] == pytest.approx(everything, abs=1e-9)
    assert len({choice for _, choice in found}) == len(everything)
    for total, choice in found:
        picked = dict(choice)
        assert sum(values[picked.get(i, 0)] for i, values in enumerate(lists)) == pytest.approx(total, abs=1e-9)


def test_products_of_many_lists_cost_little() -> None:
    lists = [[0.0, -1.0 - i / 1e4] for i in range(10_000)]
    assert [choice for _, choice in islice(best_products(lists), 3)] == [(), ((0, 1),), ((1, 1),)]
    with pytest.raises(InvalidArgument, match="at least one element"):
        next(best_products([[0.0], []]))


def one(spans: tuple[Span, ...], rank: int, log_p: float, *, member: bool = True, p: float = 0.5) -> RankedLabeling:
    return RankedLabeling(rank, ("O",) * 3, spans, log_p, p, member)


def unit(*labelings: RankedLabeling, size: int | None, stratum: str = "en/1-10", n: int = 120) -> PredictionSet:
    return PredictionSet(
        stratum, stratum, n, "0.1", 1.0, size is None, size, 0.0, labelings, (), ("PER",), (), False, ()
    )


def test_a_texts_set_is_the_product_of_its_units() -> None:
    person = Span(0, 1, "PER")
    first = unit(one((person,), 1, -0.1), one((), 2, -2.5, p=0.2), size=2)
    second = unit(one((), 1, -0.3), one((person,), 2, -1.0), one((Span(1, 2, "LOC"),), 3, -4.0), size=3, n=90)
    joined = join_units([(0, 3), (3, 6)], [first, second], max_shown=4)
    assert joined.set_size == 6
    assert [each.rank for each in joined.labelings] == [1, 2, 3, 4]
    assert [round(each.log_probability, 9) for each in joined.labelings] == [-0.4, -1.1, -2.8, -3.5]
    assert joined.labelings[1].spans == (person, Span(3, 4, "PER"))
    assert [each.p_value for each in joined.labelings] == [0.5, 0.5, 0.2, 0.2]
    assert (joined.n, joined.stratum, joined.open, joined.empty) == (90, "en/1-10", False, False)


def test_an_empty_unit_shows_its_best_and_an_open_one_opens_the_product() -> None:
    person = Span(0, 1, "PER")
    empty = unit(one((person,), 1, -3.0, member=False), size=0, stratum="en/11-20")
    sound = unit(one((), 1, -0.1), one((person,), 2, -2.0), size=2)
    joined = join_units([(0, 3), (3, 6)], [empty, sound])
    assert (joined.set_size, joined.empty, joined.stratum) == (2, True, SEVERAL)
    assert [each.member for each in joined.labelings] == [False, False]
    opened = join_units([(0, 3), (3, 6)], [unit(one((), 1, -1.0), size=None), sound])
    assert (opened.open, opened.set_size, opened.set_size_log10) == (True, None, None)
    many = join_units([(i, i + 1) for i in range(400)], [unit(one((), 1, -0.1), size=10)] * 400)
    assert many.set_size == 10**400
    assert many.set_size_log10 == pytest.approx(400)
    with pytest.raises(InvalidArgument, match="2 units"):
        join_units([(0, 1), (1, 2)], [sound])


def test_thresholds_of_one_unit_tasks_are_what_they_were() -> None:
    rng = np.random.default_rng(3)
    cells = [CELLS[i] for i in rng.integers(0, 3, 90).tolist()]
    logs = -rng.exponential(size=90)
    plain = calibrate(TaskRows.of(cells, logs), classes=["PER"], n_min=20)
    units = calibrate(TaskRows.of(cells, logs, task=np.arange(90), unit=np.zeros(90, int)), classes=["PER"], n_min=20)
    assert plain.to_bytes() == units.to_bytes()


def test_a_task_weighs_one_however_many_units_it_has() -> None:
    tasks = [[(CELLS[0], 1.0)] * 4, [(CELLS[0], 2.0)], [(CELLS[0], 3.0), (CELLS[0], 5.0)]]
    made = calibrate(rows(tasks), classes=["PER"], n_min=2)
    pool = made.pool(CELLS[0])
    assert (pool.n, made.n, made.counts) == (3, 3, {CELLS[0]: 3})
    by_hand = ScoreTable.hierarchical([1.0] * 4 + [2.0, 3.0, 5.0], [4, 4, 4, 4, 1, 2, 2])
    for alpha in ("0.2", "0.3", "0.5", "0.6", "0.75"):
        assert made.threshold(CELLS[0], alpha) == by_hand.threshold(alpha)


def test_the_share_of_a_unit_is_taken_after_merging() -> None:
    # Two units in either cell: alone each weighs 1/2, in the common pool 1/4.
    tasks = [[(CELLS[0], 1.0), (CELLS[0], 2.0), (CELLS[1], 3.0), (CELLS[1], 9.0)], [(CELLS[1], 4.0)], [(CELLS[0], 7.0)]]
    made = calibrate(rows(tasks), classes=["PER"], n_min=4)
    pool = made.pool(CELLS[0])
    assert (pool.pool.name, pool.n) == ("en/*", 3)  # three tasks, not four
    by_hand = ScoreTable.hierarchical([1.0, 2.0, 3.0, 9.0, 4.0, 7.0], [4, 4, 4, 4, 1, 1])
    for alpha in ("0.25", "0.3", "0.4", "0.6"):
        assert pool.table.threshold(alpha) == by_hand.threshold(alpha)


def test_the_test_task_counts_once_in_every_cell_it_touches() -> None:
    tasks = [[(CELLS[0], 1.0)]] * 4 + [[(CELLS[1], 1.0)]] * 4
    made = calibrate(rows([list(each) for each in tasks]), classes=["PER"], n_min=5)
    assert made.pool(CELLS[0]).pool.name == CELLS[0]
    assert made.pool(CELLS[2]).pool.name == "en/*"
    both = made.pool(CELLS[2], beside=CELLS)  # its own units lift both cells out of the rest
    assert (both.pool.cells, both.pool.calibrated) == ((CELLS[2],), False)
    assert made.pool(CELLS[0], beside=CELLS).n == 4


some_units = st.lists(st.tuples(st.sampled_from(CELLS), st.floats(0, 9)), min_size=1, max_size=5)


@given(st.lists(some_units, min_size=1), st.randoms())
def test_thresholds_do_not_depend_on_the_order_of_rows_or_tasks(
    tasks: list[list[tuple[str, float]]], chance: random.Random
) -> None:
    made = calibrate(rows(tasks), classes=["PER"], n_min=2)
    mixed = [list(each) for each in tasks]
    chance.shuffle(mixed)
    order = np.array(chance.sample(range(sum(map(len, mixed))), sum(map(len, mixed))))
    again = calibrate(rows(mixed, order), classes=["PER"], n_min=2)
    assert again.to_bytes() == made.to_bytes()
    assert Thresholds.from_bytes(made.to_bytes()).to_bytes() == made.to_bytes()
    counted = Counter(cell for units in tasks for cell in {cell for cell, _ in units})
    assert made.counts == dict(counted)
    assert made.n == len(tasks)


def test_units_are_kept_with_weights_and_damage_is_refused() -> None:
    tasks = rows([[(CELLS[0], 1.0), (CELLS[1], 2.0)], [(CELLS[0], 3.0)]])
    weighted = TaskRows(
        tasks.names, tasks.codes, tasks.ranks, task=tasks.task, unit=tasks.unit, weight=np.array([1.0, 1.0, 2.0])
    )
    made = calibrate(weighted, classes=["PER"], n_min=2)
    back = Thresholds.from_bytes(made.to_bytes())
    assert back.to_bytes() == made.to_bytes()
    assert back.effective_n(CELLS[0]) == pytest.approx(9 / 5)
    with pytest.raises(InvalidThresholds):
        Thresholds.from_bytes(made.to_bytes().replace(b'"groups":{"en/1-10":"', b'"groups":{"en/1-10":"AAAA'))


def test_bad_numbers_of_units_are_refused() -> None:
    with pytest.raises(InvalidScores, match="distinct"):
        TaskRows.of(["en/1-10"] * 2, [-1.0, -2.0], task=[1, 1], unit=[0, 0])
    with pytest.raises(InvalidScores, match="unit numbers"):
        TaskRows.of(["en/1-10"], [-1.0], unit=[0])
    with pytest.raises(InvalidScores, match="unit numbers"):
        EntityRows.of([1], ["PER"], probability=[0.5], unit=[0, 1])


@pytest.mark.parametrize("name", ["nc1", "logrank+nc1", "naive+nc1", "integrated", "integrated+nc1"])
def test_what_is_predicted_is_what_is_scored(name: str) -> None:
    """A unit's truth is in its predicted set iff its row is covered, for every kind of set."""
    rng = np.random.default_rng(5)
    cells, scored, numbers, units, kept = [], [], [], [], []
    for task in range(160):
        chain = text(8, (3, 5), seed=1000 + task)
        for number, part in enumerate(cut_units(chain)):
            best = kbest(part, 10**5)
            shares = np.exp(best.log_probabilities)
            labels = best.labels[rng.choice(best.count, p=shares / shares.sum())]
            scores = score_unit(part, SPACE, spans=SPACE.spans(labels), task=task, unit=number)
            cells.append(CELLS[number % 2])
            scored.append(scores)
            numbers.append(task)
            units.append(number)
            kept.append((part, labels))
    every = TaskRows.of(
        cells,
        [each.log_probability for each in scored],
        rank=[each.rank for each in scored],
        cumulative=[each.cumulative for each in scored],
        task=numbers,
        unit=units,
    )
    entities = EntityRows.join([each.entities for each in scored])
    first = np.array(numbers) < 120
    thresholds = calibrate(
        every.take(first), entities.take(entities.task < 120), classes=SPACE.classes, method=Method(name), n_min=20
    )
    test = every.take(~first)
    described = thresholds.method.describe(test, entities.take(entities.task >= 120))
    covered = covers(thresholds, described, "0.2").covered
    for row, at in zip(covered.tolist(), np.flatnonzero(~first).tolist(), strict=True):
        part, labels = kept[at]
        made = predict_set(
            part, SPACE, stratum=cells[at], beside=CELLS[:2], thresholds=thresholds, alpha="0.2", max_shown=10**6
        )
        held = {each.labels for each in made.labelings if each.member}
        assert (tuple(SPACE.decode(labels)) in held) == row
