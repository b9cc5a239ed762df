"""Checkpoints of a training run: one safetensors file, whole or not at all, that a killed run continues from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.tagger.errors import InvalidTraining

CHECKPOINT_FILE = "checkpoint.safetensors"


class Checkpoint(NamedTuple):
    """What was read: the run's own state, its weights now and at their best, and everything else by name."""

    state: str
    now: dict[str, Tensor]
    best: dict[str, Tensor]
    tensors: dict[str, Tensor]


def data_digest(parts: Iterable[Iterable[Sequence[npt.NDArray[np.int64]]]], *, words: Sequence[str] = ()) -> str:
    """Return a hash of training and development samples: every text and every label is in it, in order.

    A sample is a few arrays of numbers; `words` are what the numbers of words stand for, if they have no other meaning.

    >>> one, two = np.array([1, 2]), np.array([0, 1])
    >>> [data_digest([[(one, two)]]) == data_digest([[(one, labels)]]) for labels in (two, one)]
    [True, False]
    """
    digest = hashlib.sha256()
    for word in words:
        digest.update(word.encode("utf-8", "surrogatepass") + b"\0")
    for part in parts:
        digest.update(b"part\0")
        for arrays in part:
            for array in arrays:
                digest.update(f"{array.size}|".encode() + array.astype("<i8").tobytes())
    return digest.hexdigest()


def write_checkpoint(
    directory: Path,
    *,
    state: str,
    fingerprint: str,
    now: Mapping[str, Tensor],
    best: Mapping[str, Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
) -> None:
    """Write everything a continued run needs. `fingerprint` says which recipe and data it belongs to."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {f"now.{name}": value for name, value in now.items()}
    tensors |= {f"best.{name}": value for name, value in best.items()}
    for k, optimizer in enumerate(optimizers):
        for index, slot in optimizer.state_dict()["state"].items():
            for key, value in slot.items():
                tensors[f"optimizer.{k}.{index}.{key}"] = torch.as_tensor(value)
    plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    partial = directory / f"{CHECKPOINT_FILE}.partial"
    save_file(plain, partial, metadata={"state": state, "config": fingerprint})
    partial.replace(directory / CHECKPOINT_FILE)


def read_checkpoint(directory: Path, *, fingerprint: str) -> Checkpoint | None:
    """Read the checkpoint of a directory; None when there is none.

    Raises InvalidTraining when it is of another recipe or of other data.
    """
    file = directory / CHECKPOINT_FILE
    if not file.is_file():
        return None
    with safe_open(file, framework="pt") as stream:
        header = stream.metadata() or {}
    if header.get("config") != fingerprint:
        raise InvalidTraining(
            f"expected a checkpoint of this recipe and data in {directory}, got another's: an option, a text or a "
            "label has changed since; give the same options and data, start afresh with --fresh, or give another --out"
        )
    tensors = load_file(file)
    now = {n[4:]: t for n, t in tensors.items() if n.startswith("now.")}
    best = {n[5:]: t for n, t in tensors.items() if n.startswith("best.")}
    return Checkpoint(header["state"], now, best, tensors)


def restore_optimizers(checkpoint: Checkpoint, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Put the optimizers back where they were."""
    for k, optimizer in enumerate(optimizers):
        slots: dict[int, dict[str, Tensor | int]] = {}
        for name, tensor in checkpoint.tensors.items():
            head, _, rest = name.partition(f"optimizer.{k}.")
            if head or not rest:
                continue
            index, _, key = rest.partition(".")
            # SparseAdam counts its steps in a plain int, AdamW in a tensor.
            plain = key == "step" and isinstance(optimizer, torch.optim.SparseAdam)
            slots.setdefault(int(index), {})[key] = int(tensor) if plain else tensor
        optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})
