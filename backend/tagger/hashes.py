"""Hashes of a model seen through other labels. Light: known without loading the model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence


def folded_hash(model_hash: str, kept: Sequence[str]) -> str:
    """Return the hash of a tagger restricted to the classes `kept`, which stand in the model's order."""
    return _joined(model_hash, kept)


def merged_hash(model_hash: str, merged: Mapping[str, str]) -> str:
    """Return the hash of a tagger some of whose classes stand for others as well."""
    return _joined(model_hash, [f"{name}>{to}" for name, to in sorted(merged.items())])


def whole_hash(model_hash: str) -> str:
    """Return the hash of a tagger whose texts are not cut into sentences."""
    return _joined(model_hash, ["", "unit=task"])


def blank_hash(model_hash: str, unknown: Sequence[str]) -> str:
    """Return the hash of a tagger that knows none of the labels `unknown` of a project."""
    return _joined(model_hash, ["", "blank", *unknown])


def _joined(model_hash: str, parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join([model_hash, *parts]).encode("utf-8", "surrogatepass")).hexdigest()
