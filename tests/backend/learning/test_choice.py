"""Which of two models is better, and that counts alone say when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.learning.choice import LEAST_TO_COMPARE, Rival, is_better

BUNDLED = Rival("bundled@12345678", own=False, blank=False, unknown=0, f1=0.8)
OWN = replace(BUNDLED, own=True)
ENOUGH = LEAST_TO_COMPARE


@pytest.mark.parametrize(
    ("rival", "unknown", "f1", "compared", "better", "why"),
    [
        (replace(BUNDLED, blank=True, unknown=2, f1=None), 0, None, 0, True, "the first model"),
        (replace(BUNDLED, unknown=2), 0, 0.1, ENOUGH, True, "knows 2 more of the project's labels"),
        (replace(OWN, unknown=1), 0, None, 0, True, "knows 1 more"),
        (BUNDLED, 0, 0.9, ENOUGH - 1, False, "too few to compare"),
        (BUNDLED, 0, 0.9, ENOUGH, True, "F1 0.900 against 0.800"),
        (BUNDLED, 0, 0.7, ENOUGH, False, "F1 0.700 against 0.800"),
        (OWN, 0, 0.7, ENOUGH - 1, True, "learnt from more labels"),
        (OWN, 0, 0.7, ENOUGH, False, "F1 0.700 against 0.800"),
        (OWN, 0, 0.8, ENOUGH, True, "F1 0.800 against 0.800"),
        (BUNDLED, 1, 0.9, ENOUGH, True, "F1 0.900"),
    ],
)
def test_a_model_is_better_by_what_it_knows_or_by_labels_held_out_for_that(
    rival: Rival, unknown: int, f1: float | None, compared: int, better: bool, why: str
) -> None:
    found, said = is_better(rival, unknown=unknown, f1=f1, compared=compared)
    assert found is better
    assert why in said
