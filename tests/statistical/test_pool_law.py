"""Exact law of pooled strata: exact per pool, for tasks whose difficulty depends on their cell (METHODS 5.2)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from math import ceil

import numpy as np
import pytest

from conformal.quantile import threshold
from conformal.strata import Pool, Strata

TRIALS = 250_000
N = 19
N_MIN = 6
ALPHA = "0.2"
TARGET = Fraction("0.8")
STRATA = Strata(lengths=(10,))
CELLS = ("de/1-10", "de/11+", "en/1-10", "en/11+", "pl/1-10", "pl/11+")
SHARES = np.array([0.40, 0.08, 0.16, 0.16, 0.10, 0.10])
DIFFICULTY = np.array([1.0, 6.0, 2.0, 4.0, 8.0, 20.0])


@cache
def pool_of(cell: int, counts: tuple[int, ...]) -> Pool:
    return STRATA.pool_of(CELLS[cell], dict(zip(CELLS, counts, strict=True)), n_min=N_MIN)


class World:
    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.cell = rng.choice(len(CELLS), size=(TRIALS, N + 1), p=SHARES)
        self.scores = rng.exponential(size=(TRIALS, N + 1)) * DIFFICULTY[self.cell]
        counts = np.stack([(self.cell[:, :-1] == c).sum(axis=1) for c in range(len(CELLS))], axis=1)
        self.pools = [pool_of(c, tuple(row)) for c, row in zip(self.cell[:, -1].tolist(), counts.tolist(), strict=True)]
        inside = np.array([[cell in pool.cells for cell in CELLS] for pool in self.pools])  # (R, cells)
        self.inside = np.take_along_axis(inside, self.cell[:, :-1], axis=1)  # (R, n)
        self.calibrated = np.array([pool.calibrated for pool in self.pools])
        self.names = np.array([pool.name for pool in self.pools])

    @property
    def law(self) -> np.ndarray:
        sizes = self.inside.sum(axis=1)
        ranks = np.array([ceil(TARGET * (n + 1)) for n in range(N + 1)])
        return ranks[sizes] / (sizes + 1)

    def covered(self, inside: np.ndarray) -> np.ndarray:
        return self.scores[:, -1] <= threshold(self.scores[:, :-1], ALPHA, where=inside)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def test_every_kind_of_pool_occurs(world: World) -> None:
    kinds = {name.replace("de", "xx").replace("en", "xx").replace("pl", "xx") for name in set(world.names)}
    assert kinds == {"xx/1-10", "xx/11+", "xx/*", "*/1-10", "*/11+", "*/*"}
    sizes = world.inside.sum(axis=1)
    assert np.all(sizes[world.calibrated] + 1 >= N_MIN)
    assert np.all(sizes[~world.calibrated] + 1 < N_MIN)


def test_pools_cover_as_their_law_says(world: World, obeys: Callable[..., bool]) -> None:
    covered, expected = world.covered(world.inside)[world.calibrated], world.law[world.calibrated]
    assert obeys(covered, expected)
    sizes = world.inside.sum(axis=1)
    ranks = np.array([ceil(TARGET * (n + 1)) for n in range(N + 1)])[sizes]
    ordered = np.sort(np.where(world.inside, world.scores[:, :-1], np.inf), axis=1)
    off = world.scores[:, -1] <= np.take_along_axis(ordered, np.maximum(ranks - 2, 0)[:, None], axis=1)[:, 0]
    assert not obeys(off[world.calibrated], expected)


def test_each_pool_covers_as_its_law_says(world: World) -> None:
    covered = world.covered(world.inside)
    for name in sorted(set(world.names[world.calibrated])):
        here = world.calibrated & (world.names == name)
        if here.sum() < 500:
            continue
        expected = world.law[here]
        z = (covered[here].sum() - expected.sum()) / np.sqrt((expected * (1 - expected)).sum())
        print(f"pool {name}: {here.sum()} trials, covered {covered[here].mean():.4f}, law {expected.mean():.4f}")
        assert abs(z) < 4.5, (name, int(here.sum()), z)


def parent_fallback(world: World) -> tuple[np.ndarray, np.ndarray]:
    """The invalid way: a small cell takes its whole language, large cells stand alone. Returns (trials, inside)."""
    test = world.cell[:, -1:]
    own = world.cell[:, :-1] == test
    language = world.cell[:, :-1] // 2 == test // 2
    small = own.sum(axis=1) + 1 < N_MIN
    return small, np.where(small[:, None], language, own)


def test_falling_back_to_the_whole_parent_is_refused(world: World) -> None:
    small, inside = parent_fallback(world)
    sizes = inside.sum(axis=1)
    chosen = small & (world.cell[:, -1] == 1) & (sizes + 1 >= N_MIN)  # long German: rare and hard
    ranks = np.array([ceil(TARGET * (n + 1)) for n in range(N + 1)])
    expected = (ranks[sizes] / (sizes + 1))[chosen]
    covered = world.covered(inside)[chosen]
    z = (covered.sum() - expected.sum()) / np.sqrt((expected * (1 - expected)).sum())
    print(f"whole parent, long German: covered {covered.mean():.4f}, law {expected.mean():.4f}, z = {z:.0f}")
    assert chosen.sum() > 5_000
    assert z < -50  # standard errors below the law
    assert covered.mean() < 0.6  # at a target of 0.80


def test_not_counting_the_test_task_is_refused(world: World) -> None:
    """Pools by calibration counts alone are no partition of the n + 1 tasks: the borderline cell loses."""
    counts = np.stack([(world.cell[:, :-1] == c).sum(axis=1) for c in range(len(CELLS))], axis=1)
    at_edge = np.take_along_axis(counts, world.cell[:, -1:], axis=1)[:, 0] == N_MIN - 1
    assert at_edge.sum() > 5_000
    right = [name == CELLS[c] for name, c in zip(world.names[at_edge], world.cell[at_edge, -1], strict=True)]
    assert all(right)  # with the test task counted, these cells stand alone


def test_no_strata_breaks_the_promise_in_hard_cells(world: World) -> None:
    everything = np.ones_like(world.inside)
    covered = world.covered(everything)
    assert covered[world.cell[:, -1] == 5].mean() < 0.6
    assert covered.mean() == pytest.approx(ceil(TARGET * (N + 1)) / (N + 1), abs=0.003)
