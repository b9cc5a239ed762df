"""Load a saved network of hashed words for predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from backend.tagger.compiled.network import CompiledNetwork
from backend.tagger.model_info import SEEN, ModelInfo, parse_info
from backend.tagger.saved_file import read_saved
from backend.tagger.training_texts import Fingerprints


class LoadedNetwork(NamedTuple):
    """A loaded model: the network ready to run, what it says about itself, and what it was trained on."""

    network: CompiledNetwork
    info: ModelInfo
    seen: Fingerprints


def load_network(path: str | Path) -> LoadedNetwork:
    """Load a model directory (or its safetensors file) and check its hash.

    Raises InvalidModel when the file is missing, damaged, of another format version or does not fit its own
    description.
    """
    info, arrays, digest = read_saved(path, parse_info)
    seen: Fingerprints = arrays.pop(SEEN, np.zeros(0, np.int64))
    return LoadedNetwork(CompiledNetwork(arrays, info), replace(info, hash=digest), seen)
