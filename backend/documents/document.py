"""A text as people see it in Label Studio, whatever shape its task holds it in, and where its characters are there.

The rest of the product knows the plain text alone. A line end with a paragraph separator is where a turn or a block of
a page ends, and a sentence always ends there as well (`backend.tagger.sentences`). A `<Text>` has blank lines, but not
that mark: what is stored of it is cut into sentences as it was before there were other documents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from backend.errors import BackendError

TURN_BREAK = "\n\u2029"  # between turns, and between the blocks of a page


class UnreadableDocument(BackendError):
    """A value that cannot be read with certainty. The message names kinds, tags and positions, never a text."""


class PlainText(str):
    """A value that is plain text already, whatever its project shows: what was stored of a dialogue or a page."""

    __slots__ = ()


class Document(ABC):
    """A plain text, and the positions that results have in the editor."""

    def __init__(self, text: str) -> None:
        self.text = text

    @abstractmethod
    def place(self, start: int, end: int) -> dict[str, Any]:
        """Return where the characters of a span are, as the `value` of a result says it.

        The span begins and ends with characters of the document itself, as spans of tokens do.
        """

    @abstractmethod
    def find(self, value: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the characters that the `value` of a result is about; None where that is not certain."""


class PlainDocument(Document):
    """A `<Text>`: positions are characters."""

    def place(self, start: int, end: int) -> dict[str, Any]:
        """Return the span as it is."""
        return {"start": start, "end": end}

    def find(self, value: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the span as it is; whether the text reaches so far is not asked."""
        start, end = read_offset(value.get("start")), read_offset(value.get("end"))
        return None if start is None or end is None or start > end else (start, end)


ANY_TEXT = PlainDocument("")  # reads the positions of plain texts without knowing the text


def read_offset(value: object) -> int | None:
    """Return an offset of a result, None where it is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        return None
    return value


def count_units(text: str) -> int:
    """Return how many UTF-16 units a text has, which is how browsers count.

    >>> count_units("😀 a")
    4
    """
    return len(text) + sum(character > "\uffff" for character in text)


def skip_units(text: str, units: int) -> int | None:
    """Return how many characters so many UTF-16 units are; None beyond the text or in the middle of a character.

    >>> skip_units("😀 a", 3), skip_units("😀 a", 1), skip_units("😀 a", 5)
    (2, None, None)
    """
    left = units
    for at, character in enumerate(text):
        if left <= 0:
            return at if left == 0 else None
        left -= 2 if character > "\uffff" else 1
    return len(text) if left == 0 else None


def reads_as(text: str, said: object) -> bool:
    r"""Whether a text is what a region says that it covers, if it says so; white space and case do not matter.

    The editor repeats what is seen: spaces that collapse, letters that a style makes large, `\n` for a new block.

    >>> reads_as("New  York", r"NEW\nYork"), reads_as("York", "Yor"), reads_as("York", None)
    (True, False, True)
    """
    if not isinstance(said, str):
        return True
    return _bare(said) == _bare(text)


def _bare(text: str) -> str:
    return "".join(text.replace("\\n", "").split()).casefold()
