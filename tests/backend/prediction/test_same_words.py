"""Words that people labelled, found elsewhere: exact, clear, free, and bounded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.domain.records import TextSpan
from backend.prediction import same_words
from backend.prediction.same_words import (
    MOST_FOUND,
    LabelledWords,
    SameWords,
    WordIndex,
    find_same,
    index_drawn,
    index_words,
    read_words,
)

LABELS = {"PER", "LOC", "ORG"}


def labelled(task: str, text: str, *words: tuple[str, str]) -> LabelledWords:
    """Label the first occurrence of each of these words."""
    return read_words(task, text, [TextSpan(text.index(w), text.index(w) + len(w), label) for w, label in words])


def found(
    index: WordIndex, text: str, *, taken: tuple[TextSpan, ...] = (), task: str | None = "new"
) -> list[tuple[str, str]]:
    same = find_same(index, text, taken=taken, labels=LABELS, task=task)
    return [(text[each.span.start : each.span.end], each.span.label) for each in same]


def test_words_of_another_task_are_found_everywhere_and_say_where_they_were() -> None:
    index = index_words([labelled("7", "Ann is in New York.", ("New York", "LOC"))])
    text = "New York, then New York again"
    assert find_same(index, text, taken=(), labels=LABELS, task="8") == (
        SameWords(TextSpan(0, 8, "LOC"), "7", 1, 1),
        SameWords(TextSpan(15, 23, "LOC"), "7", 1, 1),
    )


@pytest.mark.parametrize("text", ["new york", "New  York", "New Yorker", "ANew York", "New-York", "NewYork"])
def test_only_the_very_same_characters_between_borders_of_tokens_are_found(text: str) -> None:
    index = index_words([labelled("7", "In New York.", ("New York", "LOC"))])
    assert found(index, text) == []


def test_a_label_is_clear_with_three_quarters_of_the_votes() -> None:
    person, place = ("Jordan", "PER"), ("Jordan", "LOC")
    texts = [labelled(str(i), f"Jordan {i}", person) for i in range(3)]
    assert found(index_words([*texts, labelled("9", "Jordan 9", place)]), "Jordan") == [person]
    assert found(index_words([*texts[:2], labelled("9", "Jordan 9", place)]), "Jordan") == []


def test_leaving_words_alone_is_a_vote_too() -> None:
    one = labelled("1", "May came", ("May", "PER"))
    left = [read_words(str(i), "In May it rains", []) for i in (2, 3)]
    assert found(index_words([one]), "May") == [("May", "PER")]
    assert found(index_words([one, *left]), "May") == []


def test_a_task_has_one_vote_for_each_thing_that_was_done_in_it() -> None:
    often = "Jordan and Jordan and Jordan"
    spans = [TextSpan(i, i + 6, "PER") for i in (0, 11, 22)]
    index = index_words([read_words("1", often, spans), labelled("2", "Jordan", ("Jordan", "LOC"))])
    assert index.words["Jordan"].label is None
    both = index_words([read_words("1", often, spans[:2])])
    assert both.words["Jordan"].label is None  # labelled twice, left once: one vote each


def test_words_within_longer_ones_are_no_vote_and_are_not_found_there() -> None:
    texts = [
        labelled("1", "York is old", ("York", "LOC")),
        labelled("2", "New York Times of today", ("New York Times", "ORG")),
    ]
    index = index_words(texts)
    assert index.words["York"] == same_words.Words("LOC", ("1",), 1, 1)
    assert found(index, "The New York Times in York") == [("New York Times", "ORG"), ("York", "LOC")]


def test_what_is_not_clear_about_longer_words_keeps_shorter_ones_out() -> None:
    index = index_words(
        [
            labelled("1", "York", ("York", "LOC")),
            labelled("2", "New York 2", ("New York", "LOC")),
            labelled("3", "New York 3", ("New York", "ORG")),
        ]
    )
    assert found(index, "New York or York") == [("York", "LOC")]


def test_places_that_are_taken_are_left_alone() -> None:
    index = index_words([labelled("1", "Ann Lee 1", ("Ann Lee", "PER")), labelled("2", "Ann 2", ("Ann", "PER"))])
    text = "Ann Lee, Ann Lee, Ann Lee"
    taken = (TextSpan(4, 7, "LOC"), TextSpan(9, 16, "PER"))
    # Where the longer words are partly taken the shorter ones may still be free.
    assert find_same(index, text, taken=taken, labels=LABELS, task="3") == (
        SameWords(TextSpan(0, 3, "PER"), "2", 1, 1),
        SameWords(TextSpan(18, 25, "PER"), "1", 1, 1),
    )


def test_a_task_says_nothing_about_itself() -> None:
    own, other = labelled("1", "Ann here", ("Ann", "PER")), labelled("2", "Ann there", ("Ann", "PER"))
    assert found(index_words([own]), "Ann", task="1") == []
    (same,) = find_same(index_words([own, other]), "Ann", taken=(), labels=LABELS, task="1")
    assert same.task == "2"


def test_labels_that_the_config_does_not_have_are_not_suggested() -> None:
    index = index_words([labelled("1", "Ann takes Aspirin", ("Aspirin", "Drug"))])
    assert found(index, "Aspirin") == []
    assert find_same(index, "Aspirin", taken=(), labels={"Drug"}, task="2")


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("Anna", 0, 3),  # cuts a token
        ("a b", 0, 1),  # one character
        ("?! !?", 0, 5),  # no letter or digit
        ("w " * 13, 0, 25),  # too many tokens
        ("w" * 300, 0, 300),  # too many characters
        ("Ann", 0, 9),  # beyond the text
        ("   ", 0, 3),  # nothing but space
        ("", 0, 1),
    ],
)
def test_spans_that_cannot_be_found_elsewhere_are_not_words(text: str, start: int, end: int) -> None:
    index = index_words([read_words("1", text, [TextSpan(start, end, "PER")])])
    assert index.words == {}
    assert find_same(index, text, taken=(), labels=LABELS, task="2") == ()
    assert index_drawn(text, [TextSpan(start, end, "PER")]).words == {}


@pytest.mark.parametrize(
    "words", ["Zoë Müller", "Žižek", "👩‍👧 club", "e\u0301toile", "東京", "กรุงเทพ", "O'Neil", "x\u00adyz", "3,5 mg"]
)
def test_offsets_are_characters_of_the_untouched_text(words: str) -> None:
    before, text = f"🎉 {words} 🎉", f"👩‍👧‍👦\r\n  {words}!🇩🇪 «{words}»\t{words}"
    index = index_words([labelled("1", before, (words, "PER"))])
    places = [each.span for each in find_same(index, text, taken=(), labels=LABELS, task="2")]
    assert [text[start:end] for start, end, _ in places] == [words] * 3
    assert [start for start, _, _ in places] == [i for i in range(len(text)) if text.startswith(words, i)]


def test_what_was_drawn_is_found_in_the_same_text() -> None:
    text = "Bob met Ann. Ann left Bob. Bob!"
    index = index_drawn(text, [TextSpan(0, 3, "PER"), TextSpan(8, 11, "PER"), TextSpan(13, 16, "LOC")])
    same = find_same(index, text, taken=[TextSpan(0, 3, "PER")], labels=LABELS, task=None)
    # Ann has two labels: nothing is known about her.
    assert same == (SameWords(TextSpan(22, 25, "PER"), None, 1, 1), SameWords(TextSpan(27, 30, "PER"), None, 1, 1))


def test_an_index_keeps_the_words_of_most_tasks_and_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_words, "MOST_WORDS", 2)
    texts = [labelled(str(i), f"{word} {i}", (word, "PER")) for i, word in enumerate(["Dora", "Cleo", "Ann", "Ann"])]
    assert set(index_words(texts).words) == {"Ann", "Dora"}


def test_a_text_of_a_megabyte_is_looked_through_and_few_places_are_suggested() -> None:
    text = "Ann Lee met Bob. " * 60_000
    assert len(text) > 1_000_000
    same = find_same(index_drawn(text, [TextSpan(0, 7, "PER")]), text, taken=(), labels=LABELS, task=None)
    assert [each.span.start for each in same] == [17 * i for i in range(MOST_FOUND)]


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(["Ann", "Lee", "New York", "a", "👩‍👧", ".", "  ", "漢字"]), max_size=20),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.sampled_from(sorted(LABELS))), max_size=6),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=4),
)
def test_suggestions_are_disjoint_free_and_labelled_alike(
    parts: list[str], drawn: list[tuple[int, int, str]], taken: list[tuple[int, int]]
) -> None:
    text = " ".join(parts)
    spans = [TextSpan(start, start + length, label) for start, length, label in drawn]
    places = [TextSpan(start, start + length, "") for start, length in taken]
    for index, task in ((index_drawn(text, spans), None), (index_words([read_words("1", text, spans)]), "2")):
        same = find_same(index, text, taken=places, labels=LABELS, task=task)
        assert same == find_same(index, text, taken=places, labels=LABELS, task=task)
        said = {(text[s:e].strip(), label) for s, e, label in spans if e <= len(text)}
        end = 0
        for each in same:
            assert each.span.start >= end
            end = each.span.end
            assert all(
                place.end <= each.span.start or place.start >= end for place in places if place.start < place.end
            )
            assert (text[each.span.start : end], each.span.label) in said
        # What is accepted is in the way of itself: nothing is suggested twice.
        again = find_same(index, text, taken=[*places, *(each.span for each in same)], labels=LABELS, task=task)
        assert not {each.span for each in again} & {each.span for each in same}
