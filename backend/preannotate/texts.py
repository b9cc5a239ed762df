"""Texts of a file as Label Studio tasks: JSON lines, a Label Studio export, one text a line, or columns."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from backend.documents.document import Document, PlainDocument, UnreadableDocument
from backend.documents.reading import read_document
from backend.domain.target import Shape, TextTag
from backend.errors import InvalidInput
from backend.tagger.readers.conll import open_text, read_conll


class Format(StrEnum):
    """What a file holds."""

    JSONL = "jsonl"
    JSON = "json"
    TEXT = "text"
    CONLL = "conll"


class Source(NamedTuple):
    """What is shown, the task data it came with, its language if known, and its name for randomised boundaries.

    Nothing is known to be shown where a page leaves that open.
    """

    document: Document | None
    data: Mapping[str, Any]
    language: str | None
    name: str

    def within(self, longest: int) -> Document | None:
        """Return what can be predicted: what is shown, unless it is longer than that."""
        return self.document if self.document is not None and len(self.document.text) <= longest else None


def format_of(path: Path) -> Format:
    """Tell a file's format by its name.

    >>> format_of(Path("a.jsonl.gz")).value, format_of(Path("a.txt")).value, format_of(Path("de.conllu")).value
    ('jsonl', 'text', 'conll')
    """
    name = path.name.lower().removesuffix(".gz")
    if name.endswith((".jsonl", ".ndjson")):
        return Format.JSONL
    if name.endswith(".json"):
        return Format.JSON
    return Format.TEXT if name.endswith((".txt", ".text")) else Format.CONLL


def digest_of(path: Path) -> str:
    """Return the hash of a file's bytes.

    Raises:
        InvalidInput: when it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InvalidInput(f"{path}: expected a readable file, got {error.strerror or error}") from None


def read_texts(path: Path, form: Format, *, tag: TextTag, language: str | None = None) -> Iterator[Source]:
    """Yield the texts of a file, in order; `tag` is what shows them.

    Lines and list entries are objects: task data itself, or Label Studio tasks with it under `data`. Annotations that
    come along are not looked at.

    Raises:
        InvalidInput, InvalidData: with file and line (or position) for anything malformed.
    """
    if form in {Format.CONLL, Format.TEXT} and tag.shape is not Shape.TEXT:
        raise InvalidInput(f"{path.name}: expected tasks as JSON or JSONL for <{tag.shape.value}>, got plain texts")
    key = tag.key
    if form is Format.CONLL:
        for number, labelled in enumerate(read_conll(path, language=language).texts, start=1):
            yield _made(labelled.text, key, labelled.language, number)
        return
    try:
        with open_text(path) as stream:
            if form is Format.JSON:
                for number, each in enumerate(_list(stream.read(), path.name), start=1):
                    yield _task(each, f"{path.name}: task {number}", tag=tag, language=language, number=number)
                return
            number = 0
            for line, raw in enumerate(stream, start=1):
                if not raw.strip():
                    continue
                number += 1
                if form is Format.TEXT:
                    yield _made(raw.rstrip("\r\n"), key, language, number)
                else:
                    where = f"{path.name}:{line}"
                    yield _task(_parsed(raw, where), where, tag=tag, language=language, number=number)
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise InvalidInput(f"{path.name}: expected a UTF-8 text file, got {error}; convert it first") from None
    except OSError as error:
        raise InvalidInput(f"{path}: expected a readable file, got {error.strerror or error}") from None


def _made(text: str, key: str, language: str | None, number: int) -> Source:
    return Source(
        PlainDocument(text), {key: text} | ({"language": language} if language else {}), language, str(number)
    )


def _list(raw: str, name: str) -> list[object]:
    whole = _parsed(raw, name)
    if not isinstance(whole, list):
        raise InvalidInput(f"{name}: expected a JSON list of tasks, got {type(whole).__name__}")
    return whole


def _parsed(raw: str, where: str) -> object:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{where}: expected JSON, got something else; is it the right --format?") from None


def _task(value: object, where: str, *, tag: TextTag, language: str | None, number: int) -> Source:
    if not isinstance(value, dict):
        raise InvalidInput(f"{where}: expected a JSON object, got {type(value).__name__}")
    data = value.get("data", value)
    if not isinstance(data, dict):
        raise InvalidInput(f"{where}: expected an object under 'data', got {type(data).__name__}")
    shown = data.get(tag.key)
    if not isinstance(shown, list if tag.shape is Shape.DIALOGUE else str):
        wanted = "turns" if tag.shape is Shape.DIALOGUE else "text"
        got = "no such key" if tag.key not in data else type(shown).__name__
        raise InvalidInput(f"{where}: expected {wanted} under {tag.key!r}, which the label config shows, got {got}")
    document: Document | None = None
    try:
        document = read_document(shown, tag)
    except UnreadableDocument as error:
        if tag.shape is Shape.DIALOGUE:
            raise InvalidInput(f"{where}: {error}") from None
    said = next((data[each] for each in ("language", "lang") if isinstance(data.get(each), str) and data[each]), None)
    name = value.get("id", number) if data is not value else number
    return Source(document, data, language or said, str(name))
