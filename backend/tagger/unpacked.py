"""The language model of py3langid, unpacked once for all processes instead of in each of them.

The library's file is compressed: unpacking it takes a third of a second and 70 MB in every process. What comes out is
kept as plain arrays in a directory that only this user can write, and mapped into memory: processes share its pages.
Where nothing can be written, the model is unpacked as the library does it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from py3langid.langid import MODEL_DIR, MODEL_FILE
from py3langid.modelio import load_model

_ARRAYS = ("scores", "priors", "moves", "rows", "outputs")
_CLASSES = "classes.json"


class LanguageModel(NamedTuple):
    """Scores of features by class (F, C), priors (C,), the names of the classes, and the automaton's tables."""

    scores: npt.NDArray[Any]
    priors: npt.NDArray[Any]
    moves: npt.NDArray[Any]
    rows: npt.NDArray[Any]
    outputs: npt.NDArray[np.int32]
    classes: list[str]


def load_language_model(directory: Path | None = None) -> LanguageModel:
    """Return the packaged model, unpacked into `directory` (by default in the user's cache) if that is possible."""
    source = MODEL_DIR / MODEL_FILE
    try:
        folder = _folder(directory, source)
        if not folder.is_dir():
            _keep(_unpack(source), folder)
        return _mapped(folder)
    except (OSError, ValueError):  # nowhere to write, or what lies there is damaged
        return _unpack(source)


def _folder(directory: Path | None, source: Path) -> Path:
    """Return where this very file is unpacked to; another release of the library has another one."""
    if directory is None:
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        directory = Path(cache) / "surespan"
    status = source.stat()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = directory.stat()
    if hasattr(os, "getuid") and (owner.st_uid != os.getuid() or owner.st_mode & 0o022):
        raise PermissionError(f"expected {directory} to be writable by this user alone, got others; use another cache")
    return directory / f"languages-{status.st_size}-{status.st_mtime_ns}"


def _unpack(source: Path) -> LanguageModel:
    scores, priors, classes, moves, rows, outputs = load_model(source)
    return LanguageModel(
        scores, priors, np.asarray(moves), np.asarray(rows), np.asarray(outputs, np.int32), list(classes)
    )


def _keep(model: LanguageModel, folder: Path) -> None:
    """Write a model, whole or not at all: another process may be doing the same."""
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}."))
    try:
        for name in _ARRAYS:
            np.save(partial / f"{name}.npy", getattr(model, name), allow_pickle=False)
        (partial / _CLASSES).write_text(json.dumps(model.classes), encoding="utf-8")
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not folder.is_dir():
            raise


def _mapped(folder: Path) -> LanguageModel:
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _ARRAYS}
    return LanguageModel(**arrays, classes=json.loads((folder / _CLASSES).read_text(encoding="utf-8")))
