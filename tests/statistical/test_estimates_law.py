"""What estimates promise over many projects (METHODS 14): intervals cover, savings are found, chance is not.

With `-s` it prints the figures of docs/results/worth.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from backend.worth.left import forecast_work
from conformal.estimates import (
    Counts,
    Rates,
    Trial,
    estimate_errors,
    estimate_rates,
    estimate_saving,
    plain_rates,
)
from conformal.quantile import Bools, Floats

PROJECTS = 1_000
TASKS = 3_000
RATES = ("precision", "recall", "f1")
STAMPING = 0.6  # the share of wrong prelabels that an annotator lets stand


class World(NamedTuple):
    """A collection: what labels would find, what the model expects, what annotators who rubber-stamp leave behind."""

    truth: Counts
    expected: Counts
    stamped: Counts


def a_world(rng: np.random.Generator) -> World:
    """Tasks of unlike length and difficulty; the model knows which are hard and is too sure of itself."""
    hard = rng.beta(1.2, 4.0, TASKS)
    predicted = rng.poisson(rng.gamma(3.0, 0.8, TASKS))
    sure = np.clip(1.0 - hard, 0.02, 0.98)
    right = rng.binomial(predicted, sure)
    missing = rng.poisson(0.9 * hard)
    said = sure**0.7  # overconfident
    expected = Counts(predicted * said, predicted, predicted * said + 0.6 * hard)
    stamped = right + rng.binomial(predicted - right, STAMPING)
    return World(
        Counts(right, predicted, right + missing),
        expected,
        Counts(stamped, predicted, stamped + rng.binomial(missing, 1 - STAMPING)),
    )


def exact_rates(truth: Counts) -> dict[str, float]:
    right, predicted, true = truth.right.sum(), truth.predicted.sum(), truth.true.sum()
    return {"precision": right / predicted, "recall": right / true, "f1": 2 * right / (predicted + true)}


class Measured(NamedTuple):
    """Of one rate: how often its interval covers, its width beside that of labels alone, and how often it would cover
    if assisted labels were used as if they were blind.
    """

    covered: float
    width: float
    stamped: float


def measure(labels: int, *, unequal: bool = False) -> dict[str, Measured]:
    """Try every rate over many projects."""
    rng = np.random.default_rng(14_000 + labels)
    covered, width, alone, stamped = np.zeros((4, len(RATES), PROJECTS))
    for project in range(PROJECTS):
        world = a_world(rng)
        chance = np.where(rng.random(TASKS) < 0.5, 0.1, 0.2) if unequal else np.ones(TASKS)
        drawn = np.argsort(rng.exponential(1.0, TASKS) / chance)[:labels]
        guess, weight = world.expected.take(drawn), chance[drawn] if unequal else None
        found = world.truth.take(drawn)
        rates = estimate_rates(found, guess, collection=world.expected, chance=weight)
        assisted = estimate_rates(world.stamped.take(drawn), guess, collection=world.expected, chance=weight)
        plain = plain_rates(found, weight)
        for place, (name, exact) in enumerate(exact_rates(world.truth).items()):
            covered[place, project], width[place, project] = _covers(rates, name, exact)
            alone[place, project] = _covers(plain, name, exact)[1]
            stamped[place, project] = _covers(assisted, name, exact)[0]
    return {
        name: Measured(covered[i].mean(), width[i].mean() / alone[i].mean(), stamped[i].mean())
        for i, name in enumerate(RATES)
    }


def _covers(rates: Rates, name: str, exact: float) -> tuple[bool, float]:
    found = getattr(rates, name)
    assert found is not None
    return found.low <= exact <= found.high, found.high - found.low


@pytest.mark.parametrize(("labels", "unequal"), [(200, False), (500, False), (400, True)])
def test_intervals_cover_and_are_narrower_than_those_of_labels_alone(labels: int, unequal: bool) -> None:
    for name, found in measure(labels, unequal=unequal).items():
        print(
            f"{labels} labels, {name}: covers {found.covered:.3f}, width {found.width:.3f} of labels alone; assisted "
            f"labels used as if blind: covers {found.stamped:.3f}"
        )
        assert found.covered >= 0.935
        assert found.width <= 0.88
        assert found.stamped < 0.5


def test_errors_of_a_task_are_covered() -> None:
    rng = np.random.default_rng(14_001)
    covered = 0
    for _ in range(PROJECTS):
        world = a_world(rng)
        drawn = rng.permutation(TASKS)[:200]
        sample = rng.permutation(TASKS)[:2_000]
        found = estimate_errors(
            world.truth.take(drawn),
            world.expected.take(drawn),
            collection=world.expected.take(sample),
            tasks=TASKS,
        )
        assert found is not None
        covered += found.low <= world.truth.errors.mean() <= found.high
    assert covered / PROJECTS >= 0.935


def findings(blind: int, *, saving: float, projects: int, seed: int) -> tuple[float, float]:
    """Return how often a difference is called significant in its direction, and how often the interval covers."""
    rng = np.random.default_rng(seed)
    found = covered = 0
    for _ in range(projects):
        size = 10 * blind
        arm = np.zeros(size, dtype=bool)
        arm[rng.permutation(size)[:blind]] = True
        block = rng.integers(0, 3, size)
        logs = 3.0 + 0.3 * block + rng.normal(0.0, 0.8, size) + np.log1p(-saving) * ~arm
        result = estimate_saving(Trial(np.exp(logs), arm, block, np.ones(size)), rng=rng, cap=1e9, shuffles=199)
        assert result is not None
        found += result.verdict == "saves" if saving else result.significant
        covered += result.low <= 1.0 - saving <= result.high
    return found / projects, covered / projects


@pytest.mark.parametrize(("blind", "power"), [(50, 0.47), (100, 0.76), (200, 0.96)])
def test_a_saving_of_a_fifth_is_found_with_the_stated_power(blind: int, power: float) -> None:
    projects = 400
    found, covered = findings(blind, saving=0.2, projects=projects, seed=blind)
    print(f"{blind} blind tasks: found in {found:.3f} of projects, stated {power}; covers {covered:.3f}")
    # Four standard errors: the stated power, neither more nor less.
    assert abs(found - power) <= 4 * np.sqrt(power * (1 - power) / projects)
    assert covered >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / projects)


def test_nothing_is_found_where_nothing_was_saved() -> None:
    projects = 1_500
    found, _ = findings(50, saving=0.0, projects=projects, seed=99)
    print(f"no saving: called significant in {found:.4f} of projects")
    # The test is exact: at most 5 %, up to the chance of these projects.
    assert found <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / projects)


def test_times_after_a_review_order_find_what_is_not_there() -> None:
    """Why only labels under uniform or shuffled order count: the queue gives prelabels the hard tasks."""
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(100):
        hard = rng.normal(0.0, 0.8, 3_000)
        blind = rng.random(3_000) < 0.1
        queue = np.flatnonzero(~blind)
        first = queue[np.argsort(-hard[queue])][:500]  # the model's doubt decides
        used = np.concatenate([first, rng.permutation(np.flatnonzero(blind))[:60]])
        seconds = np.exp(3.0 + hard[used])
        result = estimate_saving(
            Trial(seconds, blind[used], np.zeros(used.size), np.ones(used.size)), rng=rng, shuffles=199
        )
        assert result is not None
        found += result.significant
    assert found >= 90


class History(NamedTuple):
    """What a project's labelling looked like: seconds of its tasks in the order of the work, and which were blind."""

    seconds: Floats
    blind: Bools


def a_history(rng: np.random.Generator, *, tasks: int = 600, faster: float = 0.0) -> History:
    """Three people of unlike speed take texts of unlike length in random order; the third one begins half-way.

    `faster`: by which share everybody is quicker at the end than at the beginning.
    """
    words = rng.lognormal(2.8, 0.6, tasks)
    blind = rng.random(tasks) < 0.15
    done = np.arange(tasks) / tasks
    person = np.where(done < 0.5, rng.integers(0, 2, tasks), rng.integers(0, 3, tasks))
    speed = np.array([0.9, 1.2, 1.05])[person] * (1.0 - faster * done)
    seconds = (4.0 + 0.5 * words + 6.0 * blind) * speed * rng.lognormal(0.0, 0.5, tasks)
    return History(np.minimum(seconds, 600.0), blind)


def replay(*, at: int, faster: float = 0.0, projects: int = 1_000) -> tuple[float, float]:
    """Forecast the rest of each history after `at` tasks: returns how often it covers, and its width beside the sum."""
    rng = np.random.default_rng(2_100 + at)
    covered = width = 0.0
    for _ in range(projects):
        history = a_history(rng, faster=faster)
        seen, left, total = history.seconds[:at], history.blind[at:], history.seconds[at:].sum()
        arms = history.blind[:at]
        found = forecast_work(seen[arms], seen[~arms], blank=int(left.sum()), others=int((~left).sum()))
        assert found is not None
        covered += found.low <= total <= found.high
        width += (found.high - found.low) / total
    return covered / projects, width / projects


@pytest.mark.parametrize("at", [60, 250, 450])
def test_a_forecast_covers_the_work_that_was_left_in_replayed_projects(at: int) -> None:
    covered, width = replay(at=at)
    print(f"replays, after {at} of 600 tasks: the forecast covers {covered:.3f}, width {width:.2f} of the sum")
    assert covered >= 0.90


def test_people_who_get_faster_are_forecast_too_much_work() -> None:
    """What a forecast cannot know: it supposes that what is left takes as long as what was seen."""
    covered, _ = replay(at=250, faster=0.4, projects=300)
    print(f"replays of people who get 40 % faster, after 250 of 600 tasks: covers {covered:.3f}")
    assert covered < 0.5
