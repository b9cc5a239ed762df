"""Hypothesis strategies for small chains: ties, forbidden moves, boundaries, one token, no token."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conformal import Chain, LabelSpace, Potentials

# Few distinct values make ties common; -inf forbids; wide ones reach the log domain.
tied = st.sampled_from([0.0, 1.0, -1.0, 0.5])
forbidding = st.sampled_from([0.0, 1.0, -2.0, -np.inf])
smooth = st.floats(-8.0, 8.0, allow_nan=False)
wide = st.sampled_from([0.0, -3.0, 700.0, -800.0, -np.inf])


@st.composite
def potentials(draw: st.DrawFn, *, max_length: int = 5, max_labels: int = 5, min_length: int = 0) -> Potentials:
    """A chain over any labels, without a label space."""
    L = draw(st.integers(1, max_labels))
    N = draw(st.integers(min_length, max_length if L <= 4 else min(max_length, 4)))
    values = draw(st.sampled_from([tied, forbidding, smooth, wide]))
    return Potentials(
        emissions=draw(arrays(np.float64, (N, L), elements=values)),
        transitions=draw(arrays(np.float64, (L, L), elements=values)),
        start=draw(arrays(np.float64, L, elements=values)),
        end=draw(arrays(np.float64, L, elements=values)),
        boundaries=draw(st.lists(st.integers(1, N - 1), unique=True)) if N > 1 else None,
    )


@st.composite
def tagged(draw: st.DrawFn, *, max_length: int = 5) -> tuple[LabelSpace, Potentials]:
    """A chain over the IOB2 labels of one or two classes, illegal moves forbidden."""
    space = LabelSpace(["A", "B"][: draw(st.integers(1, 2))])
    L = len(space)
    N = draw(st.integers(0, max_length if L == 3 else min(max_length, 4)))
    values = draw(st.sampled_from([tied, smooth, wide]))
    base = draw(arrays(np.float64, (L, L), elements=st.floats(-3, 3)))
    chain = Chain(
        transitions=np.where(space.allowed, base, -np.inf),
        start=np.where(space.allowed_start, draw(arrays(np.float64, L, elements=st.floats(-3, 3))), -np.inf),
        end=draw(arrays(np.float64, L, elements=st.floats(-3, 3))),
    )
    boundaries = draw(st.lists(st.integers(1, N - 1), unique=True)) if N > 1 else None
    return space, chain.potentials(draw(arrays(np.float64, (N, L), elements=values)), boundaries=boundaries)
