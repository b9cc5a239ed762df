"""A saved network of hashed words as torch runs it, for training; `backend.tagger.compiled` runs it for predictions.

Hashed tables are stored as int8 with one scale a row, layers as float16, the chain's scores as float32; fingerprints
of the training texts go with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backend.tagger.errors import InvalidModel
from backend.tagger.model_files import MODEL_FILE
from backend.tagger.model_info import CHAIN, SEEN, TABLES, ModelInfo, parse_info
from backend.tagger.network import Network
from backend.tagger.saved_file import Arrays, read_saved, write_saved
from backend.tagger.training_texts import Fingerprints


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
        if name.split(".")[0] in TABLES:
            scale = (weight.abs().amax(dim=1, keepdim=True) / 127.0).clamp_min(1e-7).half().clamp_min(6e-8)  # (rows, 1)
            tensors[name] = (weight / scale.float()).round().clamp(-127, 127).to(torch.int8)
            tensors[f"{name}.scale"] = scale
        else:
            tensors[name] = weight if name in CHAIN else weight.half()
    return {name: tensor.contiguous() for name, tensor in sorted(tensors.items())}


def save_model(
    network: Network, directory: str | Path, *, info: ModelInfo, seen: Fingerprints | None = None
) -> ModelInfo:
    """Write `model.safetensors` into a directory, whole or not at all; return the info with its hash.

    `seen` are the sorted fingerprints of the training texts.
    """
    arrays: Arrays = {name: tensor.numpy() for name, tensor in _stored(network).items()}
    arrays[SEEN] = np.zeros(0, np.int64) if seen is None else seen
    return replace(info, hash=write_saved(directory, info.to_json(), arrays))


def load_model(path: str | Path) -> Model:
    """Load a model directory (or its safetensors file) and check its hash.

    Raises InvalidModel when the file is missing, damaged, of another format version or does not fit its own
    description.
    """
    info, arrays, digest = read_saved(path, parse_info)
    seen = arrays.pop(SEEN, np.zeros(0, np.int64))
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
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


def parameter_count(network: Network) -> int:
    """Return the number of weights."""
    return sum(math.prod(p.shape) for p in network.parameters())
