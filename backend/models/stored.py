"""The files of projects' own models: kept in the database, and on this machine's disk once they are used.

A trained model is one packed file by its hash (`keep_model`). Whoever needs it gets it from the database into a
directory of its own under `Settings.models_directory`, whole or not at all, and a copy that was damaged is fetched
again. Models too large for a database lie in that directory alone: every replica must see it.
"""

from __future__ import annotations

import hashlib
import io
import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy.orm import Session

from backend.models.packing import measure, model_parts, pack, unpack
from backend.settings import Settings
from backend.store import Store
from backend.store.project_models import StoredFile, find_file, read_file, store_file, store_path
from backend.tagger.errors import InvalidModel
from backend.tagger.model_files import Kind, model_kind, read_header

_log = logging.getLogger(__name__)

LARGEST = 64 << 20  # bytes of a model that the database keeps
_OLD = 24 * 3600.0  # seconds after which a directory that the database does not know is removed
_HASH = 64  # characters
_TRIES = 10


def keep_model(session: Session, directory: str | Path, *, settings: Settings, largest: int = LARGEST) -> str:
    """Keep the model in a directory of `surespan train` so that every replica can load it; return its hash.

    What is there already under this hash is replaced by the same. Register the model afterwards
    (`store.project_models.register_model`), in the same transaction or a later one.

    Raises:
        InvalidModel: when there is no trained model in the directory.
        OSError: when a large model cannot be written; nothing is kept then.
    """
    folder = Path(directory)
    model_parts(folder)
    header = read_header(folder)
    if header is None or model_kind(folder) is Kind.CHECKPOINT:
        raise InvalidModel(f"expected a model made by `surespan train` in {folder.name}, got one that cannot be read")
    if sum(file.stat().st_size for file in model_parts(folder)) <= largest:
        content = io.BytesIO()
        pack(folder, content.write)
        store_file(session, header.hash, content.getvalue())
        return header.hash
    packed = measure(folder)
    place = settings.models_directory / header.hash
    if not _is_good(place, packed.sha256):
        _put(place, lambda fresh: _copy(folder, fresh))
    place.touch()  # what is young is not swept away
    store_path(session, header.hash, str(place.absolute()), size=packed.size, sha256=packed.sha256)
    return header.hash


class StoredModels:
    """Models of the database on this machine's disk. Safe to share between threads and processes."""

    def __init__(self, store: Store, directory: Path) -> None:
        self._store, self._directory = store, directory

    def place(self, model_hash: str) -> Path:
        """Return where a model lies once it was fetched."""
        return self._directory / model_hash

    def fetch(self, model_hash: str) -> Path:
        """Return the directory of a model, fetched from the database if it is not here or was damaged.

        Raises:
            InvalidModel: when the database has no such model, or nobody has it undamaged.
            StoreError: when the database cannot be asked.
            OSError: when there is no place for it.
        """
        with self._store.read() as session:
            file = find_file(session, model_hash)
        if file is None:
            raise InvalidModel(f"expected the model {model_hash[:8]} in the database, got none: train it again")
        place = self.place(model_hash)
        if _is_good(place, file.sha256):
            return place
        if file.path is not None:
            return self._elsewhere(file)
        with self._store.read() as session:
            content = read_file(session, model_hash)
        if content is None or hashlib.sha256(content).hexdigest() != file.sha256:
            raise InvalidModel(f"expected the model {model_hash[:8]} whole in the database, got a damaged one")
        if place.exists():
            _log.warning("a model on disk was damaged and is fetched again", extra={"model": model_hash[:8]})
        _put(place, lambda fresh: unpack(content, fresh))
        return place

    def sweep(self) -> int:
        """Remove from this machine's disk what the database does not know any more; returns how many models."""
        gone = 0
        for place in list(self._directory.glob("*")) if self._directory.is_dir() else []:
            partial = place.name.startswith(".")
            if not place.is_dir() or not (partial or len(place.name) == _HASH) or not _is_old(place):
                continue
            if not partial:
                with self._store.read() as session:
                    if find_file(session, place.name) is not None:
                        continue
            shutil.rmtree(place, ignore_errors=True)
            gone += 1
        return gone

    def _elsewhere(self, file: StoredFile) -> Path:
        where = Path(str(file.path))
        if not _is_good(where, file.sha256):
            raise InvalidModel(
                f"expected the model {file.model_hash[:8]} in {where}, got none or a damaged one: it is too large for "
                "the database, so every replica must see the directory MODEL_DIR"
            )
        return where


def _is_good(directory: Path, sha256: str) -> bool:
    try:
        return directory.is_dir() and measure(directory).sha256 == sha256
    except (OSError, InvalidModel):
        return False


def _is_old(directory: Path) -> bool:
    try:
        return time.time() - directory.stat().st_mtime > _OLD
    except OSError:
        return False


def _copy(source: Path, to: Path) -> None:
    for file in model_parts(source):
        shutil.copyfile(file, to / file.name)


def _put(place: Path, fill: Callable[[Path], object]) -> None:
    """Make a directory whole or not at all, in place of what may be there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".", ignore_cleanup_errors=True) as work:
        fresh, old = Path(work) / "fresh", Path(work) / "old"
        fresh.mkdir()
        fill(fresh)
        for _ in range(_TRIES):
            try:
                if place.exists():
                    place.rename(old)
                fresh.rename(place)
            except OSError:  # another process was quicker with one of the two
                shutil.rmtree(old, ignore_errors=True)
                continue
            return
        raise OSError(f"expected to put a model into {place}, got another process in the way each time: try again")
