from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from backend.domain.target import TextTag
from backend.errors import InvalidInput
from backend.preannotate.texts import Format, format_of, read_texts

TASKS = [{"data": {"text": " Zoë 😀\r\n", "language": "fr", "more": 1}, "id": 7}, {"text": "Bob.", "lang": "en"}]

TEXT = TextTag("text", "text", is_url=False)


def read(path: Path, **more: str) -> list[Any]:
    """Return sources, with their texts in place of what is shown."""
    sources: list[Any] = list(read_texts(path, format_of(path), tag=TEXT, **more))
    return [each._replace(document=each.document.text) for each in sources]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz"])
def test_tasks_keep_their_data_to_the_letter(tmp_path: Path, name: str) -> None:
    text = json.dumps(TASKS) if name.endswith(".json") else "\n\n".join(json.dumps(each) for each in TASKS)
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert read(path) == [
        (" Zoë 😀\r\n", {"text": " Zoë 😀\r\n", "language": "fr", "more": 1}, "fr", "7"),
        ("Bob.", {"text": "Bob.", "lang": "en"}, "en", "2"),
    ]
    assert {each.language for each in read(path, language="de")} == {"de"}


def test_a_text_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\ufeffOne.\n\n  Two.\r\nThree", encoding="utf-8")
    assert [each[0] for each in read(path)] == ["One.", "  Two.", "Three"]
    assert read(path, language="en")[0].data == {"text": "One.", "language": "en"}


def test_columns(tmp_path: Path) -> None:
    path = tmp_path / "de.test.conll"
    path.write_text("Zoë\tB-PER\nsingt\tO\n\nJa\tO\n", encoding="utf-8")
    assert read(path) == [
        ("Zoë singt", {"text": "Zoë singt", "language": "de"}, "de", "1"),
        ("Ja", {"text": "Ja", "language": "de"}, "de", "2"),
    ]


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        (Format.JSONL, '{"text": "a"}\nno', "a.x:2: expected JSON"),
        (Format.JSONL, "[1]", "a.x:1: expected a JSON object, got list"),
        (Format.JSONL, '{"data": 3}', "a.x:1: expected an object under 'data', got int"),
        (Format.JSONL, '{"body": "a"}', "a.x:1: expected text under 'text', which the label config shows, got no such"),
        (Format.JSONL, '{"text": 3}', "got int"),
        (Format.JSON, "{}", "a.x: expected a JSON list of tasks, got dict"),
        (Format.JSON, '[{"text": "a"}, 3]', "a.x: task 2: expected a JSON object, got int"),
        (Format.TEXT, b"\xff", "expected a UTF-8 text file"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, form: Format, content: str | bytes, message: str) -> None:
    path = tmp_path / "a.x"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidInput, match=message):
        list(read_texts(path, form, tag=TEXT))
