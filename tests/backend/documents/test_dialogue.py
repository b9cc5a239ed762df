"""Dialogues: positions there and back, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from backend.documents.dialogue import Dialogue, read_dialogue
from backend.documents.document import UnreadableDocument
from backend.tagger.sentences import find_boundaries
from backend.tagger.tokens import tokenize
from tests.support.trouble import DIALOGUES

REFUSED = {"nothing", "no list", "turns that are texts", "a turn with a number"}


@pytest.mark.parametrize("name", DIALOGUES)
def test_tokens_of_a_dialogue_are_the_same_there_and_back(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(UnreadableDocument):
            read_dialogue(DIALOGUES[name], text_key="said")
        return
    document = read_dialogue(DIALOGUES[name], text_key="said")
    turns = [turn.get("said") or "" for turn in DIALOGUES[name]]
    for start, end in tokenize(document.text)[:500]:
        words = document.text[start:end]
        value = document.place(start, end)
        assert value["start"] == value["end"], "no token crosses turns"
        turn = turns[int(value["start"])].encode("utf-16-le", "surrogatepass")
        cut = turn[2 * value["startOffset"] : 2 * value["endOffset"]]
        assert cut == words.encode("utf-16-le", "surrogatepass")
        assert document.find(value | {"text": words}) == (start, end)


def test_every_turn_begins_a_unit_whatever_the_one_before_ends_with() -> None:
    turns = ["Is that Dr.", "Smith went", "J.", "Bob, he said", "", "x" * 5_000, "end"]
    text = Dialogue(turns).text
    tokens = tokenize(text)
    firsts = {tokens[i].start for i in find_boundaries(text, tokens, language="en")}
    begin = 0
    for turn in turns:
        assert begin == 0 or begin in firsts or not turn
        begin += len(turn) + 2


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"start": "9", "end": "9", "startOffset": 0, "endOffset": 1},
        {"start": "0", "end": "0", "startOffset": 0, "endOffset": 99},
        {"start": "0", "end": "0", "startOffset": 1, "endOffset": 3},  # in the middle of an emoji
        {"start": "1", "end": "0", "startOffset": 0, "endOffset": 1},
        {"start": "one", "end": "0", "startOffset": 0, "endOffset": 1},
        {"start": "1", "end": "1", "startOffset": 0, "endOffset": 3, "text": "Eve"},
    ],
)
def test_a_position_that_is_not_there_is_refused(value: dict[str, Any]) -> None:
    assert Dialogue(["😀 Ann", "Bob left"]).find(value) is None


def test_a_label_over_two_turns_is_kept() -> None:
    talk = Dialogue(["Ann", "Bob left"])
    value = {"start": "0", "end": "1", "startOffset": 0, "endOffset": 3, "text": "Ann\nB\nBob"}
    assert talk.find(value) == (0, 8)
