"""Doubts of spans: what they are, and that the rules they make are nested (METHODS 11.2 and 11.3)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.errors import InvalidScores
from conformal.risk import FLOOR, span_doubts


def test_a_span_of_the_best_labeling_is_doubted_by_its_class_and_others_by_all_classes() -> None:
    table = [[0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]
    assert span_doubts(table, [0, 1, None]) == pytest.approx([0.3, 0.8, 0.4])


def test_rounding_stays_inside_0_and_1_and_below_the_floor_there_is_no_doubt() -> None:
    table = [[1.0 + 1e-9, 0.0, -1e-9], [0.0, 0.0, 1.0 + 1e-9], [0.0, FLOOR / 2, 1 - FLOOR / 2], [0, 0, 0]]
    assert span_doubts(table, [0, None, None, 1]).tolist() == [0.0, 0.0, 0.0, 1.0]


def test_no_span_is_a_table_without_rows() -> None:
    assert span_doubts(np.zeros((0, 3)), []).shape == (0,)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.sampled_from([None, 0, 1])), min_size=1, max_size=8))
def test_doubts_are_what_the_definition_says(spans: list[tuple[float, float, int | None]]) -> None:
    table = [[a * b, a * (1 - b), 1 - a] for a, b, _ in spans]
    got = span_doubts(table, [w for _, _, w in spans])
    for row, (_, _, w), doubt in zip(table, spans, got, strict=True):
        wanted = 1 - (row[-1] if w is None else row[w])
        assert doubt == pytest.approx(wanted if wanted >= FLOOR else 0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("table", "best"),
    [
        ([[0.5, 0.5]], [0, None]),
        ([0.5, 0.5], [0]),
        ([[1.0]], [None]),
        ([[0.5, 0.5]], [1]),
        ([[0.5, 0.5]], [-1]),
        ([[float("nan"), 0.5]], [0]),
        ([[1.5, 0.5]], [0]),
    ],
)
def test_what_does_not_fit_is_said(table: object, best: list[int | None]) -> None:
    with pytest.raises(InvalidScores, match=r"expected .* got"):
        span_doubts(table, best)  # type: ignore[arg-type]
