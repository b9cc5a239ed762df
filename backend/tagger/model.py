"""The saved model: one safetensors file that describes itself.

The header holds format version, name, classes, feature and network configuration, a summary of the training and a
hash of all of it with the tensors. Hashed tables are stored as int8 with one scale a row, layers as float16, the
chain's scores as float32; fingerprints of the training texts go with them. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from backend.tagger.errors import InvalidModel
from backend.tagger.features import FeatureConfig
from backend.tagger.model_files import MODEL_FILE
from backend.tagger.network import Network, NetworkConfig
from backend.tagger.training_texts import Fingerprints
from conformal.labels import LabelSpace

FORMAT = "surespan-tagger"
FORMAT_VERSION = 1
_TABLES = ("words", "prefixes", "suffixes", "shapes", "ngrams")
_CHAIN = ("transitions", "start", "end")
_SEEN = "seen"
T = TypeVar("T")


@dataclass(frozen=True)
class ModelInfo:
    """What a saved model says about itself; `hash` is filled in by saving and checked by loading."""

    name: str
    classes: tuple[str, ...]
    languages: tuple[str, ...]
    features: FeatureConfig
    network: NetworkConfig
    training: Mapping[str, Any] = field(default_factory=dict)
    hash: str = ""

    @property
    def space(self) -> LabelSpace:
        """The label space."""
        return LabelSpace(self.classes)

    @property
    def ancestors(self) -> tuple[str, ...]:
        """Hashes of the models whose weights this one was begun with, oldest first: what they learnt is in it."""
        said = self.training.get("ancestors")
        # Models of earlier releases name the last one only.
        last = self.training.get("start")
        return tuple(str(each) for each in said) if isinstance(said, list) else ((str(last),) if last else ())

    def to_json(self) -> str:
        """Everything but the hash, in a fixed order."""
        fields = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "classes": list(self.classes),
            "languages": list(self.languages),
            "features": asdict(self.features),
            "network": asdict(self.network),
            "training": dict(self.training),
        }
        return json.dumps(fields, ensure_ascii=False, sort_keys=True)


class Model(NamedTuple):
    """A loaded model: the network ready to run, what it says about itself, and what it was trained on."""

    network: Network
    info: ModelInfo
    seen: Fingerprints


def _stored(network: Network) -> dict[str, Tensor]:
    """Return the tensors as they are written: tables in int8 with row scales, layers in float16."""
    tensors: dict[str, Tensor] = {}
    for name, value in network.state_dict().items():
        weight = value.detach().float()
        if not torch.isfinite(weight).all():
            raise InvalidModel(f"expected finite weights, got NaN or infinity in {name}; the training diverged")
        if name.split(".")[0] in _TABLES:
            scale = (weight.abs().amax(dim=1, keepdim=True) / 127.0).clamp_min(1e-7).half().clamp_min(6e-8)  # (rows, 1)
            tensors[name] = (weight / scale.float()).round().clamp(-127, 127).to(torch.int8)
            tensors[f"{name}.scale"] = scale
        else:
            tensors[name] = weight if name in _CHAIN else weight.half()
    return {name: tensor.contiguous() for name, tensor in sorted(tensors.items())}


def digest_of(header: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the hash of a description and its tensors."""
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_model(
    network: Network, directory: str | Path, *, info: ModelInfo, seen: Fingerprints | None = None
) -> ModelInfo:
    """Write `model.safetensors` into a directory, whole or not at all; return the info with its hash.

    `seen` are the sorted fingerprints of the training texts.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = _stored(network)
    tensors[_SEEN] = torch.from_numpy(np.zeros(0, np.int64) if seen is None else seen)
    header = info.to_json()
    digest = digest_of(header, tensors)
    partial = folder / f"{MODEL_FILE}.partial"
    save_file(tensors, partial, metadata={"surespan": header, "hash": digest})
    partial.replace(folder / MODEL_FILE)
    return replace(info, hash=digest)


def read_saved(path: str | Path, parse: Callable[[str, str], T]) -> tuple[T, dict[str, Tensor], str]:
    """Read a model directory (or its safetensors file): description, tensors and hash, which is checked.

    `parse` gets the description and the file's name. Raises InvalidModel when the file is missing or damaged.
    """
    folder = Path(path)
    file = folder / MODEL_FILE if folder.is_dir() else folder
    if not file.is_file():
        raise InvalidModel(f"expected a model file at {file}, got nothing there; train one with `surespan train`")
    try:
        with safe_open(file, framework="pt") as stream:
            metadata = stream.metadata() or {}
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise InvalidModel(f"expected a safetensors file at {file.name}, got: {error}") from None
    header = metadata.get("surespan", "")
    info = parse(header, file.name)
    digest = digest_of(header, tensors)
    if digest != metadata.get("hash"):
        raise InvalidModel(f"expected {file.name} to match its hash, got different content; copy the file again")
    return info, tensors, digest


def load_model(path: str | Path) -> Model:
    """Load a model directory (or its safetensors file) and check its hash.

    Raises InvalidModel when the file is missing, damaged, of another format version or does not fit its own
    description.
    """
    info, tensors, digest = read_saved(path, _parse)
    seen = tensors.pop(_SEEN, torch.zeros(0, dtype=torch.int64)).numpy()
    network = Network(info.features, info.network, info.space)
    try:
        network.load_state_dict(_restored(tensors), assign=True)
    except RuntimeError as error:
        raise InvalidModel(f"expected weights that fit the description in {MODEL_FILE}, got: {error}") from None
    network.requires_grad_(False)
    network.eval()
    return Model(network, replace(info, hash=digest), seen)


def _restored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(".scale"):
            continue
        scale = tensors.get(f"{name}.scale")
        state[name] = tensor.float() if scale is None else tensor.float() * scale.float()
    return state


def _parse(header: str, name: str) -> ModelInfo:
    try:
        fields = json.loads(header)
        if fields.get("kind", "network") != "network":
            raise InvalidModel(f"expected a model of hashed words in {name}, got one of the kind {fields['kind']!r}")
        format_read = (fields["format"], fields["format_version"])
        if format_read != (FORMAT, FORMAT_VERSION):
            raise InvalidModel(
                f"expected format {FORMAT} version {FORMAT_VERSION} in {name}, got {format_read[0]} {format_read[1]}; "
                "use the release that wrote it, or train again"
            )
        sizes = dict(fields["features"])
        sizes["ngram_lengths"] = tuple(sizes["ngram_lengths"])
        return ModelInfo(
            name=str(fields["name"]),
            classes=tuple(fields["classes"]),
            languages=tuple(fields["languages"]),
            features=FeatureConfig(**sizes),
            network=NetworkConfig(**fields["network"]),
            training=fields["training"],
        )
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidModel(f"expected a Surespan model description in {name}, got {error!r}") from None


def parameter_count(network: Network) -> int:
    """Return the number of weights."""
    return sum(math.prod(p.shape) for p in network.parameters())
