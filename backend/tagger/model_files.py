"""Where a model lies, which kind it is, and what it says about itself: without torch, so that nobody waits for it."""

from __future__ import annotations

import hashlib
import json
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from backend.tagger.errors import InvalidModel, TaggerError
from backend.tagger.hf.checkpoint import describe_checkpoint
from backend.tagger.options import TaggerOptions

BUNDLED = "bundled"
MODEL_FILE = "model.safetensors"
_BUNDLED_DIRECTORY = Path(__file__).parent / BUNDLED


class Kind(Enum):
    """What runs a model: our network of hashed words, our encoder, our linear chain, or a checkpoint as it is."""

    NETWORK = "network"
    ENCODER = "encoder"
    LINEAR = "linear"
    CHECKPOINT = "checkpoint"


class Header(NamedTuple):
    """Name, hash and classes of a model as it will be run."""

    name: str
    hash: str
    classes: tuple[str, ...]


def model_directory(model: str | Path = BUNDLED) -> Path:
    """Return where a model and what belongs to it lie: `bundled`, or a directory of its own."""
    return _BUNDLED_DIRECTORY if str(model) == BUNDLED else Path(model)


def model_kind(model: str | Path = BUNDLED) -> Kind:
    """Return which kind of model a name stands for; a name that is no folder of ours is a checkpoint's.

    Raises InvalidModel for a file of ours of a kind that this release does not know.
    """
    said = _own(model_directory(model))
    if said is None:
        return Kind.CHECKPOINT
    try:
        return Kind(said[0].get("kind", Kind.NETWORK.value))
    except ValueError:
        ours = [kind.value for kind in Kind if kind is not Kind.CHECKPOINT]
        raise InvalidModel(
            f"expected a model of the kinds {ours}, got {said[0].get('kind')!r}; use the release that wrote it"
        ) from None


def option_hash(model_hash: str, options: TaggerOptions) -> str:
    """Return the hash of an encoder run with these options."""
    return hashlib.sha256(f"{model_hash}\0int8".encode()).hexdigest() if options.int8 else model_hash


def read_header(model: str | Path = BUNDLED, options: TaggerOptions | None = None) -> Header | None:
    """Say what `load_tagger` will have as name, hash and classes; None while that cannot be known.

    Never asks the network: a hub id that is not in the cache is not known yet.
    """
    chosen = options or TaggerOptions()
    try:
        said = _own(model_directory(model))
        if said is None:
            checkpoint = describe_checkpoint(str(model), mapping_file=chosen.mapping, int8=chosen.int8, download=False)
            return Header(checkpoint.name, checkpoint.hash, checkpoint.classes)
        fields, digest = said
        own = option_hash(digest, chosen) if fields.get("kind") == Kind.ENCODER.value else digest
        classes = fields["classes"]
        return Header(str(fields["name"]), own, tuple(classes)) if isinstance(classes, list) else None
    except (TaggerError, OSError, KeyError):
        return None


def _own(directory: Path) -> tuple[dict[str, object], str] | None:
    """Return the description and the hash in a model file of ours; None when there is none."""
    file = directory / MODEL_FILE if directory.is_dir() else directory
    try:
        with safe_open(file, framework="numpy") as stream:
            metadata = stream.metadata() or {}
        fields = json.loads(metadata["surespan"])
        return (fields, metadata["hash"]) if isinstance(fields, dict) else None
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
