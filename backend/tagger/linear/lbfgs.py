"""L-BFGS for smooth convex functions: limited memory, backtracking line search. Deterministic; numpy only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from backend.tagger.linear.kernels import dot

Floats = npt.NDArray[np.float64]
Function = Callable[[Floats], tuple[float, Floats]]

_ARMIJO = 1e-4
_SHRINK = 0.5
_MOST_HALVINGS = 30


class Minimum(NamedTuple):
    """Where the search ended: the point, its value, steps taken, and whether it met the tolerance."""

    point: Floats
    value: float
    steps: int
    converged: bool


def minimise(
    function: Function,
    start: Floats,
    *,
    steps: int = 100,
    tolerance: float = 1e-3,
    memory: int = 6,
    progress: Callable[[int, float], None] | None = None,
) -> Minimum:
    """Minimise a smooth convex function that returns its value and gradient.

    Stops when the value has fallen by less than `tolerance` of itself over the last five steps, when the gradient
    vanishes, or after `steps`.

    >>> found = minimise(lambda x: (float(((x - 3) ** 2).sum()), 2 * (x - 3)), np.zeros(2), tolerance=1e-9)
    >>> found.point.round(6).tolist(), found.converged
    ([3.0, 3.0], True)
    """
    point = start.copy()
    value, gradient = function(point)
    pairs: deque[tuple[Floats, Floats, float]] = deque(maxlen=memory)
    values = deque([value], maxlen=6)
    for step in range(1, steps + 1):
        norm = float(np.sqrt(dot(gradient, gradient)))
        if norm <= 1e-10 * max(1.0, abs(value)):
            return Minimum(point, value, step - 1, True)
        direction = _direction(gradient, pairs)
        slope = dot(gradient, direction)
        if slope >= 0.0:  # rounding has spoilt the memory
            pairs.clear()
            direction, slope = -gradient, -norm * norm
        length = 1.0 if pairs else min(1.0, 1.0 / norm)
        for _ in range(_MOST_HALVINGS):
            tried = point + length * direction
            new_value, new_gradient = function(tried)
            if np.isfinite(new_value) and new_value <= value + _ARMIJO * length * slope:
                break
            length *= _SHRINK
        else:
            return Minimum(point, value, step - 1, True)  # nothing lower in reach of a double
        moved, bent = tried - point, new_gradient - gradient
        curve = dot(moved, bent)
        if curve > 1e-12 * dot(bent, bent):
            pairs.append((moved, bent, 1.0 / curve))
        point, value, gradient = tried, new_value, new_gradient
        values.append(value)
        if progress is not None:
            progress(step, value)
        if len(values) == values.maxlen and values[0] - value < tolerance * max(abs(value), 1e-12):
            return Minimum(point, value, step, True)
    return Minimum(point, value, steps, False)


def _direction(gradient: Floats, pairs: deque[tuple[Floats, Floats, float]]) -> Floats:
    """Return minus the inverse Hessian, as far as it is remembered, times the gradient."""
    direction = -gradient
    shares: list[float] = []
    for moved, bent, inverse in reversed(pairs):
        share = inverse * dot(moved, direction)
        shares.append(share)
        direction -= share * bent
    if pairs:
        moved, bent, _ = pairs[-1]
        direction *= dot(moved, bent) / dot(bent, bent)
    for (moved, bent, inverse), share in zip(pairs, reversed(shares), strict=True):
        direction += (share - inverse * dot(bent, direction)) * moved
    return direction
