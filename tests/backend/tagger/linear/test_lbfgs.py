from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from backend.tagger.linear.kernels import dot
from backend.tagger.linear.lbfgs import minimise


def logistic(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(80, 7)) * np.array([1, 5, 0.2, 1, 1, 3, 1]), rng.choice([-1.0, 1.0], size=80)


def test_it_finds_what_another_optimiser_finds() -> None:
    x, y = logistic(1)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        margin = y * (x @ w)
        share = 1.0 / (1.0 + np.exp(margin))
        return float(np.logaddexp(0.0, -margin).sum() + 0.05 * w @ w), -(x.T @ (y * share)) + 0.1 * w

    ours = minimise(loss, np.zeros(7), steps=500, tolerance=1e-12)
    theirs = minimize(loss, np.zeros(7), jac=True, method="BFGS")
    assert ours.converged
    np.testing.assert_allclose(ours.point, theirs.x, atol=1e-4)


def test_a_minimum_is_left_alone_and_steps_are_counted() -> None:
    def bowl(w: np.ndarray) -> tuple[float, np.ndarray]:
        return float(w @ w), 2 * w

    assert minimise(bowl, np.zeros(3)).steps == 0
    told: list[int] = []
    found = minimise(bowl, np.ones(3) * 1e4, steps=1, progress=lambda step, _: told.append(step))
    assert (found.steps, found.converged, told) == (1, False, [1])


def test_a_step_into_infinity_is_shortened() -> None:
    def wall(w: np.ndarray) -> tuple[float, np.ndarray]:
        if w[0] >= 1.0:
            return np.inf, np.zeros(1)
        return float(-np.log(1.0 - w[0]) - 3.0 * w[0]), np.array([1.0 / (1.0 - w[0]) - 3.0])

    found = minimise(wall, np.zeros(1), steps=100, tolerance=1e-12)
    np.testing.assert_allclose(found.point, [2.0 / 3.0], atol=1e-5)


def test_inner_products_of_any_length() -> None:
    rng = np.random.default_rng(2)
    for n in range(10):
        a, b = rng.normal(size=n), rng.normal(size=n)
        np.testing.assert_allclose(dot(a, b), np.sum(a * b), atol=1e-12)
