"""The controlled level, against trying every level in exact fractions (METHODS 11.4)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.errors import InvalidArgument
from conformal.risk import ErrorRows, TaskErrors, control_risk
from tests.conformal.risk.strategies import tasks

EPSILONS = ("0.5", "0.25", "0.2", "0.1", "0.05", "1/3", "0.07")


def level_by_trying(given_tasks: list[TaskErrors], eps: str, weights: list[float], test: float | None) -> float:
    """Try every level at which a loss changes, from the greatest, in fractions."""
    kept = [(task, Fraction(w)) for task, w in zip(given_tasks, weights, strict=True) if task.entities + task.best]
    most = Fraction(test) if test is not None else max((w for _, w in kept), default=Fraction(1))
    every = {level for task, _ in kept for level in (*task.missing, *task.false)}
    for level in [float("inf"), *sorted(every, reverse=True)]:
        total = most
        for task, weight in kept:
            missing = sum(seen < level for seen in task.missing)
            false = sum(seen < level for seen in task.false)
            total += weight * Fraction(missing + false, max(1, task.entities + false))
        if total <= Fraction(eps) * (sum((w for _, w in kept), Fraction(0)) + most):
            return level
    return 0.0


@given(tasks, st.sampled_from(EPSILONS), st.integers(1, 40))
def test_the_level_is_the_greatest_that_suffices(given_tasks: list[TaskErrors], eps: str, times: int) -> None:
    many = given_tasks * times
    assert control_risk(ErrorRows.of(many), eps) == level_by_trying(many, eps, [1.0] * len(many), None)


@given(tasks, st.sampled_from(EPSILONS), st.integers(1, 10), st.data())
def test_with_weights_too(given_tasks: list[TaskErrors], eps: str, times: int, data: st.DataObject) -> None:
    many = given_tasks * times
    weight = st.sampled_from([0.1, 0.3, 1.0, 2.5])
    weights = data.draw(st.lists(weight, min_size=len(many), max_size=len(many)))
    test = data.draw(st.sampled_from([None, 2.5, 4.0]))
    assert control_risk(ErrorRows.of(many, weight=weights), eps, test_weight=test) == level_by_trying(
        many, eps, weights, test
    )


def test_the_border_belongs_to_the_promise() -> None:
    # (1 + 1) / (19 + 1) is 0.1, and 0.1 as a float lies above it: one error may be left behind, not two.
    rows = ErrorRows.of([TaskErrors(1, 1, (0.2,), ()), TaskErrors(1, 1, (0.3,), ()), *[TaskErrors(1, 1, (), ())] * 17])
    assert control_risk(rows, "0.1") == 0.3
    assert control_risk(rows.take(range(18)), "0.1") == 0.2  # (1 + 1) / 19 is more
    assert control_risk(rows, "0.15") == float("inf")
    thirds = ErrorRows.of([TaskErrors(3, 3, (0.4,), ()), *[TaskErrors(3, 3, (), ())] * 6])
    assert control_risk(thirds, Fraction(1, 6)) == float("inf")  # (1/3 + 1) / 8, exactly


def test_too_few_tasks_leave_nothing_alone_and_empty_ones_do_not_count() -> None:
    right = TaskErrors(1, 1, (), ())
    assert control_risk(ErrorRows.of([right] * 18), "0.05") == 0.0
    assert control_risk(ErrorRows.of([right] * 19), "0.05") == float("inf")
    assert control_risk(ErrorRows.of([right] * 18 + [TaskErrors(0, 0, (), ())] * 50), "0.05") == 0.0
    assert control_risk(ErrorRows.of([]), "0.5") == 0.0


def test_more_is_flagged_for_a_stricter_promise() -> None:
    rows = ErrorRows.of([TaskErrors(2, 2, (0.01 * i,), ()) for i in range(1, 90)])
    found = [control_risk(rows, eps) for eps in ("0.4", "0.2", "0.1", "0.05", "0.02")]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] > 0


def test_bad_options_are_refused() -> None:
    rows = ErrorRows.of([TaskErrors(1, 1, (), ())], weight=[2.0])
    with pytest.raises(InvalidArgument, match="max_error strictly between 0 and 1, got 0"):
        control_risk(rows, "0")
    with pytest.raises(InvalidArgument, match=r"max_error as a decimal such as '0\.05', got 'five'"):
        control_risk(rows, "five")
    for test in (1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument, match="at least the greatest weight"):
            control_risk(rows, "0.1", test_weight=test)
