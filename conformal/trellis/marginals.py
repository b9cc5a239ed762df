"""Exact marginals: of each token's label, and of every span being exactly one entity (METHODS 2.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument, InvalidLabels
from conformal.labels import LabelSpace
from conformal.trellis import batches
from conformal.trellis.forward import Passes, run_forward
from conformal.trellis.kernels import entities, forward
from conformal.trellis.potentials import Floats, Potentials


@dataclass(frozen=True, eq=False)
class EntityMarginals:
    """`P_ent(a, b, w)`: the probability that a span is exactly one entity of a class.

    The rows list every span at or above the floor asked for; `probability` and `of_span` answer for any span.
    """

    space: LabelSpace
    length: int
    starts: npt.NDArray[np.int32]  # (rows,) first token
    ends: npt.NDArray[np.int32]  # (rows,) token after the last
    classes: npt.NDArray[np.int32]  # (rows,) position in space.classes
    probabilities: Floats  # (rows,)
    _factors: tuple[Floats, Floats, Floats, bool]

    def probability(self, start: int, end: int, name: str) -> float:
        """Return P_ent of tokens `start .. end - 1` and class `name`; the class "O" means: no entity exactly there."""
        if name == "O":
            return max(0.0, 1.0 - float(self.of_span(start, end).sum()))
        w = (self.space.begin(name) - 1) // 2
        return float(self.of_span(start, end)[w])

    def of_span(self, start: int, end: int) -> Floats:
        """Return P_ent of one span for every class of the label space: (W,)."""
        found: Floats = self.of_spans([start], [end])[0]
        return found

    def of_spans(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Floats:
        """Return P_ent of spans for every class of the label space: (S, W)."""
        first, last = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
        for start, end in zip(first.tolist(), last.tolist(), strict=True):
            if not 0 <= start < end <= self.length:
                raise InvalidLabels(f"expected a span inside 0..{self.length}, got {start}..{end}")
        opening, step, closing, logs = self._factors
        found: Floats = entities.span_probabilities(opening, step, closing, logs, first, last)
        return found


@overload
def entity_marginals(
    potentials: Potentials, space: LabelSpace, *, floor: float = ..., threads: int | None = None
) -> EntityMarginals: ...
@overload
def entity_marginals(
    potentials: Sequence[Potentials], space: LabelSpace, *, floor: float = ..., threads: int | None = None
) -> list[EntityMarginals]: ...
def entity_marginals(
    potentials: Potentials | Sequence[Potentials],
    space: LabelSpace,
    *,
    floor: float = 1e-6,
    threads: int | None = None,
) -> EntityMarginals | list[EntityMarginals]:
    """Return the probability of every span being exactly one entity, summed over all legal labelings.

    Lists the spans with `P_ent >= floor`; with `floor=0` all that are possible.

    >>> space = LabelSpace(["PER"])
    >>> p = Potentials(emissions=[[0.0, 0.0, 0.0]], transitions=np.zeros((3, 3)), start=[0, 0, -np.inf], end=[0] * 3)
    >>> entity_marginals(p, space).probability(0, 1, "PER")
    0.5
    """
    if not 0.0 <= floor <= 1.0:
        raise InvalidArgument(f"expected a floor in [0, 1], got {floor!r}")
    return batches.run(lambda p: _entity_marginals(p, space, float(floor)), potentials, threads)


def _entity_marginals(potentials: Potentials, space: LabelSpace, floor: float) -> EntityMarginals:
    check_space(potentials, space)
    W = len(space.classes)
    if not potentials.length:
        none = np.zeros(0, dtype=np.int32)
        factors = (np.zeros((0, W)), np.zeros((0, W, 2)), np.zeros((0, W, 2)), False)
        return EntityMarginals(space, 0, none, none, none, np.zeros(0), factors)
    chain = potentials.chain
    passes = run_forward(potentials)
    beta, close = _run_backward(potentials, passes)
    if passes.scaled:
        opening, step, closing, going = entities.factors_scaled(
            potentials.kinds, chain.scaled_moves, passes.alpha, passes.weight, passes.scale, beta, close
        )
    else:
        opening, step, closing, going = entities.factors_log(
            potentials.emissions,
            potentials.kinds,
            chain.moves,
            passes.alpha,
            beta,
            close,
            passes.log_partition,
        )
    logs = not passes.scaled
    rows = entities.list_spans(opening, step, closing, going, logs, floor)
    return EntityMarginals(space, potentials.length, *rows, (opening, step, closing, logs))


def _run_backward(potentials: Potentials, passes: Passes) -> tuple[Floats, Floats]:
    chain = potentials.chain
    beta = np.empty_like(passes.alpha)
    close = np.empty_like(passes.alpha)
    if passes.scaled:
        forward.backward_scaled(
            potentials.kinds,
            chain.scaled_moves_back,
            chain.end,
            passes.alpha,
            passes.weight,
            passes.scale,
            beta,
            close,
        )
    else:
        scratch = np.empty(potentials.label_count)
        forward.backward_log(potentials.emissions, potentials.kinds, chain.moves, chain.end, beta, close, scratch)
    return beta, close


@overload
def token_marginals(potentials: Potentials, *, threads: int | None = None) -> Floats: ...
@overload
def token_marginals(potentials: Sequence[Potentials], *, threads: int | None = None) -> list[Floats]: ...
def token_marginals(
    potentials: Potentials | Sequence[Potentials], *, threads: int | None = None
) -> Floats | list[Floats]:
    """Return `P(y_j = y)` for every token and label: (N, L), rows sum to 1.

    >>> p = Potentials(emissions=[[0.0, 0.0]], transitions=[[0, 0], [0, 0]], start=[0, 0], end=[0, 0])
    >>> token_marginals(p).tolist()
    [[0.5, 0.5]]
    """
    return batches.run(_token_marginals, potentials, threads)


def _token_marginals(potentials: Potentials) -> Floats:
    if not potentials.length:
        return np.zeros((0, potentials.label_count))
    passes = run_forward(potentials)
    beta, _ = _run_backward(potentials, passes)
    if passes.scaled:
        return passes.alpha * beta
    with np.errstate(under="ignore"):
        return np.exp(passes.alpha + beta - passes.log_partition)


def check_space(potentials: Potentials, space: LabelSpace) -> None:
    """Raise unless the chain has exactly the labels of the space."""
    if len(space) != potentials.label_count:
        raise InvalidLabels(
            f"expected potentials over the {len(space)} labels of {space.classes}, got {potentials.label_count} labels"
        )
