"""Conformal risk control: the level whose flags leave at most a share eps behind, on average (METHODS 11.4).

Angelopoulos, Bates, Fisch, Lei, Schuster, "Conformal risk control" (2022).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from conformal.errors import InvalidArgument
from conformal.quantile import Floats, Level, exact_level
from conformal.risk.losses import ErrorRows

_ROUNDING = 1e-9  # floats decide outside this distance from the border, fractions inside it


def exact_max_error(max_error: Level) -> Fraction:
    """Return eps as the fraction its digits spell; raises `InvalidArgument` outside (0, 1)."""
    try:
        return exact_level(max_error)
    except InvalidArgument as error:
        raise InvalidArgument(str(error).replace("alpha", "max_error")) from None


def control_risk(rows: ErrorRows, max_error: str | Fraction, *, test_weight: float | None = None) -> float:
    """Return the greatest level with `(sum w_i l_i + w_max) / (sum w_i + w_max) <= max_error`.

    Over tasks with a true or predicted span. For a task drawn like the calibration tasks `E[l(level)] <= max_error`:
    an average over tasks and calibration draws. With weights 1/(known selection probability), w_max is `test_weight`,
    no less than any task's weight can be; the greatest weight of the rows by default. `inf` when no flag is needed;
    0.0, which flags everything, when no other level suffices. Exact at the border: eps is what its digits spell.

    >>> from conformal.risk.losses import TaskErrors
    >>> tasks = [TaskErrors(1, 0, (0.01 * i,), ()) for i in range(1, 20)]
    >>> control_risk(ErrorRows.of(tasks), "0.1"), control_risk(ErrorRows.of(tasks), "0.04")
    (0.02, 0.0)
    """
    limit = exact_max_error(max_error)
    counted = rows.counted
    used = rows if np.all(counted) else rows.take(counted)
    weights, test = own_weights(used, test_weight)
    return greatest_level(used, lambda level: suffices(used, level, limit, weights, test))


def own_weights(rows: ErrorRows, test_weight: float | None) -> tuple[Floats, float]:
    """Return the rows' weights and that of the test task, no less than any of them."""
    weights = np.ones(len(rows)) if rows.weight is None else rows.weight
    most = float(weights.max(initial=0.0)) or 1.0
    if test_weight is None:
        return weights, most
    if not np.isfinite(test_weight) or test_weight < most:
        raise InvalidArgument(
            f"expected a test weight of at least the greatest weight of the rows, {most:g}, got {test_weight:g}; "
            "give the greatest weight that a task can have, or None"
        )
    return weights, float(test_weight)


def greatest_level(rows: ErrorRows, holds: Callable[[float], bool]) -> float:
    """Return the greatest level where `holds`, 0.0 when there is none; it must not turn back to True."""
    candidates = np.append(np.unique(rows.level), np.inf)  # between two of these no loss changes
    low, high = 0, candidates.size  # all below low suffice, none from high on does
    while low < high:
        middle = (low + high) // 2
        if holds(float(candidates[middle])):
            low = middle + 1
        else:
            high = middle
    return float(candidates[low - 1]) if low else 0.0


def suffices(rows: ErrorRows, level: float, limit: Fraction, weights: Floats, test: float) -> bool:
    """Decide the inequality of `control_risk`: in floats, and in fractions where rounding could matter."""
    wrong, size = rows.left_behind(level)
    total = float(weights.sum()) + test
    excess = float(weights @ (wrong / size)) + test - float(limit) * total
    if abs(excess) > _ROUNDING * total:
        return excess < 0
    distinct, which = np.unique(weights, return_inverse=True)
    left, whole = Fraction(test), Fraction(test)
    for i, weight in enumerate(distinct.tolist()):
        mine = which == i
        sizes, group = np.unique(size[mine], return_inverse=True)
        sums = np.bincount(group, weights=wrong[mine])  # whole numbers
        share = sum((Fraction(int(over), below) for over, below in zip(sums, sizes.tolist(), strict=True)), Fraction(0))
        left += Fraction(weight) * share
        whole += Fraction(weight) * int(mine.sum())
    return left <= limit * whole
