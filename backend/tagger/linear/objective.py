"""The penalised loss of a linear CRF over labelled chains, with its exact gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from backend.tagger.linear.kernels import (
    Floats,
    Ints,
    Rows,
    add_dense_gradients,
    add_dense_scores,
    add_gradients,
    add_scores,
    chain_losses,
    dot,
)
from conformal.labels import LabelSpace


class Weights(NamedTuple):
    """The weights of a linear CRF; moves and starts that IOB2 does not have are -inf when scored."""

    sparse: Floats  # (F, L)
    dense: Floats  # (D, L)
    transitions: Floats  # (L, L)
    start: Floats  # (L,)
    end: Floats  # (L,)


@dataclass(frozen=True)
class Examples:
    """Labelled chains one after the other: rows of each token's features, dense features, labels."""

    rows: Rows  # (sum of counts,)
    offsets: Ints  # (T + 1,)
    dense: npt.NDArray[np.float32]  # (T, D)
    chains: Ints  # (C + 1,)
    labels: Ints  # (T,)

    def take(self, chosen: Ints) -> Examples:
        """Return some chains, in the order given."""
        lengths = self.chains[chosen + 1] - self.chains[chosen]
        tokens = number_ranges(self.chains[chosen], lengths)
        counts = self.offsets[tokens + 1] - self.offsets[tokens]
        return Examples(
            self.rows[number_ranges(self.offsets[tokens], counts)],
            running_totals(counts),
            self.dense[tokens],
            running_totals(lengths),
            self.labels[tokens],
        )


def running_totals(counts: Ints) -> Ints:
    """Return where each of the things counted begins, and where the last one ends."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def number_ranges(starts: Ints, counts: Ints) -> Ints:
    """Return the numbers `start .. start + count - 1` of each pair, one after the other."""
    total = running_totals(counts)
    return np.arange(total[-1]) + np.repeat(starts - total[:-1], counts)


class Penalty(NamedTuple):
    """Half the squared distance of each weight from where it is drawn to, times these."""

    sparse: float
    dense: float
    chain: float


class Objective:
    """Loss of examples plus penalty, as a function of one flat vector of weights."""

    def __init__(
        self, examples: Examples, space: LabelSpace, *, features: int, penalty: Penalty, centre: Floats | None = None
    ) -> None:
        self.examples = examples
        self.space = space
        L, D = len(space), examples.dense.shape[1]
        self._sizes = np.cumsum([0, features * L, D * L, L * L, L, L])
        self._shapes = ((features, L), (D, L), (L, L), (L,), (L,))
        self._penalty = penalty
        self._centre = centre

    @property
    def size(self) -> int:
        """Number of weights."""
        return int(self._sizes[-1])

    def split(self, flat: Floats) -> Weights:
        """Return views of the parts of a flat vector."""
        bounds = zip(self._sizes[:-1], self._sizes[1:], self._shapes, strict=True)
        return Weights(*(flat[first:last].reshape(shape) for first, last, shape in bounds))

    def __call__(self, flat: Floats) -> tuple[float, Floats]:
        """Return value and gradient."""
        gradient = np.zeros_like(flat)
        loss = float(self.losses(flat, gradient).sum())
        apart = flat if self._centre is None else flat - self._centre
        places = (0, self._sizes[1], self._sizes[2], self._sizes[-1])
        for first, last, strength in zip(places[:-1], places[1:], self._penalty, strict=True):
            part = apart[first:last]
            loss += 0.5 * strength * dot(part, part)
            gradient[first:last] += strength * part
        return loss, gradient

    def losses(self, flat: Floats, gradient: Floats | None = None) -> Floats:
        """Return the loss of every chain (C,), without penalty; add to the gradient if one is given."""
        weights = self.split(flat)
        emissions = score_tokens(self.examples, weights)
        slopes = np.empty_like(emissions)
        into = self.split(np.zeros(self.size) if gradient is None else gradient)
        losses = np.empty(len(self.examples.chains) - 1)
        chain_losses(
            emissions,
            self.examples.chains,
            self.examples.labels,
            *chain_scores(weights, self.space),
            losses,
            slopes,
            into.transitions,
            into.start,
            into.end,
        )
        if gradient is not None:
            add_gradients(self.examples.rows, self.examples.offsets, slopes, into.sparse)
            add_dense_gradients(self.examples.dense, slopes, into.dense)
        return losses


def score_tokens(examples: Examples, weights: Weights) -> Floats:
    """Return the emissions of all tokens (T, L)."""
    emissions = np.zeros((examples.offsets.shape[0] - 1, weights.sparse.shape[1]))
    add_dense_scores(examples.dense, weights.dense, emissions)
    add_scores(examples.rows, examples.offsets, weights.sparse, emissions)
    return emissions


def chain_scores(weights: Weights, space: LabelSpace) -> tuple[Floats, Floats, Floats]:
    """Return transitions, start and end with -inf on what IOB2 does not have."""
    return (
        np.where(space.allowed, weights.transitions, -np.inf),
        np.where(space.allowed_start, weights.start, -np.inf),
        weights.end,
    )
