"""Places and marks: what overlaps is one place, and marks show every flagged character."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.errors import InvalidScores
from conformal.risk import place_numbers, shown_marks
from tests.conformal.risk.strategies import levels, spans

Span = tuple[int, int]


def characters(chosen: list[Span]) -> set[int]:
    return {c for start, end in chosen for c in range(start, end)}


def meet(one: Span, other: Span) -> bool:
    return bool(characters([one]) & characters([other]))


@given(st.lists(spans, max_size=9))
def test_a_place_is_what_hangs_together_by_shared_characters(given_spans: list[Span]) -> None:
    numbers = place_numbers([s for s, _ in given_spans], [e for _, e in given_spans])
    # Connected parts, by joining until nothing changes.
    parts = list(range(len(given_spans)))
    for _ in given_spans:
        for i, one in enumerate(given_spans):
            for j, other in enumerate(given_spans):
                if meet(one, other):
                    parts[i] = parts[j] = min(parts[i], parts[j])
    for i in range(len(parts)):
        for j in range(len(parts)):
            assert (parts[i] == parts[j]) == (numbers[i] == numbers[j])
    by_position = [numbers[i] for i in sorted(range(len(parts)), key=lambda i: given_spans[i])]
    assert by_position == sorted(by_position)
    assert set(by_position) == set(range(len(set(parts))))


@given(st.lists(st.tuples(spans, levels, st.booleans()), max_size=9))
def test_marks_show_every_flagged_character_and_no_mark_is_idle(flagged: list[tuple[Span, float, bool]]) -> None:
    own = [span for span, _, _ in flagged]
    doubts = [doubt for _, doubt, _ in flagged]
    best = [mark for _, _, mark in flagged]
    shown = shown_marks([s for s, _ in own], [e for _, e in own], doubts, best).tolist()
    assert all(mark for mark, inside in zip(shown, best, strict=True) if inside)
    assert characters([span for span, mark in zip(own, shown, strict=True) if mark]) == characters(own)
    # The rule, by hand: others by falling doubt, the longer first, unless what is shown covers them.
    seen = characters([span for span, inside in zip(own, best, strict=True) if inside])
    others = [i for i, inside in enumerate(best) if not inside]
    for i in sorted(others, key=lambda i: (-doubts[i], own[i][0] - own[i][1], own[i][0], i)):
        assert shown[i] == (not characters([own[i]]) <= seen)
        if shown[i]:
            seen |= characters([own[i]])


def test_a_long_document_is_marked_like_a_short_one() -> None:
    rng = np.random.default_rng(1)
    starts = rng.integers(0, 20_000, 4000)
    ends = starts + rng.integers(1, 60, 4000)
    shown = shown_marks(starts, ends, rng.random(4000), rng.random(4000) < 0.1)
    covered = np.zeros(20_100, dtype=np.bool_)
    wanted = covered.copy()
    for start, end, mark in zip(starts, ends, shown, strict=True):
        wanted[start:end] = True
        if mark:
            covered[start:end] = True
    assert np.array_equal(covered, wanted)
    assert shown.sum() < 2500


def test_bad_columns_are_refused() -> None:
    with pytest.raises(InvalidScores, match="end after they start"):
        place_numbers([2], [2])
    with pytest.raises(InvalidScores, match="mark of the best labeling"):
        shown_marks([0], [1], [0.5], [])
    with pytest.raises(InvalidScores, match="doubt between 0 and 1"):
        shown_marks([0], [1], [2.0], [True])
