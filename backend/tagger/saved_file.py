"""One safetensors file that describes itself: how every model of ours is written and read. Free of torch.

The header holds a description and a hash of it with all arrays. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from backend.tagger.errors import InvalidModel
from backend.tagger.model_files import MODEL_FILE

FORMAT = "surespan-tagger"
FORMAT_VERSION = 1
Arrays = dict[str, npt.NDArray[Any]]
T = TypeVar("T")


def digest_of(header: str, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return the hash of a description and its arrays.

    Types go by the names that torch has for them: the first files were hashed so.
    """
    digest = hashlib.sha256(header.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}|torch.{array.dtype.name}|{array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def write_saved(directory: str | Path, header: str, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Write `model.safetensors` into a directory, whole or not at all; return its hash."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    digest = digest_of(header, arrays)
    partial = folder / f"{MODEL_FILE}.partial"
    # The library writes an array's bytes as they lie in memory, whatever its strides.
    in_order = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(in_order, partial, metadata={"surespan": header, "hash": digest})
    partial.replace(folder / MODEL_FILE)
    return digest


def read_saved(path: str | Path, parse: Callable[[str, str], T]) -> tuple[T, Arrays, str]:
    """Read a model directory (or its safetensors file): description, arrays and hash, which is checked.

    `parse` gets the description and the file's name. Raises InvalidModel when the file is missing or damaged.
    """
    folder = Path(path)
    file = folder / MODEL_FILE if folder.is_dir() else folder
    if not file.is_file():
        raise InvalidModel(f"expected a model file at {file}, got nothing there; train one with `surespan train`")
    try:
        with safe_open(file, framework="numpy") as stream:
            metadata = stream.metadata() or {}
            arrays = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise InvalidModel(f"expected a safetensors file at {file.name}, got: {error}") from None
    header = metadata.get("surespan", "")
    info = parse(header, file.name)
    digest = digest_of(header, arrays)
    if digest != metadata.get("hash"):
        raise InvalidModel(f"expected {file.name} to match its hash, got different content; copy the file again")
    return info, arrays, digest
