"""Law of units: exact for a random unit of a random task, whatever the dependence inside a task (METHODS 10.2, 8.7).

Tasks have 1 to 40 units that share a task's difficulty, and difficulty depends on their number. The coverage of a
threshold is then known exactly, so a trial is one calibration and no test task is drawn.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from conformal.monitor import clopper_pearson, jumper_path, online_p_values
from conformal.quantile import ScoreTable

CALIBRATIONS = 1_000
MOST = 40
SHARED = 2.0  # the difficulty of a task, beside noise of 1 in each unit
SIZES = np.arange(1, MOST + 1)
SPREAD = np.hypot(SHARED, 1.0)


def draw(rng: np.random.Generator, tasks: int, drift: float) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the units of some tasks, and the number of units that each one's task has."""
    sizes = rng.integers(1, MOST + 1, tasks)
    each = np.repeat(sizes, sizes)
    shared = np.repeat(rng.normal(size=tasks) * SHARED, sizes)
    return shared + rng.normal(size=each.size) + drift * each, each


def coverage(tau: float, drift: float) -> float:
    """The chance that a random unit of a random task scores at most tau."""
    return float(stats.norm.cdf((tau - drift * SIZES) / SPREAD).mean())


def share_of_all(tau: float, drift: float) -> float:
    """The share of all units that score at most tau: long tasks have more of them."""
    return float(np.average(stats.norm.cdf((tau - drift * SIZES) / SPREAD), weights=SIZES))


@pytest.mark.parametrize("drift", [-0.15, 0.0, 0.15])
@pytest.mark.parametrize(("tasks", "alpha"), [(30, "0.1"), (100, "0.1"), (100, "0.05")])
def test_a_random_unit_of_a_random_task_is_covered(tasks: int, alpha: str, drift: float) -> None:
    rng = np.random.default_rng([tasks, int(float(alpha) * 100), int(drift * 100) + 50])
    weighed, plain, everywhere = [], [], []
    for _ in range(CALIBRATIONS):
        scores, sizes = draw(rng, tasks, drift)
        tau = ScoreTable.hierarchical(scores, sizes).threshold(alpha)
        weighed.append(coverage(tau, drift))
        everywhere.append(share_of_all(tau, drift))
        plain.append(coverage(ScoreTable.of(scores).threshold(alpha), drift))
    target = 1 - float(alpha)
    error = 4 * float(np.std(weighed)) / CALIBRATIONS**0.5
    mean, pooled = float(np.mean(weighed)), float(np.mean(plain))
    print(f"n {tasks} alpha {alpha} drift {drift}: {mean:.4f} pooled {pooled:.4f} all units {np.mean(everywhere):.4f}")
    assert target - error <= mean <= target + 2 / (tasks + 1) + error
    if drift < 0:  # short tasks are harder, and without the weights long ones decide
        assert pooled < target - 0.03
    elif drift > 0:
        assert pooled > mean


RUNS, TASKS = 300, 200


def alarms(scores: list[np.ndarray], rng: np.random.Generator) -> float:
    """The share of runs that alarm at any time, with one row of scores per run."""
    return float(
        np.mean([jumper_path(online_p_values(row, rng.random(row.size))).max() >= np.log(20.0) for row in scores])
    )


def test_one_drawn_unit_a_task_keeps_the_martingales_bound_and_all_units_break_it() -> None:
    rng = np.random.default_rng(8)
    drawn, every = [], []
    for _ in range(RUNS):
        scores, sizes = draw(rng, TASKS, 0.15)
        starts = _starts(sizes)
        drawn.append(scores[starts + (rng.random(TASKS) * sizes[starts]).astype(int)])
        every.append(scores)
    one, all_units = alarms(drawn, rng), alarms(every, rng)
    print(f"false alarms in {RUNS} runs of {TASKS} tasks: one drawn unit a task {one:.1%}, all units {all_units:.1%}")
    assert one <= 0.05 + 2 * (0.05 * 0.95 / RUNS) ** 0.5
    assert all_units > 0.5


def test_the_interval_over_drawn_units_holds_and_over_all_units_does_not() -> None:
    """Live coverage: tasks are independent draws, the units of one task are not (METHODS 8.8)."""
    rng = np.random.default_rng(9)
    tau = 3.0
    truth = coverage(tau, 0.15)
    missed = {"drawn": 0, "all": 0}
    for _ in range(RUNS):
        scores, sizes = draw(rng, TASKS, 0.15)
        starts = _starts(sizes)
        picked = scores[starts + (rng.random(TASKS) * sizes[starts]).astype(int)]
        for name, held in (("drawn", picked), ("all", scores)):
            low, high = clopper_pearson(int((held <= tau).sum()), held.size)
            missed[name] += not low <= truth <= high
    print({name: count / RUNS for name, count in missed.items()})
    assert missed["drawn"] / RUNS <= 0.08
    assert missed["all"] / RUNS > 0.3


def _starts(sizes: np.ndarray) -> np.ndarray:
    """Where each task begins among its units, each of which knows how many there are."""
    starts, at = [], 0
    while at < sizes.size:
        starts.append(at)
        at += int(sizes[at])
    return np.array(starts)
