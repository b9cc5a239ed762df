"""Sets judged by labels: full sets of every kind of method, classes of spans, what became of flags."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import pytest

from backend.judging import flagged, judge_classes, judge_labelings, judge_set
from backend.predictor import Calibration, Guarantee
from backend.store.ranked import Candidate, RankedList, pack_ranked
from backend.store.types import EntityRow, SequenceScores, Served, TextSpan
from conformal.rows import EntityRows, TaskRows
from conformal.thresholds import calibrate

NOW = datetime(2026, 1, 1, tzinfo=UTC)
INF = math.inf


def served(*, tau: float, size: int | None, shown: int = 2, ranked: bytes = b"") -> Served:
    return Served(1, 1, None, False, "de/1-10", "de/1-10", "own", 99, tau, size is None, size, shown, ranked, NOW)


@pytest.mark.parametrize(
    ("method", "tau", "size", "nll", "rank", "covered", "shown"),
    [
        ("nc1", 1.0, 3, 9.0, 3.0, True, False),  # the rank decides: it does not hang on the last bit of a score
        ("nc1", 1.0, 3, 0.1, 4.0, False, False),
        ("nc1", 1.0, 0, 0.1, 1.0, False, True),  # an empty set, beside which y(1) is shown
        ("nc1", 9.0, 5000, 8.0, INF, True, False),  # beyond the rank limit nc1 still knows
        ("nc1", 9.0, 5000, 10.0, INF, False, False),
        ("nc1", 9.0, None, 8.0, INF, True, False),  # too long to list, but bounded
        ("nc3", 2.0, 2, 99.0, 2.0, True, True),
        ("raps+nc1", 0.3, 3, 0.1, 4.0, False, False),
        ("raps+nc1", 0.3, 3, INF, INF, False, False),
        ("nc2", INF, None, INF, INF, True, False),  # an infinite threshold holds what the model cannot express
        ("integrated+nc1", 0.3, 3, 0.1, 1.0, None, None),
        ("integrated", INF, None, 0.1, 1.0, True, None),
    ],
)
def test_full_sets(
    method: str, tau: float, size: int | None, nll: float, rank: float, covered: bool | None, shown: bool | None
) -> None:
    found = judge_labelings(served(tau=tau, size=size), SequenceScores(nll, rank, 0.5), method=method)
    assert found == (covered, shown)


def calibration(*, classes: tuple[str, ...] = ("PER", "LOC")) -> Calibration:
    """Entities of 0.5 and more are in at alpha 0.1; O is in from 0.3."""
    tasks = TaskRows.of(["de/1-10"] * 40, np.full(40, -0.1))
    labels = [*(["PER"] * 40), *(["LOC"] * 40), *(["O"] * 40)]
    shares = np.concatenate([np.linspace(0.5, 1, 40), np.linspace(0.5, 1, 40), np.linspace(0.3, 1, 40)])
    rows = EntityRows.of(np.tile(np.arange(40), 3), labels, probability=shares)
    return Calibration(calibrate(tasks, rows, classes=classes, n_min=10), Guarantee.OWN, 3)


def test_every_true_entity_counts_for_its_class() -> None:
    rows = [
        EntityRow(0, 3, "PER", 0.9, 0.9, 1.0, 1.0),
        EntityRow(5, 8, "PER", 0.01, 0.99, 2.0, INF),  # no candidate, never shown
        EntityRow(9, 12, "LOC", 0.8, 0.8, 1.0, 1.0),
        EntityRow(20, 25, "O", 0.99, 0.99, 1.0, INF),
    ]
    assert judge_classes(rows, calibration(), alpha="0.1") == {"PER": (2, 1), "LOC": (1, 1)}
    few = Calibration(calibrate(TaskRows.of(["de/1-10"], [-0.1]), classes=("PER", "LOC"), n_min=10), Guarantee.NONE, 0)
    assert judge_classes(rows, few, alpha="0.1") == {}
    borrowing = Calibration(few.thresholds, Guarantee.NONE, 1, calibration())
    assert judge_classes(rows, borrowing, alpha="0.1") == {"PER": (2, 1), "LOC": (1, 1)}


PER, LOC = TextSpan(0, 3, "PER"), TextSpan(0, 3, "LOC")
DOUBTFUL = RankedList(
    ("PER", "LOC"),
    (math.log(0.6),),
    ((PER, TextSpan(10, 14, "LOC")),),
    exhausted=False,
    candidates=(Candidate(0, 3, (0.55, 0.05)), Candidate(5, 8, (0.55, 0.0)), Candidate(10, 14, (0.0, 0.99))),
)


def test_flags_end_as_people_decide() -> None:
    made = calibration()
    assert flagged(DOUBTFUL, made, alpha="0.1") == [(0, 3), (5, 8)]
    sure = TextSpan(10, 14, "LOC")
    fates = {
        (PER, sure): {"kept": 1, "left": 1},
        (LOC, sure): {"relabelled": 1, "left": 1},
        (sure,): {"removed": 1, "left": 1},
        (PER, TextSpan(5, 8, "PER"), sure): {"kept": 1, "added": 1},
    }
    for spans, expected in fates.items():
        found = judge_set(
            served(tau=1.0, size=1, ranked=pack_ranked(DOUBTFUL)),
            SequenceScores(0.5, 1.0, 0.6),
            spans=spans,
            entities=(),
            method="nc1",
            calibration=made,
            alpha="0.1",
        )
        assert found.flags == expected
        assert found.accepted


def test_lists_over_other_classes_and_empty_ones_say_nothing_of_flags() -> None:
    other = calibration(classes=("LOC", "PER"))
    assert flagged(DOUBTFUL, other, alpha="0.1") == []
    assert flagged(RankedList(("PER", "LOC"), (), (), exhausted=True), calibration(), alpha="0.1") == []
