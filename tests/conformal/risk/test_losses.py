"""Errors and losses, against the definitions written out (METHODS 11.1 and 11.3)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.errors import InvalidScores
from conformal.risk import ErrorRows, TaskErrors, find_errors
from tests.conformal.risk.strategies import LEVELS, labelled, levels, spans, tasks

Labelled = list[tuple[int, int, str]]
Listed = list[tuple[tuple[int, int], float]]


def columns(listed: Listed) -> dict[str, list[float]]:
    return {
        "starts": [span[0] for span, _ in listed],
        "ends": [span[1] for span, _ in listed],
        "doubts": [doubt for _, doubt in listed],
    }


def loss_by_hand(true: Labelled, best: Labelled, listed: Listed, level: float) -> Fraction:
    """The loss of one task as METHODS 11.1 words it: flag, look, put right, count."""
    flagged = {c for (start, end), doubt in listed if doubt >= level for c in range(start, end)}
    everything = level == 0
    left = [span for span in set(true) ^ set(best) if not everything and not flagged & set(range(span[0], span[1]))]
    false = sum(span in set(best) for span in left)
    return Fraction(len(left), max(1, len(set(true)) + false))


@given(
    st.lists(labelled, max_size=6),
    st.lists(labelled, max_size=6),
    st.lists(st.tuples(spans, levels), max_size=8),
    st.sampled_from([*LEVELS, 0.3, float("inf")]),
)
def test_the_loss_is_what_flagging_and_putting_right_leaves(
    true: Labelled, best: Labelled, listed: Listed, level: float
) -> None:
    errors = find_errors(true, best, **columns(listed))
    assert (errors.entities, errors.best) == (len(set(true)), len(set(best)))
    (loss,) = ErrorRows.of([errors]).losses(level)
    assert loss == float(loss_by_hand(true, best, listed, level))


def test_an_error_is_seen_from_the_greatest_doubt_that_shares_a_character() -> None:
    listed: Listed = [((0, 3), 0.2), ((2, 5), 0.6), ((5, 9), 0.9), ((20, 21), 0.4)]
    errors = find_errors([(3, 5, "PER"), (30, 31, "LOC")], [(8, 22, "PER")], **columns(listed))
    assert errors == TaskErrors(2, 1, (0.6, 0.0), (0.9,))  # (5, 9) only meets (3, 5)


def test_a_wrong_class_is_two_errors_and_a_span_given_twice_is_one() -> None:
    errors = find_errors([(0, 2, "PER")] * 2, [(0, 2, "LOC")], **columns([((0, 2), 0.5)]))
    assert errors == TaskErrors(1, 1, (0.5,), (0.5,))


def test_a_document_of_many_spans_is_as_exact_as_a_sentence() -> None:
    rng = np.random.default_rng(0)
    size = 3000
    starts = rng.integers(0, 40_000, size)
    ends = starts + rng.choice([1, 3, 8, 40, 4000], size)
    doubts = rng.random(size)
    true = [(int(a), int(a) + int(n), "PER") for a, n in rng.integers((0, 1), (40_000, 90), (200, 2))]
    errors = find_errors(true, [], starts=starts, ends=ends, doubts=doubts)
    wanted = [float(doubts[(starts < end) & (ends > start)].max(initial=0.0)) for start, end, _ in sorted(set(true))]
    assert list(errors.missing) == wanted


@given(tasks, st.lists(st.floats(0, 1.5), min_size=2, max_size=2))
def test_losses_lie_in_0_to_1_and_rise_with_the_level(given_tasks: list[TaskErrors], pair: list[float]) -> None:
    rows = ErrorRows.of(given_tasks)
    low, high = (rows.losses(level) for level in sorted(pair))
    assert np.all((low >= 0) & (low <= high) & (high <= 1))
    assert not rows.losses(0.0).any()


@given(tasks, st.data())
def test_taking_rows_takes_their_errors(given_tasks: list[TaskErrors], data: st.DataObject) -> None:
    rows = ErrorRows.of(given_tasks, weight=[1.0 + i for i in range(len(given_tasks))])
    shuffled = np.array(data.draw(st.permutations(range(rows.task.size))), dtype=np.int64)
    rows = ErrorRows(
        rows.entities, rows.best, rows.weight, rows.task[shuffled], rows.level[shuffled], rows.false[shuffled]
    )
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)) if len(rows) else []
    taken = rows.take(np.array(index, dtype=np.int64))
    assert taken.weight is not None
    assert taken.weight.tolist() == [1.0 + i for i in index]
    for level in (0.1, 0.5, float("inf")):
        assert taken.losses(level).tolist() == [rows.losses(level)[i] for i in index]
    marks = rows.counted
    assert marks.tolist() == [t.entities + t.best > 0 for t in given_tasks]
    assert rows.take(marks).losses(0.5).tolist() == rows.losses(0.5)[marks].tolist()


def test_rows_that_contradict_themselves_are_refused() -> None:
    one = np.ones(1, dtype=np.int64)
    none = np.zeros(0, dtype=np.int64)
    marks = np.zeros(1, dtype=np.bool_)
    for rows, reason in [
        ((one, none, None, none, np.zeros(0), marks[:0]), "counts"),
        ((one, one, np.array([0.0]), none, np.zeros(0), marks[:0]), "weight"),
        ((one, one, None, one, np.array([0.5]), marks), "tasks 0 to 0"),
        ((one, one, None, one - 1, np.array([1.5]), marks), "between 0 and 1"),
        ((one, one, None, one - 1, np.array([0.5, 0.5]), marks), "different length"),
        ((one - 1, one, None, one - 1, np.array([0.5]), marks), "missing"),
        ((one, one - 1, None, one - 1, np.array([0.5]), ~marks), "false"),
    ]:
        with pytest.raises(InvalidScores, match=reason):
            ErrorRows(*rows)


def test_bad_spans_and_levels_are_refused() -> None:
    with pytest.raises(InvalidScores, match=r"end after they start, got \(3, 3\)"):
        find_errors([(3, 3, "PER")], [], starts=[], ends=[], doubts=[])
    with pytest.raises(InvalidScores, match="one end for each start"):
        find_errors([], [], starts=[1], ends=[], doubts=[])
    with pytest.raises(InvalidScores, match="whole numbers"):
        find_errors([], [], starts=[0.5], ends=[1.5], doubts=[0.1])
    with pytest.raises(InvalidScores, match="doubt between 0 and 1"):
        find_errors([], [], starts=[1], ends=[2], doubts=[np.nan])
    for level in (-0.1, float("nan")):
        with pytest.raises(InvalidScores, match="level of at least 0"):
            ErrorRows.of([]).losses(level)
