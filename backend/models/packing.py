"""A model's directory as one file, and back: the same directory is always the same bytes, so a hash tells damage."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from backend.tagger.errors import InvalidModel
from backend.tagger.model_files import MODEL_FILE

_STARTERS = "starter.*.safetensors"


class Packed(NamedTuple):
    """How large a directory is when it is packed, and the SHA-256 of that."""

    size: int
    sha256: str


class _Sink:
    """Passes on what is written to it, and counts and hashes it."""

    def __init__(self, pass_on: Callable[[bytes], object]) -> None:
        self._pass_on, self._hash, self.size = pass_on, hashlib.sha256(), 0

    def write(self, piece: bytes) -> int:
        self._hash.update(piece)
        self._pass_on(piece)
        self.size += len(piece)
        return len(piece)

    def packed(self) -> Packed:
        return Packed(self.size, self._hash.hexdigest())


def model_parts(directory: Path) -> list[Path]:
    """Return the files that make a trained model: its weights, and starter calibrations if it has some.

    Raises:
        InvalidModel: when there are no weights of ours.
    """
    weights = directory / MODEL_FILE
    if not weights.is_file():
        raise InvalidModel(f"expected a model made by `surespan train` in {directory.name}, got no {MODEL_FILE}")
    return sorted([weights, *directory.glob(_STARTERS)], key=lambda file: file.name)


def pack(directory: Path, pass_on: Callable[[bytes], object]) -> Packed:
    """Give the directory of a model, as one file, to `pass_on` piece by piece.

    Raises InvalidModel when it is none, OSError when it cannot be read.
    """
    sink = _Sink(pass_on)
    with tarfile.open(mode="w|", fileobj=cast("IO[bytes]", sink), format=tarfile.USTAR_FORMAT) as archive:
        for file in model_parts(directory):
            entry = tarfile.TarInfo(file.name)
            entry.size = file.stat().st_size
            with file.open("rb") as stream:
                archive.addfile(entry, stream)
    return sink.packed()


def measure(directory: Path) -> Packed:
    """Return what `pack` would, without keeping anything in memory."""
    return pack(directory, lambda piece: None)  # noqa: ARG005 - only counted


def unpack(content: bytes, directory: Path) -> None:
    """Write the files of a packed model into an empty directory.

    Raises:
        InvalidModel: when it is not one.
    """
    try:
        with tarfile.open(mode="r:", fileobj=io.BytesIO(content)) as archive:
            for entry in archive:
                stream: IO[Any] | None = archive.extractfile(entry) if entry.isfile() else None
                if stream is None or Path(entry.name).name != entry.name:
                    raise InvalidModel("expected the plain files of a packed model, got something else")
                (directory / entry.name).write_bytes(stream.read())
    except tarfile.TarError as error:
        raise InvalidModel(f"expected a packed model, got bytes that are none: {error}") from None
