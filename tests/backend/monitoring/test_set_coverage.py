"""Sets judged by labels: full sets of every kind of method, classes of spans, what became of flags."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from backend.domain.guarantee import Guarantee
from backend.domain.ranked import Candidate, RankedList, RankedText, RankedUnit, one_unit
from backend.domain.records import EntityRow, SequenceScores, Served, TextSpan
from backend.monitoring.set_coverage import LabelledUnit, flagged, judge_classes, judge_labelings, judge_set
from backend.prediction.calibration import Calibration
from backend.store.packed_lists import pack_ranked
from conformal.rows import EntityRows, TaskRows
from conformal.thresholds import calibrate

NOW = datetime(2026, 1, 1, tzinfo=UTC)
INF = math.inf


def served(*, tau: float, size: int | None, shown: int = 2, ranked: bytes = b"") -> Served:
    return Served(1, 1, None, False, "de/1-10", "de/1-10", "own", 99, tau, size is None, size, shown, ranked, NOW)


@pytest.mark.parametrize(
    ("method", "tau", "size", "nll", "rank", "covered", "shown"),
    [
        # Of a later release, after a way back: nothing is known of its sets unless they hold everything.
        ("of-next-year", 2.0, 3, 1.0, 2.0, None, None),
        ("of-next-year", INF, None, 1.0, 2.0, True, None),
        ("nc1", 1.0, 3, 9.0, 3.0, True, False),  # the rank decides: it does not hang on the last bit of a score
        ("nc1", 1.0, 3, 0.1, 4.0, False, False),
        ("nc1", 1.0, 0, 0.1, 1.0, False, True),  # an empty set, beside which y(1) is shown
        ("nc1", 9.0, 5000, 8.0, INF, True, False),  # beyond the rank limit nc1 still knows
        ("nc1", 9.0, 5000, 10.0, INF, False, False),
        ("nc1", 9.0, None, 8.0, INF, True, False),  # too long to list, but bounded
        # Beyond rank 100 logrank goes on by probability: -log(P / 101), and log(101) is 4.615 (METHODS 4.2).
        ("logrank+nc1", 9.0, 5000, 4.3, INF, True, False),
        ("logrank+nc1", 9.0, 5000, 4.5, INF, False, False),
        ("logrank+nc1", 9.0, None, 4.3, INF, True, False),
        ("logrank+nc1", 9.0, None, 8.2, 2.0, True, True),  # the rank is known, the size of the set is not
        ("logrank+nc1", 9.0, None, 8.4, 2.0, False, True),
        ("logrank+nc1", 9.0, 3, 9.0, 3.0, True, False),
        ("logrank+nc1", 9.0, 5000, INF, INF, False, False),
        ("logrank+nc1/raps+nc1", 9.0, 5000, 4.3, INF, True, False),
        ("nc3", 2.0, 2, 99.0, 2.0, True, True),
        ("raps+nc1", 0.3, 3, 0.1, 4.0, False, False),
        ("raps+nc1", 0.3, 3, INF, INF, False, False),
        ("nc2", INF, None, INF, INF, True, False),  # an infinite threshold holds what the model cannot express
        ("integrated+nc1", 0.3, 3, 0.1, 1.0, None, None),
        ("integrated", INF, None, 0.1, 1.0, True, None),
        ("integrated_sidak+nc1", 0.3, 3, 0.1, 1.0, None, None),
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
            served(tau=1.0, size=1, ranked=pack_ranked(one_unit(DOUBTFUL))),
            [LabelledUnit("en/1-10", SequenceScores(0.5, 1.0, 0.6))],
            draw=lambda _: 0.0,
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


def document() -> tuple[Calibration, list[LabelledUnit], RankedText]:
    """Two pools with a hundred one-unit tasks each; a text with two sentences in the first and one in the second."""
    scores = np.linspace(0.1, 5.0, 100)
    rows = TaskRows.of(["en/1-10"] * 100 + ["en/11-20"] * 100, -np.concatenate([scores, scores / 2]))
    made = Calibration(calibrate(rows, classes=["PER", "LOC"], n_min=50), Guarantee.OWN, 3)
    listed = RankedList(("PER", "LOC"), (-0.1, -2.0, -4.5), ((), (TextSpan(0, 4, "PER"),), ()), exhausted=True)
    text = RankedText(
        (
            RankedUnit(0, 5, "en/1-10", listed),
            RankedUnit(5, 10, "en/1-10", listed),
            RankedUnit(10, 30, "en/11-20", listed),
        )
    )
    units = [
        LabelledUnit("en/1-10", SequenceScores(0.1, 1.0, 0.9)),
        LabelledUnit("en/1-10", SequenceScores(4.5, 3.0, 1.0)),
        LabelledUnit("en/11-20", SequenceScores(2.0, 2.0, 0.95)),
    ]
    return made, units, text


def test_one_unit_of_every_pool_stands_for_a_document() -> None:
    made, units, text = document()
    common = {"spans": (), "entities": (), "method": "nc1", "calibration": made, "alpha": "0.2"}
    kept = replace(served(tau=1.0, size=1, ranked=pack_ranked(text)), shown=8)
    first, last = (judge_set(kept, units, draw=lambda _, at=at: at, **common) for at in (0.0, 0.99))  # type: ignore[arg-type]
    # tau is 4.0 in the first pool and 2.0 in the second: sets of two labelings each.
    assert [(each.stratum, each.covered, each.size) for each in first.drawn] == [
        ("en/1-10", True, 2),
        ("en/11-20", True, 2),
    ]
    assert [each.covered for each in last.drawn] == [False, True]
    assert {each.guarantee for each in first.drawn} == {"own"}
    assert {each.n for each in first.drawn} == {100}
    assert (first.units, first.whole, first.shown, first.accepted) == ((3, 2), False, False, False)
    better = [units[0], LabelledUnit("en/1-10", SequenceScores(2.0, 2.0, 0.95)), units[2]]
    found = judge_set(kept, better, draw=lambda _: 0.0, **common)  # type: ignore[arg-type]
    assert (found.units, found.whole, found.shown) == ((3, 3), True, True)
    assert not judge_set(replace(kept, shown=1), better, draw=lambda _: 0.0, **common).shown  # type: ignore[arg-type]


def test_a_document_that_was_cut_otherwise_is_not_judged() -> None:
    made, units, text = document()
    kept = served(tau=1.0, size=1, ranked=pack_ranked(text))
    common = {"spans": (), "entities": (), "method": "nc1", "alpha": "0.2", "draw": lambda _: 0.0}
    for some, calibration in ((units[:2], made), (units, None)):
        found = judge_set(kept, some, calibration=calibration, **common)  # type: ignore[arg-type]
        assert [each.covered for each in found.drawn] == [None]
        assert (found.units, found.whole, found.shown) == ((0, 0), None, None)
