"""Law of risk control: the expected loss of a fresh task is at most eps, and why each part of the rule is needed
(METHODS 11.4 and 11.5).

Tasks have independent spans, each with a doubt, and the best labeling errs there with a probability that rises with it.
A trial is one calibration; its risk is worked out on one large population, so no test task has to be drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from scipy import stats

from conformal.risk import ErrorRows, TaskErrors, control_risk, fit_levels

CALIBRATIONS = 2_000
POPULATION = 8_000  # the law itself: tasks are drawn from it with replacement
GRID = np.append(np.linspace(0.0, 1.0, 800) ** 2, np.inf)  # where the population's risk is known
SENTENCES, DOCUMENTS = (1, 4), (5, 60)


@dataclass(frozen=True)
class World:
    """Many tasks to draw from, with the risk of every level for a random one of them."""

    rows: ErrorRows
    hard: np.ndarray

    @classmethod
    def of(cls, sizes: tuple[int, int], *, seed: int, hard: float = 0.3) -> World:
        """Some tasks are hard: four times as many errors, and the doubts know little of them."""
        rng = np.random.default_rng(seed)
        entities = rng.integers(sizes[0], sizes[1] + 1, POPULATION)
        is_hard = rng.random(POPULATION) < hard
        task = np.repeat(np.arange(POPULATION), entities)
        doubt = rng.beta(0.4, 2.0, task.size)
        chance = np.where(is_hard[task], 0.2 + 0.4 * doubt, 0.02 + 0.7 * doubt)
        wrong = rng.random(task.size) < chance
        kind = rng.random(task.size) < 0.4  # a false span, of those that the best labeling has
        false = wrong & kind
        missing = wrong & ~kind
        right = np.bincount(task[~wrong], minlength=POPULATION)
        lost = np.bincount(task[missing], minlength=POPULATION)
        extra = np.bincount(task[false], minlength=POPULATION)
        rows = ErrorRows(
            (right + lost).astype(np.int64),
            (right + extra).astype(np.int64),
            None,
            task[wrong],
            doubt[wrong],
            kind[wrong],
        )
        kept = rows.counted
        return cls(rows.take(kept), is_hard[kept])

    def risk_of(self, tasks: np.ndarray | None = None) -> np.ndarray:
        """The mean loss of a random task (of those marked) at every level of the grid."""
        chosen = self.rows if tasks is None else self.rows.take(tasks)
        return np.array([chosen.losses(level).mean() for level in GRID])


@cache
def world(sizes: tuple[int, int], hard: float = 0.3) -> tuple[World, np.ndarray]:
    made = World.of(sizes, seed=sizes[1], hard=hard)
    return made, made.risk_of()


def expected(levels: Sequence[float], risks: np.ndarray) -> tuple[float, float]:
    """The mean risk of the chosen levels and four of its standard errors; between grid points the higher one."""
    at = np.searchsorted(GRID, np.asarray(levels), side="left")
    values = risks[at]
    return float(values.mean()), 4 * float(values.std()) / len(levels) ** 0.5


def without_test_task(rows: ErrorRows, eps: float) -> float:
    """The tempting rule: the greatest level whose mean loss on the calibration tasks is at most eps."""
    candidates = np.append(np.unique(rows.level), np.inf)
    low, high = 0, candidates.size
    while low < high:
        middle = (low + high) // 2
        if rows.losses(float(candidates[middle])).mean() <= eps:
            low = middle + 1
        else:
            high = middle
    return float(candidates[low - 1]) if low else 0.0


@pytest.mark.parametrize("sizes", [SENTENCES, DOCUMENTS], ids=["sentences", "documents"])
def test_the_expected_risk_is_at_most_what_was_asked_for(sizes: tuple[int, int]) -> None:
    made, risks = world(sizes)
    rng = np.random.default_rng(1)
    for n, eps in ((60, "0.1"), (200, "0.05"))[: 2 if sizes == SENTENCES else 1]:
        levels, tempting = [], []
        for _ in range(CALIBRATIONS):
            rows = made.rows.take(rng.integers(0, len(made.rows), n))
            levels.append(control_risk(rows, eps))
            tempting.append(without_test_task(rows, float(eps)))
        mean, error = expected(levels, risks)
        naive, naive_error = expected(tempting, risks)
        above = float((risks[np.searchsorted(GRID, levels)] > float(eps)).mean())
        print(f"{sizes} n {n} eps {eps}: {mean:.4f}, without + 1 {naive:.4f}, above eps in {above:.0%} of draws")
        assert float(eps) - 2 / (n + 1) - error <= mean <= float(eps) + error
        assert above > 0.02  # a promise on average, not of each draw
        if sizes == SENTENCES and n == 60:
            assert naive - naive_error > float(eps)  # the test task must be counted


def test_a_sure_level_keeps_the_risk_in_most_draws() -> None:
    made, risks = world(SENTENCES)
    rng = np.random.default_rng(2)
    draws, n, eps = 60, 400, "0.1"
    levels = []
    for _ in range(draws):
        rows = made.rows.take(rng.integers(0, len(made.rows), n))
        pool = fit_levels(rows, ["en"] * n, max_error=eps, sure=True, n_min=10**6).pool("en")
        assert pool.calibrated
        levels.append(pool.level)
    above = int((risks[np.searchsorted(GRID, levels)] > float(eps)).sum())
    print(f"sure: above eps in {above} of {draws} draws")
    assert above <= stats.binom.ppf(0.9999, draws, 0.05)
    assert min(levels) > 0


def test_weights_repair_a_known_selection_and_equal_ones_do_not() -> None:
    """Easy tasks are selected four times as often, with known probability; the promise is for a random task."""
    made, risks = world(SENTENCES)
    rng = np.random.default_rng(3)
    chance = np.where(made.hard, 0.2, 0.8)
    n, eps = 300, "0.1"
    weighted, plain = [], []
    for _ in range(CALIBRATIONS):
        drawn = rng.integers(0, len(made.rows), 4 * n)
        drawn = drawn[rng.random(4 * n) < chance[drawn]][:n]
        rows = made.rows.take(drawn)
        plain.append(control_risk(rows, eps))
        known = ErrorRows(rows.entities, rows.best, 1 / chance[drawn], rows.task, rows.level, rows.false)
        weighted.append(control_risk(known, eps, test_weight=5.0))
    mean, error = expected(weighted, risks)
    unweighted, plain_error = expected(plain, risks)
    print(f"weighted {mean:.4f}, unweighted {unweighted:.4f}")
    assert 0.08 < mean <= float(eps) + error
    assert unweighted - plain_error > float(eps) + 0.02


def test_every_pool_of_languages_keeps_its_own_promise() -> None:
    """A hard language is rare: alone it keeps the promise, under the level of all languages it does not."""
    easy, easy_risks = world(SENTENCES, 0.0)
    hard, hard_risks = world(SENTENCES, 1.0)
    rng = np.random.default_rng(4)
    eps, n = "0.1", 260
    levels: dict[str, list[float]] = {"xx": [], "en": [], "all": []}
    for _ in range(400):
        many = rng.binomial(n, 0.75)
        parts = [(easy, many), (hard, n - many)]
        rows = joined([made.rows.take(rng.integers(0, len(made.rows), size)) for made, size in parts])
        fitted = fit_levels(rows, ["en"] * many + ["xx"] * (n - many), max_error=eps, n_min=40)
        levels["en"].append(fitted.pool("en").level)
        levels["xx"].append(fitted.pool("xx").level)
        levels["all"].append(control_risk(rows, eps))
        assert fitted.pool("xx").languages == ("xx",)
    for language, risks in (("en", easy_risks), ("xx", hard_risks)):
        mean, error = expected(levels[language], risks)
        print(f"{language}: {mean:.4f}")
        assert mean <= float(eps) + error
    mean, error = expected(levels["all"], hard_risks)
    print(f"xx under the level of all: {mean:.4f}")
    assert mean - error > 1.5 * float(eps)


def joined(parts: Sequence[ErrorRows]) -> ErrorRows:
    shifts = np.cumsum([0, *(len(part) for part in parts)])
    return ErrorRows(
        np.concatenate([part.entities for part in parts]),
        np.concatenate([part.best for part in parts]),
        None,
        np.concatenate([part.task + shift for part, shift in zip(parts, shifts[:-1], strict=True)]),
        np.concatenate([part.level for part in parts]),
        np.concatenate([part.false for part in parts]),
    )


def corrected_where_flagged(rows: ErrorRows, flagged_from: float) -> ErrorRows:
    """The labels of people who put right what is flagged and leave the rest: errors they did not see are no errors."""
    seen = rows.level >= flagged_from
    missing = np.bincount(rows.task[~seen & ~rows.false], minlength=len(rows))
    accepted = np.bincount(rows.task[~seen & rows.false], minlength=len(rows))
    # A missing span stays missing in the label, a false one stays in it: the label is believed.
    entities = rows.entities - missing + accepted
    return ErrorRows(entities, rows.best, None, rows.task[seen], rows.level[seen], rows.false[seen])


def test_labels_of_people_who_correct_flags_only_break_the_promise() -> None:
    made, risks = world(SENTENCES)
    rng = np.random.default_rng(5)
    n, eps = 300, "0.1"
    believed, blind = [], []
    for _ in range(500):
        rows = made.rows.take(rng.integers(0, len(made.rows), n))
        blind.append(control_risk(rows, eps))
        assisted = corrected_where_flagged(rows, blind[-1])
        believed.append(control_risk(assisted, eps))
    mean, error = expected(blind, risks)
    wrong, wrong_error = expected(believed, risks)
    print(f"blind {mean:.4f}, assisted {wrong:.4f}")
    assert mean <= float(eps) + error
    assert wrong - wrong_error > 1.3 * float(eps)


def test_a_family_that_looks_at_the_calibration_labels_breaks_the_promise() -> None:
    """Of twenty orders of the same spans, all worth the same, the one that flags least on the calibration tasks."""
    rng = np.random.default_rng(6)
    families, n, eps, draws = 20, 60, 0.1, 150
    picked, fixed = [], []
    for _ in range(draws):
        best_level, best_flags = 0.0, np.inf
        for family in range(families):
            # Doubts of a family say nothing about errors; only by chance do they on sixty tasks.
            levels = rng.random(n)
            wrong = rng.random(n) < 0.2
            rows = ErrorRows.of(
                [TaskErrors(1, 1, (float(level),) if w else (), ()) for level, w in zip(levels, wrong, strict=True)]
            )
            level = control_risk(rows, str(eps))
            flags = float((levels >= level).mean())
            if not family:
                fixed.append(0.2 * min(1.0, level))  # an error is left behind where its doubt is below the level
            if flags < best_flags:
                best_level, best_flags = level, flags
        picked.append(0.2 * min(1.0, best_level))
    print(f"fixed beforehand {np.mean(fixed):.4f}, picked by the labels {np.mean(picked):.4f}")
    error = 4 * float(np.std(fixed)) / draws**0.5
    assert np.mean(fixed) <= eps + error
    assert np.mean(picked) - 4 * np.std(picked) / draws**0.5 > eps + 0.02
