"""Read any labelled file this project understands, told apart by name."""

from __future__ import annotations

from pathlib import Path

from backend.tagger.readers.conll import read_conll
from backend.tagger.readers.label_studio import read_label_studio
from backend.tagger.readers.types import Reading
from conformal.labels import Scheme


def read_labelled(path: str | Path, *, language: str | None = None, scheme: Scheme | None = None) -> Reading:
    """Read a Label Studio export (`.json`, `.jsonl`, `.ndjson`) or, for any other name, a column file; `.gz` too."""
    name = Path(path).name.lower().removesuffix(".gz")
    if name.endswith((".json", ".jsonl", ".ndjson")):
        return read_label_studio(path, language=language)
    return read_conll(path, language=language, scheme=scheme)
