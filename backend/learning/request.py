"""What the process that trains is given, and where it leaves what it made: files of one directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from backend.domain.records import TextSpan
from backend.tagger.readers import LabelledText

REQUEST, RESULT, MODEL = "request.json", "result.json", "model"
TRAINING, CHOICE = "training.jsonl", "choice.jsonl"
REFUSED = 3  # the exit code where the labels themselves are the reason


@dataclass(frozen=True)
class Request:
    """What to train: the name of the model, what to begin with, and the process that waits for it."""

    name: str
    start: str
    parent: int

    def write(self, directory: Path, *, training: Iterable[LabelledText], choice: Iterable[LabelledText]) -> None:
        """Write the request and its texts."""
        write_texts(directory / TRAINING, training)
        write_texts(directory / CHOICE, choice)
        fields = {"name": self.name, "start": self.start, "parent": self.parent}
        (directory / REQUEST).write_text(json.dumps(fields), encoding="utf-8")


def write_texts(path: Path, texts: Iterable[LabelledText]) -> None:
    """Write texts with their entities, a line each."""
    with path.open("w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps([text.text, [list(span) for span in text.spans], text.language]) + "\n")


def read_texts(path: Path) -> Iterator[LabelledText]:
    """Read what `write_texts` wrote."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            text, spans, language = json.loads(line)
            yield LabelledText(text, tuple(TextSpan(*span) for span in spans), language)
