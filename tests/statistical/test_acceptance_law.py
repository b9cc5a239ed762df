"""Acceptance keeps its promises over looks, changes of the model and a shrinking collection (METHODS 12)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from scipy import stats

from conformal.quantile import Bools, Floats
from conformal.risk.acceptance import (
    DELTA,
    LEVELS,
    Grid,
    Promise,
    choose_level,
    count_due,
    labels_needed,
    level_grid,
    spend,
)

PROJECTS = 1_000
TASKS = 3_000
MAX_ERROR = 0.05
CHANCE = 1e-4  # at which a test fails by chance although the promise is kept


@dataclass
class World:
    """A collection: for each of three models what it doubts and where it is wrong, and the tasks drawn to be blind."""

    doubts: Floats  # (models, tasks)
    wrong: Bools  # (models, tasks)
    blind: Any  # tasks in the order in which their labels come
    accepted: Bools = field(init=False)  # somewhere accepted, and its labeling then was wrong
    grids: list[Grid] = field(init=False)

    def __post_init__(self) -> None:
        self.accepted = np.zeros(self.doubts.shape[1], dtype=bool)


def make_world(rng: np.random.Generator, promise: Promise, *, models: int = 3, least: float | None = None) -> World:
    """Draw a collection. Each model errs where the others need not; its doubt is right on average, and noisy.

    `least` is how often the model errs where it is surest: 1 %, or just above eps, where nothing of B may be accepted.
    """
    difficulty = rng.random(TASKS)
    least = (0.01, 0.055)[rng.integers(2)] if least is None else least
    chance = np.minimum(0.5, 0.9 * difficulty**6 + least)
    wrong = rng.random((models, TASKS)) < chance
    doubts = np.clip(chance * rng.lognormal(0.0, 0.6, (models, TASKS)), 0.0, 1.0)
    blind = rng.permutation(TASKS)[:600]
    world = World(doubts, wrong, blind)
    world.grids = [level_grid(each, levels=LEVELS[promise]) for each in doubts]
    return world


def run_project(rng: np.random.Generator, promise: Promise, *, cumulative: bool = True) -> tuple[bool, float]:
    """Decide at 125, 250 and 500 labels and at two changes of the model; return whether eps was exceeded.

    What people label meanwhile, the hardest first, is accepted no more: the promise is for all tasks all the same.
    """
    world = make_world(rng, promise)
    left = np.ones(TASKS, dtype=bool)
    left[world.blind] = False
    truly = np.zeros(TASKS, dtype=bool)
    taken = np.zeros(TASKS, dtype=bool)
    exceeded = False
    used, model, decision = 0, 0, 1
    for labels, then in ((130, 0), (260, 0), (330, 1), (510, 1), (560, 2)):
        delta = spend(decision)
        needed = labels_needed(MAX_ERROR, delta=delta, promise=promise)
        count = labels if then != model else count_due(labels, after=used, needed=needed)
        assert count is not None
        rows = world.blind[:count]
        earlier = world.accepted[rows] if cumulative else None
        choice = choose_level(
            world.doubts[then, rows],
            world.wrong[then, rows],
            grid=world.grids[then],
            max_error=MAX_ERROR,
            delta=delta,
            promise=promise,
            earlier=earlier,
        )
        used, model, decision = count, then, decision + 1
        if choice.level is not None:
            below = world.doubts[then] <= choice.level
            world.accepted |= below & world.wrong[then]
            truly |= below & left & world.wrong[then]
            taken |= below & left
            left &= ~below
            if promise is Promise.ACCEPTED:
                exceeded |= bool(world.wrong[then][below].mean() > MAX_ERROR)
        hardest = np.argsort(np.where(left, -world.doubts[then], np.inf))[:300]
        left[hardest] = False
    if promise is Promise.ALL:
        exceeded = bool(world.accepted.mean() > MAX_ERROR)
        assert truly.sum() <= world.accepted.sum()
    return exceeded, float(taken.mean())


@pytest.mark.parametrize("promise", list(Promise))
def test_eps_is_exceeded_in_at_most_5_percent_of_projects(promise: Promise) -> None:
    rng = np.random.default_rng(41)
    outcomes = [run_project(rng, promise) for _ in range(PROJECTS)]
    exceeded = sum(outcome[0] for outcome in outcomes)
    share = np.mean([outcome[1] for outcome in outcomes])
    print(f"{promise.value}: exceeded in {exceeded / PROJECTS:.3f}, accepted {share:.3f} of the tasks")
    assert stats.binomtest(exceeded, PROJECTS, DELTA, alternative="greater").pvalue > CHANCE
    assert share > 0.1  # a promise about nothing would be easy to keep


def test_decisions_taken_singly_exceed_eps_together() -> None:
    rng = np.random.default_rng(43)
    exceeded = sum(run_project(rng, Promise.ALL, cumulative=False)[0] for _ in range(300))
    print(f"all, each decision for itself: exceeded in {exceeded / 300:.3f}")
    assert stats.binomtest(exceeded, 300, DELTA, alternative="greater").pvalue < CHANCE


def looks_every_20(world: World, promise: Promise) -> Floats:
    """Return the level of each look at 80, 100, 120, ... labels without spending; -1 where nothing is accepted."""
    choices = [
        choose_level(
            world.doubts[0, rows],
            world.wrong[0, rows],
            grid=world.grids[0],
            max_error=MAX_ERROR,
            delta=DELTA,
            promise=promise,
        )
        for count in range(80, world.blind.size + 1, 20)
        for rows in (world.blind[:count],)
    ]
    return np.array([-1.0 if choice.level is None else choice.level for choice in choices])


def test_looking_every_20_labels_exceeds_eps_of_all_tasks() -> None:
    rng = np.random.default_rng(47)
    exceeded = 0
    for _ in range(200):
        world = make_world(rng, Promise.ALL, models=1, least=0.02)
        below = world.doubts[0] <= looks_every_20(world, Promise.ALL).max()
        exceeded += bool((below & world.wrong[0]).mean() > MAX_ERROR)
    print(f"all, every 20 labels: exceeded in {exceeded / 200:.3f}")
    assert stats.binomtest(exceeded, 200, DELTA, alternative="greater").pvalue < CHANCE


def test_looking_every_20_labels_exceeds_eps_of_the_accepted() -> None:
    """A model whose doubt says nothing and that errs a little more often than eps: to accept is too much."""
    rng = np.random.default_rng(53)
    exceeded = 0
    for _ in range(200):
        world = World(rng.random((1, 20_000)), rng.random((1, 20_000)) < 0.053, rng.permutation(20_000)[:1500])
        world.grids = [level_grid(world.doubts[0], levels=1)]
        for level in looks_every_20(world, Promise.ACCEPTED):
            below = world.doubts[0] <= level
            if below.any() and world.wrong[0][below].mean() > MAX_ERROR:
                exceeded += 1
                break
    print(f"accepted, every 20 labels: exceeded in {exceeded / 200:.3f}")
    assert stats.binomtest(exceeded, 200, DELTA, alternative="greater").pvalue < CHANCE
