"""Transitions and a temperature fitted to labelled data, saved beside a checkpoint; without them, structure alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from backend.tagger.errors import InvalidModel
from backend.tagger.hf.mapping import Labels
from backend.tagger.training_texts import Fingerprints
from conformal.trellis.potentials import Chain

FORMAT = "surespan-chain 1"
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FittedChain:
    """Scores of moves, a temperature of the emissions, and fingerprints of the texts both were fitted on."""

    labels: tuple[str, ...]
    transitions: Floats  # (L, L), -inf where not allowed
    start: Floats  # (L,)
    end: Floats  # (L,)
    temperature: float
    seen: Fingerprints

    @property
    def chain(self) -> Chain:
        """The chain of every text."""
        return Chain(transitions=self.transitions, start=self.start, end=self.end)


def structural(labels: Labels) -> FittedChain:
    """Return the chain that knows only which moves are legal: all of those score 0."""
    space = labels.space
    return FittedChain(
        space.labels,
        np.where(labels.allowed, 0.0, -np.inf),
        np.where(space.allowed_start, 0.0, -np.inf),
        np.zeros(len(space)),
        1.0,
        np.zeros(0, np.int64),
    )


def save_chain(fitted: FittedChain, path: Path) -> None:
    """Write a fitted chain, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    tensors = {
        "transitions": fitted.transitions,
        "start": fitted.start,
        "end": fitted.end,
        "temperature": np.array([fitted.temperature]),
        "seen": fitted.seen,
    }
    save_file(tensors, partial, metadata={"format": FORMAT, "labels": "\t".join(fitted.labels)})
    partial.replace(path)


def load_chain(path: Path, labels: Labels) -> FittedChain:
    """Read a fitted chain.

    Raises InvalidModel when it is damaged or belongs to other labels.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise InvalidModel(f"expected a fitted chain at {path}, got: {error}") from None
    wanted = "\t".join(labels.space.labels)
    if metadata.get("format") != FORMAT or metadata.get("labels") != wanted:
        raise InvalidModel(
            f"expected a chain fitted over the labels {labels.space.labels} in {path.name}, got one over "
            f"{metadata.get('labels', '').split()}; run `surespan fit-transitions` again"
        )
    try:
        return FittedChain(
            labels.space.labels,
            arrays["transitions"],
            arrays["start"],
            arrays["end"],
            float(arrays["temperature"][0]),
            arrays["seen"],
        )
    except KeyError as error:
        raise InvalidModel(f"expected a whole chain in {path.name}, got none of {error}") from None
