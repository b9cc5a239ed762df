"""Label spaces: spans and labels are two spellings of one thing; repair, folding and other schemes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal import InvalidLabels, LabelSpace, Scheme, Span, detect_scheme, map_model_labels, to_iob2

SPACE = LabelSpace(["PER", "event-sports"])
tag_sequences = st.lists(st.sampled_from(SPACE.labels), max_size=8)


@st.composite
def span_lists(draw: st.DrawFn) -> tuple[list[Span], int]:
    length = draw(st.integers(0, 10))
    cuts = sorted(draw(st.sets(st.integers(0, length), max_size=8)))
    spans = [
        Span(a, b, draw(st.sampled_from(SPACE.classes))) for a, b in itertools.pairwise(cuts) if draw(st.booleans())
    ]
    return spans, length


def test_labels_stand_in_a_fixed_order() -> None:
    assert SPACE.labels == ("O", "B-PER", "I-PER", "B-event-sports", "I-event-sports")
    assert len(SPACE) == 5
    assert [SPACE.index(label) for label in SPACE.labels] == list(range(5))
    assert SPACE.begin("event-sports") == 3


def test_spaces_are_equal_by_classes_and_hashable() -> None:
    assert LabelSpace(["A", "B"]) == LabelSpace(("A", "B"))
    assert LabelSpace(["A", "B"]) != LabelSpace(["B", "A"])
    assert len({LabelSpace(["A"]), LabelSpace(["A"])}) == 1


@given(span_lists())
def test_spans_survive_the_round_trip(made: tuple[list[Span], int]) -> None:
    spans, length = made
    ids = SPACE.ids(spans, length)
    assert SPACE.is_legal(ids)
    assert SPACE.spans(ids) == spans


@given(tag_sequences)
def test_repair_makes_legal_and_leaves_legal_alone(tags: list[str]) -> None:
    ids = SPACE.encode(tags)
    fixed, changed = SPACE.repair(ids)
    assert SPACE.is_legal(fixed)
    assert changed == int((fixed != ids).sum())
    assert (changed == 0) == SPACE.is_legal(ids)
    again, more = SPACE.repair(fixed)
    assert more == 0
    np.testing.assert_array_equal(again, fixed)
    assert [label[2:] for label in SPACE.decode(fixed)] == [label[2:] for label in tags]  # classes stay
    if changed:
        with pytest.raises(InvalidLabels, match="repair"):
            SPACE.spans(ids)


@given(tag_sequences)
def test_allowed_moves_say_the_same_as_is_legal(tags: list[str]) -> None:
    ids = SPACE.encode(tags)
    by_moves = (not len(ids) or bool(SPACE.allowed_start[ids[0]])) and all(
        SPACE.allowed[x, y] for x, y in itertools.pairwise(ids)
    )
    assert SPACE.is_legal(ids) == by_moves


@given(span_lists())
def test_collapse_keeps_spans_and_renames_classes(made: tuple[list[Span], int]) -> None:
    spans, length = made
    one, mapping = SPACE.collapse()
    collapsed = mapping[SPACE.ids(spans, length)]
    assert one.spans(collapsed) == [Span(a, b, "ENTITY") for a, b, _ in spans]


@given(span_lists())
def test_folding_drops_exactly_the_unwanted_classes(made: tuple[list[Span], int]) -> None:
    spans, length = made
    target, groups = SPACE.fold(["PER"])
    assert groups == ((0, 3, 4), (1,), (2,))
    folded = SPACE.fold_ids(SPACE.ids(spans, length), ["PER"])
    assert target.spans(folded) == [span for span in spans if span.label == "PER"]


def test_folding_may_reorder_but_not_invent() -> None:
    target, groups = SPACE.fold(["event-sports", "PER"])
    assert target.labels[1] == "B-event-sports"
    assert groups == ((0,), (3,), (4,), (1,), (2,))
    with pytest.raises(InvalidLabels, match="got 'LOC'"):
        SPACE.fold(["LOC"])


@pytest.mark.parametrize("classes", [[], [""], ["  "], ["O"], ["A", "A"], [3]])
def test_bad_classes(classes: list) -> None:
    with pytest.raises(InvalidLabels, match="expected"):
        LabelSpace(classes)


def test_bad_labels_and_spans() -> None:
    for wrong in ([5], [-1]):
        with pytest.raises(InvalidLabels, match=r"ids in 0\.\.4"):
            SPACE.decode(wrong)
    with pytest.raises(InvalidLabels, match="B-LOC"):
        SPACE.encode(["B-LOC"])
    with pytest.raises(InvalidLabels, match="overlap"):
        SPACE.ids([Span(0, 2, "PER"), Span(1, 3, "PER")], 3)
    with pytest.raises(InvalidLabels, match=r"inside 0\.\.3"):
        SPACE.ids([Span(2, 4, "PER")], 3)


@given(span_lists())
def test_every_scheme_reads_back(made: tuple[list[Span], int]) -> None:
    spans, length = made
    iob2 = SPACE.decode(SPACE.ids(spans, length))
    assert to_iob2(iob2, Scheme.IOB2) == (iob2, 0)
    for end, single in (("E", "S"), ("L", "U")):
        tags = list(iob2)
        for a, b, name in spans:
            tags[b - 1] = f"{end}-{name}"
            if b - a == 1:
                tags[a] = f"{single}-{name}"
        assert to_iob2(tags, Scheme.BIOES) == (iob2, 0)
    iob1 = list(iob2)
    for a, _, name in spans:
        if a == 0 or iob2[a - 1][2:] != name:
            iob1[a] = f"I-{name}"
    assert to_iob2(iob1, Scheme.IOB1) == (iob2, 0)


def test_io_joins_neighbours_of_one_class() -> None:
    assert to_iob2(["PER", "PER", "O", "PER", "LOC"], Scheme.IO) == (["B-PER", "I-PER", "O", "B-PER", "B-LOC"], 0)
    assert to_iob2(["I-PER", "I-PER", "I-LOC"], Scheme.IO) == (["B-PER", "I-PER", "B-LOC"], 0)


@pytest.mark.parametrize(
    ("tags", "scheme", "expected", "illegal"),
    [
        (["O", "I-A", "I-A"], Scheme.IOB2, ["O", "B-A", "I-A"], 1),
        (["B-A", "I-C"], Scheme.IOB2, ["B-A", "B-C"], 1),
        (["O", "B-A"], Scheme.IOB1, ["O", "B-A"], 1),
        (["B-A", "O"], Scheme.BIOES, ["B-A", "O"], 1),
        (["S-A", "I-A"], Scheme.BIOES, ["B-A", "B-A"], 2),  # nothing to continue, and never ended
        (["B-A"], Scheme.BIOES, ["B-A"], 1),
    ],
)
def test_illegal_tags_are_repaired_and_counted(tags: list, scheme: Scheme, expected: list, illegal: int) -> None:
    assert to_iob2(tags, scheme) == (expected, illegal)


def test_schemes_are_told_apart() -> None:
    assert detect_scheme(["O", "B-A", "I-A"]) is Scheme.IOB2
    assert detect_scheme(["O", "B-A", "E-A", "S-A"]) is Scheme.BIOES
    assert detect_scheme(["O", "U-A", "L-A"]) is Scheme.BIOES
    assert detect_scheme(["O", "PER", "event-sports"]) is Scheme.IO
    assert detect_scheme(["O", "I-PER"]) is Scheme.IO
    with pytest.raises(InvalidLabels, match="mixture"):
        detect_scheme(["O", "B-A", "LOC"])


def test_model_columns_are_mapped_by_name() -> None:
    io = map_model_labels(["O", "PER", "LOC"])
    assert io.scheme is Scheme.IO
    assert io.space.classes == ("PER", "LOC")
    assert io.groups == ((0,), (1,), (1,), (2,), (2,))
    begin = io.space.index("B-PER")
    assert not io.allowed[begin, begin]  # neighbours of one class are one entity
    assert not io.allowed[begin + 1, begin]
    assert io.allowed[begin, io.space.index("B-LOC")]

    bioes = map_model_labels(["S-PER", "B-PER", "I-PER", "E-PER", "O"])
    assert bioes.groups == ((4,), (1, 0), (2, 3))

    iob1 = map_model_labels(["O", "I-PER", "B-PER"], scheme=Scheme.IOB1)
    assert iob1.groups == ((0,), (2, 1), (1,))

    partial = map_model_labels(["O", "B-PER", "I-PER", "B-LOC"])
    assert partial.groups == ((0,), (1,), (2,), (3,), ())  # the model has no I-LOC

    with pytest.raises(InvalidLabels, match="'O'"):
        map_model_labels(["B-PER", "I-PER"])
    with pytest.raises(InvalidLabels, match="distinct"):
        map_model_labels(["O", "O"])
