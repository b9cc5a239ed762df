"""The saved linear chain: one safetensors file that describes itself, like the other models of this project.

Hashes of the features are stored sorted, their weights as float16, the rest as float32. The network whose knowledge it
uses is named by its hash if it is the bundled one, and stored inside if it is another.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from backend.tagger.compiled.loading import load_network
from backend.tagger.errors import InvalidModel
from backend.tagger.linear.learning import Learnt
from backend.tagger.linear.objective import Weights
from backend.tagger.linear.tagger import LinearTagger
from backend.tagger.linear.word_features import Hashes
from backend.tagger.model_files import BUNDLED, MODEL_FILE, Kind, model_directory
from backend.tagger.network_tagger import NetworkTagger
from backend.tagger.saved_file import FORMAT, FORMAT_VERSION, Arrays, read_saved, write_saved
from backend.tagger.training_texts import Fingerprints, joined
from conformal.labels import LabelSpace

_WEIGHTS = Weights._fields
_HASHES, _SEEN, _BASE = "hashes", "seen", "base"


class Base(NamedTuple):
    """A network whose knowledge is used: where it lies (`bundled` or a directory), loaded."""

    source: str
    tagger: NetworkTagger


def load_base(source: str, *, concurrency: int = 1) -> Base:
    """Load the network of hashed words whose knowledge a linear chain shall use.

    Raises InvalidModel when it is of another kind.
    """
    if source == BUNDLED:
        return Base(source, _bundled(concurrency))
    return Base(source, NetworkTagger(load_network(model_directory(source)), concurrency=concurrency))


@lru_cache(maxsize=2)
def _bundled(concurrency: int) -> NetworkTagger:
    """Return the bundled network, in memory once however many models use it."""
    return NetworkTagger(load_network(model_directory(BUNDLED)), concurrency=concurrency)


@dataclass(frozen=True)
class LinearInfo:
    """What a saved model says about itself; `hash` is filled in by saving and checked by loading.

    `base` is the hash of the network it uses, empty without one; `bundled` says that this is the one of this release.
    """

    name: str
    classes: tuple[str, ...]
    languages: tuple[str, ...]
    base: str = ""
    bundled: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)
    hash: str = ""

    @property
    def space(self) -> LabelSpace:
        """The label space."""
        return LabelSpace(self.classes)

    @property
    def ancestors(self) -> tuple[str, ...]:
        """Hashes of the models whose knowledge is in it, oldest first."""
        return tuple(str(each) for each in self.training.get("ancestors", ()))

    def to_json(self) -> str:
        """Everything but the hash, in a fixed order."""
        fields = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "kind": Kind.LINEAR.value,
            "name": self.name,
            "classes": list(self.classes),
            "languages": list(self.languages),
            "base": self.base,
            "bundled": self.bundled,
            "training": dict(self.training),
        }
        return json.dumps(fields, ensure_ascii=False, sort_keys=True)


def save_linear(
    learnt: Learnt,
    directory: str | Path,
    *,
    name: str,
    languages: Sequence[str],
    base: Base | None = None,
    training: Mapping[str, Any] | None = None,
    seen: Fingerprints | None = None,
) -> LinearInfo:
    """Write `model.safetensors` into a directory, whole or not at all; return what it says about itself.

    `base` is the network that `learn` was given; it is left out when held-out labels spoke against it.
    """
    used = base if learnt.report.uses_base else None
    summary = {**(training or {}), "report": learnt.report.to_json()}
    fingerprints = np.zeros(0, np.int64) if seen is None else seen
    if used is not None:
        summary["ancestors"] = [*used.tagger.ancestors, used.tagger.hash]
        fingerprints = joined(used.tagger.seen, fingerprints)
    info = LinearInfo(
        name=name,
        classes=learnt.space.classes,
        languages=tuple(languages),
        base="" if used is None else used.tagger.hash,
        bundled=used is not None and used.source == BUNDLED,
        training=summary,
    )
    arrays: Arrays = {
        key: part.astype(np.float16 if key == "sparse" else np.float32)
        for key, part in learnt.weights._asdict().items()
        if part.size  # without a network there are no dense weights
    }
    arrays[_HASHES] = learnt.known.view(np.int64).copy()
    if len(fingerprints):
        arrays[_SEEN] = fingerprints
    if used is not None and used.source != BUNDLED:
        where = model_directory(used.source)
        content = (where / MODEL_FILE if where.is_dir() else where).read_bytes()
        arrays[_BASE] = np.frombuffer(content, np.uint8)
    return replace(info, hash=write_saved(directory, info.to_json(), arrays))


def load_linear_tagger(
    path: str | Path, *, languages: Sequence[str] | None = None, concurrency: int = 1
) -> LinearTagger:
    """Load a linear chain and check its hash, and that of the network it uses.

    Raises InvalidModel when the file is missing, damaged, of another format version or does not fit its description,
    or when the bundled network of this release is not the one that it learnt with.
    """
    info, arrays, digest = read_saved(path, _parse)
    weights, known, seen = _checked(info, arrays)
    base = _stored_base(info, arrays, concurrency)
    return LinearTagger(
        name=info.name,
        digest=digest,
        ancestors=info.ancestors,
        space=info.space,
        languages=info.languages if languages is None else tuple(languages),
        known=known,
        weights=weights,
        base=base,
        seen=seen,
    )


def _stored_base(info: LinearInfo, arrays: Mapping[str, npt.NDArray[Any]], concurrency: int) -> NetworkTagger | None:
    if not info.base:
        return None
    if info.bundled:
        base = _bundled(concurrency)
        if base.hash != info.base:
            raise InvalidModel(
                f"expected the bundled network {info.base[:8]} that {info.name} learnt with, got {base.hash[:8]}; "
                "train it again with this release"
            )
        return base
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / MODEL_FILE).write_bytes(arrays[_BASE].tobytes())
        return NetworkTagger(load_network(directory), concurrency=concurrency)


def _checked(info: LinearInfo, arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[Weights, Hashes, Fingerprints]:
    L = len(info.space)
    try:
        stored = dict(arrays) if info.base else {"dense": np.zeros((0, L)), **arrays}
        weights = Weights(*(stored[key].astype(np.float64) for key in _WEIGHTS))
        known: Hashes = arrays[_HASHES].view(np.uint64)
        seen: Fingerprints = arrays[_SEEN] if _SEEN in arrays else np.zeros(0, np.int64)
    except KeyError as error:
        raise InvalidModel(f"expected the weights of a linear chain in {MODEL_FILE}, got none for {error}") from None
    D = weights.dense.shape[0]
    wanted = ((len(known), L), (D, L), (L, L), (L,), (L,))
    got = tuple(part.shape for part in weights)
    if got != wanted or bool(D) != bool(info.base) or (info.base and not info.bundled and _BASE not in arrays):
        raise InvalidModel(f"expected weights of the shapes {wanted} in {MODEL_FILE}, got {got}")
    return weights, known, seen


def _parse(header: str, name: str) -> LinearInfo:
    try:
        fields = json.loads(header)
        identity = (fields["format"], fields["format_version"], fields.get("kind"))
        wanted = (FORMAT, FORMAT_VERSION, Kind.LINEAR.value)
        if identity != wanted:
            raise InvalidModel(f"expected a model of {wanted} in {name}, got {identity}; use the release that wrote it")
        return LinearInfo(
            name=str(fields["name"]),
            classes=tuple(fields["classes"]),
            languages=tuple(fields["languages"]),
            base=str(fields["base"]),
            bundled=bool(fields["bundled"]),
            training=fields["training"],
        )
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidModel(f"expected a Surespan model description in {name}, got {error!r}") from None
