"""The value of a task, by the shape that its label config gives it, as a document."""

from __future__ import annotations

from backend.documents.dialogue import read_dialogue
from backend.documents.document import Document, PlainDocument, PlainText, UnreadableDocument
from backend.documents.page import read_page
from backend.domain.target import Shape, TextTag


def read_document(value: object, tag: TextTag) -> Document:
    """Read the value that a tag shows.

    Raises:
        UnreadableDocument: when it does not have the tag's shape, or what an editor shows of it is not certain.
    """
    if isinstance(value, PlainText):
        return PlainDocument(str(value))
    if tag.shape is Shape.DIALOGUE:
        return read_dialogue(value, text_key=tag.text_key)
    if not isinstance(value, str):
        raise UnreadableDocument("expected a text, got something else")
    return read_page(value, inline=tag.inline) if tag.shape is Shape.PAGE else PlainDocument(value)


def length_of(value: object, tag: TextTag) -> int:
    """Return about how many characters a value has, without reading it."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, list):
        return 0
    texts = (turn.get(tag.text_key) for turn in value if isinstance(turn, dict))
    return sum(len(text) for text in texts if isinstance(text, str))
