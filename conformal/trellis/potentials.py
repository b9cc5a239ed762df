"""The scores of a linear chain: emissions, transitions, start and end, with sentence boundaries (METHODS 1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument, InvalidPotentials

Floats = npt.NDArray[np.float64]

# Moves further below the largest one are left to the log domain: exp(-300) times the smallest share the scaled
# pass trusts (kernels.forward.SMALLEST_SHARE) is still a normal double.
_SCALED_RANGE = 300.0
_MOST_LABELS = int(np.iinfo(np.int16).max)  # label ids are kept in 16 bits


def _checked(values: npt.ArrayLike, shape: tuple[int | None, ...], name: str) -> Floats:
    try:
        array = np.array(values, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise InvalidPotentials(f"expected {name} to be numbers, got {type(values).__name__}: {error}") from None
    wanted = tuple("any" if size is None else size for size in shape)
    if array.ndim != len(shape) or any(s is not None and s != a for s, a in zip(shape, array.shape, strict=True)):
        raise InvalidPotentials(f"expected {name} of shape {wanted}, got {array.shape}")
    # One pass: NaN passes through max(), so this also catches it; -inf is legal.
    if array.size and not array.max() < np.inf:
        what = "NaN" if np.isnan(array).any() else "+inf"
        raise InvalidPotentials(f"expected {name} without NaN or +inf (-inf forbids), got {what}")
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class Chain:
    """What all texts of a model share: transition, start and end scores over L labels, checked once.

    `transitions[x, y]` scores label y after label x; -inf forbids the move, exactly.
    """

    transitions: Floats  # (L, L)
    start: Floats  # (L,)
    end: Floats  # (L,)
    _folded: dict[tuple[tuple[int, ...], ...], Chain] = field(repr=False, default_factory=dict)

    def __init__(self, *, transitions: npt.ArrayLike, start: npt.ArrayLike, end: npt.ArrayLike) -> None:
        first = _checked(start, (None,), "start")
        L = first.shape[0]
        if L == 0:
            raise InvalidPotentials("expected at least one label, got start of shape (0,)")
        if L > _MOST_LABELS:
            raise InvalidPotentials(f"expected at most {_MOST_LABELS} labels, got {L}")
        object.__setattr__(self, "start", first)
        object.__setattr__(self, "transitions", _checked(transitions, (L, L), "transitions"))
        object.__setattr__(self, "end", _checked(end, (L,), "end"))
        object.__setattr__(self, "_folded", {})

    def fold(self, groups: Sequence[Sequence[int]]) -> Chain:
        """Return the chain over merged labels, made once for all texts; see `Potentials.fold`."""
        key = tuple(tuple(group) for group in groups)
        if key not in self._folded:
            L = self.start.shape[0]
            for group in key:
                if not group or not all(0 <= i < L for i in group):
                    raise InvalidArgument(f"expected groups of label ids in 0..{L - 1}, got {list(group)}")
            first = np.array([group[0] for group in key], dtype=np.intp)
            self._folded[key] = Chain(
                transitions=self.transitions[np.ix_(first, first)], start=self.start[first], end=self.end[first]
            )
        return self._folded[key]

    def potentials(self, emissions: npt.ArrayLike, *, boundaries: Sequence[int] | None = None) -> Potentials:
        """Join a text's emissions with this chain; cheaper than `Potentials(...)` for every text."""
        return Potentials._join(self, emissions, boundaries)

    @cached_property
    def moves(self) -> Floats:
        """Scores of the two kinds of move, each transposed to [kind, to, from]: (2, L, L).

        Kind 0 is inside a sentence, kind 1 crosses a boundary: `end[from] + start[to]`.
        """
        crossing = self.start[:, None] + self.end[None, :]  # (L, L)
        return np.ascontiguousarray(np.stack([self.transitions.T, crossing]))

    @cached_property
    def moves_from(self) -> Floats:
        """`moves` laid out [kind, from, to]: (2, L, L)."""
        return np.ascontiguousarray(self.moves.transpose(0, 2, 1))

    @cached_property
    def scaled_moves(self) -> Floats:
        """`exp(moves - move_shift)`, laid out [kind, from, to] for the forward pass: (2, L, L)."""
        shifted = self.moves - self.move_shift[:, None, None]  # (2, L, L)
        return np.ascontiguousarray(np.exp(shifted).transpose(0, 2, 1))

    @cached_property
    def scaled_moves_back(self) -> Floats:
        """`exp(moves - move_shift)`, laid out [kind, to, from] for the backward pass: (2, L, L)."""
        return np.ascontiguousarray(self.scaled_moves.transpose(0, 2, 1))

    @cached_property
    def move_shift(self) -> Floats:
        """Return the largest finite score of each kind of move: (2,)."""
        largest = self.moves.reshape(2, -1).max(axis=1)
        return np.where(np.isfinite(largest), largest, 0.0)

    @cached_property
    def fits_scaled_range(self) -> bool:
        """Whether every finite move survives exponentiation beside the largest one."""
        lowest = self.moves - self.move_shift[:, None, None]
        return not bool(np.any(np.isfinite(lowest) & (lowest < -_SCALED_RANGE)))


@dataclass(frozen=True, eq=False)
class Potentials:
    """The chain score of one text: `s(y) = start[y1] + sum e[j, yj] + sum trans[y(j-1), yj] + end[yN]`.

    `boundaries` holds the tokens (1 .. N-1) that begin a further sentence; the move into such a token scores
    `end[y(j-1)] + start[yj]` instead of a transition. -inf anywhere forbids, exactly. Arrays are copied.

    >>> p = Potentials(emissions=[[0.0, 1.0]], transitions=[[0, 0], [0, 0]], start=[0, 0], end=[0, 0])
    >>> p.length, p.label_count
    (1, 2)
    """

    chain: Chain
    emissions: Floats  # (N, L)
    boundaries: tuple[int, ...] = ()
    kinds: npt.NDArray[np.int8] = field(repr=False, default_factory=lambda: np.zeros(0, np.int8))  # (N,)

    def __init__(
        self,
        *,
        emissions: npt.ArrayLike,
        transitions: npt.ArrayLike,
        start: npt.ArrayLike,
        end: npt.ArrayLike,
        boundaries: Sequence[int] | None = None,
    ) -> None:
        self._fill(Chain(transitions=transitions, start=start, end=end), emissions, boundaries)

    @classmethod
    def _join(cls, chain: Chain, emissions: npt.ArrayLike, boundaries: Sequence[int] | None) -> Potentials:
        potentials = cls.__new__(cls)
        potentials._fill(chain, emissions, boundaries)
        return potentials

    def _fill(self, chain: Chain, emissions: npt.ArrayLike, boundaries: Sequence[int] | None) -> None:
        array = _checked(emissions, (None, chain.start.shape[0]), "emissions")
        N = array.shape[0]
        kinds = np.zeros(N, dtype=np.int8)
        starts = () if boundaries is None else tuple(sorted({int(j) for j in boundaries}))
        for j in starts:
            if not 0 < j < N:
                raise InvalidPotentials(f"expected boundaries inside 1..{N - 1}, got {j}")
            kinds[j] = 1
        kinds.setflags(write=False)
        object.__setattr__(self, "chain", chain)
        object.__setattr__(self, "emissions", array)
        object.__setattr__(self, "boundaries", starts)
        object.__setattr__(self, "kinds", kinds)

    @property
    def length(self) -> int:
        """Number of tokens N."""
        return int(self.emissions.shape[0])

    @property
    def label_count(self) -> int:
        """Number of labels L."""
        return int(self.emissions.shape[1])

    @property
    def transitions(self) -> Floats:
        """Transition scores (L, L)."""
        return self.chain.transitions

    @property
    def start(self) -> Floats:
        """Start scores (L,)."""
        return self.chain.start

    @property
    def end(self) -> Floats:
        """End scores (L,)."""
        return self.chain.end

    def constrain(
        self,
        *,
        fixed: Mapping[int, int] | None = None,
        forbidden: Mapping[int, Iterable[int]] | None = None,
    ) -> Potentials:
        """Fix the label of some tokens and forbid labels of others; everything computed from it is exact.

        Probabilities of the result are conditional on the constraints.
        """
        emissions = self.emissions.copy()
        for token, label in (fixed or {}).items():
            self._check_cell(token, label)
            kept = emissions[token, label]
            emissions[token] = -np.inf
            emissions[token, label] = kept
        for token, labels in (forbidden or {}).items():
            for label in labels:
                self._check_cell(token, label)
                emissions[token, label] = -np.inf
        return self.chain.potentials(emissions, boundaries=self.boundaries)

    def fold(self, groups: Sequence[Sequence[int]]) -> Potentials:
        """Merge labels: new label y has the summed probability of the old labels `groups[y]` at each token.

        Moves are those of each group's first label. With `LabelSpace.fold` this sends unwanted classes to O
        *before* decoding, so that ranked labelings stay distinct (METHODS 1).
        """
        chain = self.chain.fold(groups)
        emissions = np.empty((self.length, len(groups)))
        for y, group in enumerate(groups):
            columns = self.emissions[:, list(group)]
            emissions[:, y] = columns[:, 0] if len(group) == 1 else np.logaddexp.reduce(columns, axis=1)
        return chain.potentials(emissions, boundaries=self.boundaries)

    def _check_cell(self, token: int, label: int) -> None:
        if not 0 <= token < self.length:
            raise InvalidArgument(f"expected a token in 0..{self.length - 1}, got {token}")
        if not 0 <= label < self.label_count:
            raise InvalidArgument(f"expected a label id in 0..{self.label_count - 1}, got {label}")
