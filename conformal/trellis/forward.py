"""Exact probabilities: the log partition, labelings, and the labels of single tokens (METHODS 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidLabels, NoLegalLabeling
from conformal.trellis import batches
from conformal.trellis.kernels import forward as kernels
from conformal.trellis.potentials import Floats, Potentials

LabelIds = Sequence[int] | npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Passes:
    """What the forward pass leaves behind: scaled shares, or logarithms where those would underflow."""

    log_partition: float
    scaled: bool
    alpha: Floats  # (N, L)
    weight: Floats  # (N, L), empty in the log domain
    scale: Floats  # (N,), empty in the log domain


def run_forward(potentials: Potentials) -> Passes:
    """Forward pass over a text of at least one token, scaled if that is safe, else in the log domain."""
    chain = potentials.chain
    N, L = potentials.emissions.shape
    alpha = np.empty((N, L))
    if chain.fits_scaled_range:
        weight, scale = np.empty((N, L)), np.empty(N)
        safe, log_z = kernels.forward_scaled(
            potentials.emissions,
            potentials.kinds,
            chain.scaled_moves,
            chain.move_shift,
            chain.start,
            chain.end,
            alpha,
            weight,
            scale,
        )
        if safe:
            return Passes(_possible(log_z, potentials), True, alpha, weight, scale)
    log_z = kernels.forward_log(
        potentials.emissions, potentials.kinds, chain.moves, chain.start, chain.end, alpha, np.empty(L)
    )
    return Passes(_possible(log_z, potentials), False, alpha, np.empty((0, 0)), np.empty(0))


def _possible(log_z: float, potentials: Potentials) -> float:
    if log_z == -np.inf:
        raise NoLegalLabeling(no_legal_labeling(potentials))
    return log_z


def no_legal_labeling(potentials: Potentials) -> str:
    """Return the message for a text all of whose labelings are forbidden."""
    return (
        f"expected at least one labeling with a finite score, got none for a text of {potentials.length} tokens; "
        "check constraints and -inf entries"
    )


@overload
def log_partition(potentials: Potentials, *, threads: int | None = None) -> float: ...
@overload
def log_partition(potentials: Sequence[Potentials], *, threads: int | None = None) -> list[float]: ...
def log_partition(potentials: Potentials | Sequence[Potentials], *, threads: int | None = None) -> float | list[float]:
    """Return `Z = log sum_y exp(s(y))` over all legal labelings, exact in float64; 0 for a text without tokens.

    Raises `NoLegalLabeling` if every labeling is forbidden.

    >>> import math
    >>> p = Potentials(emissions=[[0.0, 0.0]], transitions=[[0, 0], [0, 0]], start=[0, 0], end=[0, 0])
    >>> math.isclose(log_partition(p), math.log(2))
    True
    """
    return batches.run(lambda p: run_forward(p).log_partition if p.length else 0.0, potentials, threads)


def path_score(potentials: Potentials, labels: LabelIds) -> float:
    """Return the chain score s(y) of one labeling; -inf if a move or label in it is forbidden."""
    ids = check_labels(potentials, labels)
    if not potentials.length:
        return 0.0
    chain = potentials.chain
    return kernels.path_score(potentials.emissions, potentials.kinds, chain.moves, chain.start, chain.end, ids)


@overload
def log_probability(potentials: Potentials, labels: LabelIds, *, threads: int | None = None) -> float: ...
@overload
def log_probability(
    potentials: Sequence[Potentials], labels: Sequence[LabelIds], *, threads: int | None = None
) -> list[float]: ...
def log_probability(
    potentials: Potentials | Sequence[Potentials],
    labels: LabelIds | Sequence[LabelIds],
    *,
    threads: int | None = None,
) -> float | list[float]:
    """Return `log P(y|x) = s(y) - Z`; -inf for a forbidden labeling. A batch takes one labeling per text."""
    if isinstance(potentials, Potentials):
        return _log_probability(potentials, labels)  # type: ignore[arg-type]
    batch, each = check_pairs(potentials, labels)  # type: ignore[arg-type]
    return batches.run_many(lambda i: _log_probability(batch[i], each[i]), len(batch), threads)


def _log_probability(potentials: Potentials, labels: LabelIds) -> float:
    score = path_score(potentials, labels)
    return score - (run_forward(potentials).log_partition if potentials.length else 0.0)


def check_pairs(
    potentials: Sequence[Potentials], labels: Sequence[LabelIds]
) -> tuple[Sequence[Potentials], Sequence[LabelIds]]:
    """Return a batch and its labelings, or raise if there is not one labeling per text."""
    batch = batches.check_batch(potentials)
    if len(labels) != len(batch):
        raise InvalidLabels(f"expected one labeling per text ({len(batch)}), got {len(labels)}")
    return batch, labels


def check_labels(potentials: Potentials, labels: LabelIds) -> npt.NDArray[np.int16]:
    """Return the labels of every token as an array, or raise."""
    ids = np.asarray(labels)
    if ids.shape != (potentials.length,):
        raise InvalidLabels(f"expected one label for each of {potentials.length} tokens, got shape {ids.shape}")
    if ids.size == 0:
        return np.zeros(0, dtype=np.int16)
    if not np.issubdtype(ids.dtype, np.integer):
        raise InvalidLabels(f"expected integer label ids, got {ids.dtype}")
    if ids.min() < 0 or ids.max() >= potentials.label_count:
        raise InvalidLabels(f"expected label ids in 0..{potentials.label_count - 1}, got {ids.min()}..{ids.max()}")
    return ids.astype(np.int16)
