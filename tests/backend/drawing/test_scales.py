"""Ticks: round, inside, few, for every range."""

from __future__ import annotations

import itertools
from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from backend.drawing.scales import Scale, day_ticks, ticks

DAY = date(2026, 3, 31)


@given(low=st.floats(-1e6, 1e6), width=st.floats(1e-6, 1e6), most=st.integers(2, 10))
def test_ticks_lie_inside_in_order_and_are_few(low: float, width: float, most: int) -> None:
    high = low + width
    found = ticks(low, high, most=most)
    assert 0 <= len(found) <= most
    assert found == sorted(found)
    assert all(low - 0.01 * width <= tick <= high + 0.01 * width for tick in found)


@given(days=st.integers(0, 2000), most=st.integers(1, 8))
def test_named_days_are_evenly_apart_and_the_last_is_among_them(days: int, most: int) -> None:
    named = day_ticks([DAY - timedelta(days=days), DAY], most=most)
    assert named[-1] == DAY
    assert len({after - before for before, after in itertools.pairwise(named)}) <= 1
    assert len(named) <= max(most, days // 365 + 1)


def test_a_scale_that_runs_up_is_the_other_way_round() -> None:
    assert Scale(0.0, 10.0).at(2.0) == 100.0 - Scale(0.0, 10.0, upwards=True).at(2.0)
    assert Scale(0.0, 10.0).at(12.0) == 120.0
