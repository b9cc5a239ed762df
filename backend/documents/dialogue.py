"""A dialogue of `<Paragraphs>`: a list of turns. Positions are the number of a turn and UTF-16 units of its text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from backend.documents.document import (
    TURN_BREAK,
    Document,
    UnreadableDocument,
    count_units,
    read_offset,
    reads_as,
    skip_units,
)

MAX_TURNS = 100_000


class Dialogue(Document):
    """The texts of the turns, `TURN_BREAK` between them."""

    def __init__(self, turns: Sequence[str]) -> None:
        super().__init__(TURN_BREAK.join(turns))
        self._turns = tuple(turns)
        self._starts = [0, *accumulate(len(turn) + len(TURN_BREAK) for turn in turns)][: len(turns)]

    def place(self, start: int, end: int) -> dict[str, Any]:
        """Return the turns of the first and last character, and the offsets in them."""
        first, last = self._turn(start), self._turn(end - 1)
        return {
            "start": str(first),
            "end": str(last),
            "startOffset": count_units(self.text[self._starts[first] : start]),
            "endOffset": count_units(self.text[self._starts[last] : end]),
        }

    def find(self, value: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the characters; None where there is no such turn, or it says something else."""
        start = self._position(value.get("start"), value.get("startOffset"))
        end = self._position(value.get("end"), value.get("endOffset"))
        if start is None or end is None or start > end:
            return None
        turn = self._turns[first] if (first := self._turn(start)) == self._turn(max(start, end - 1)) else None
        # Where spaces collapse the editor repeats other words than it covers, and of several turns who speaks as well.
        repeats = turn is not None and turn == " ".join(turn.split())
        return (start, end) if not repeats or reads_as(self.text[start:end], value.get("text")) else None

    def _turn(self, at: int) -> int:
        return bisect_right(self._starts, at) - 1

    def _position(self, turn: object, offset: object) -> int | None:
        number = int(turn) if isinstance(turn, str) and turn.isascii() and turn.isdigit() and len(turn) < 9 else turn
        index, within = read_offset(number), read_offset(offset)
        if index is None or within is None or index >= len(self._turns):
            return None
        characters = skip_units(self._turns[index], within)
        return None if characters is None else self._starts[index] + characters


def read_dialogue(value: object, *, text_key: str) -> Dialogue:
    r"""Read the turns of a task. One without a text, which the editor shows as an empty line, is empty.

    Raises:
        UnreadableDocument: when it is no list of turns.

    >>> talk = read_dialogue([{"author": "A", "text": "Hi"}, {"author": "B", "text": "Ann here"}], text_key="text")
    >>> talk.text, talk.place(4, 7)
    ('Hi\n\u2029Ann here', {'start': '1', 'end': '1', 'startOffset': 0, 'endOffset': 3})
    """
    if not isinstance(value, list) or not value:
        raise UnreadableDocument("expected a list of turns, got none")
    if len(value) > MAX_TURNS:
        raise UnreadableDocument(f"expected at most {MAX_TURNS} turns, got {len(value)}")
    if not isinstance(value[0], dict) or text_key not in value[0]:
        raise UnreadableDocument("expected a first turn with the text under the key that textKey names, got another")
    turns: list[str] = []
    for number, turn in enumerate(value):
        text = turn.get(text_key) if isinstance(turn, dict) else turn
        if not isinstance(turn, dict) or not isinstance(text, str | None):
            raise UnreadableDocument(f"expected an object with a text as turn {number}, got something else")
        turns.append(text or "")
    return Dialogue(turns)
