"""A layer of LSTM cells in one direction: texts side by side, longest first, so that no padding is computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from backend.tagger.compiled.instructions import fused
from backend.tagger.compiled.products import add_product
from conformal.trellis.jit import inner_kernel, kernel

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]


_single = np.float32
_LARGEST = _single(7.90531110763549805)  # beyond it, tanh is 1 in float32
_UP_1, _UP_3, _UP_5, _UP_7, _UP_9, _UP_11, _UP_13 = (
    _single(v)
    for v in (
        4.89352455891786e-03,
        6.37261928875436e-04,
        1.48572235717979e-05,
        5.12229709037114e-08,
        -8.60467152213735e-11,
        2.00018790482477e-13,
        -2.76076847742355e-16,
    )
)
_DOWN_0, _DOWN_2, _DOWN_4, _DOWN_6 = (
    _single(v) for v in (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)
)
_HALF = _single(0.5)


@inner_kernel
def tanh(x: np.float32) -> np.float32:
    """Return tanh as a ratio of polynomials, within units of the last place; no branch, so loops become vectors."""
    x = min(max(x, -_LARGEST), _LARGEST)
    s = x * x
    up = fused(_UP_13, s, _UP_11)
    up = fused(up, s, _UP_9)
    up = fused(up, s, _UP_7)
    up = fused(up, s, _UP_5)
    up = fused(up, s, _UP_3)
    up = fused(up, s, _UP_1)
    down = fused(_DOWN_6, s, _DOWN_4)
    down = fused(down, s, _DOWN_2)
    down = fused(down, s, _DOWN_0)
    return x * up / down


@inner_kernel
def sigmoid(x: np.float32) -> np.float32:
    """Return 1 / (1 + exp(-x))."""
    return fused(_HALF, tanh(_HALF * x), _HALF)


@inner_kernel
def advance(gates: Floats, memory: Floats, state: Floats) -> None:
    """Move one cell: its gates (4 H: input, forget, new, output) before their functions, memory and state (H,)."""
    H = memory.shape[0]
    for j in range(H):
        let_in = sigmoid(gates[j])
        keep = sigmoid(gates[H + j])
        new = tanh(gates[2 * H + j])
        let_out = sigmoid(gates[3 * H + j])
        kept = fused(keep, memory[j], let_in * new)
        memory[j] = kept
        state[j] = let_out * tanh(kept)


@kernel
def run_direction(
    inputs: Floats, places: Places, starts: Places, lengths: Places, panels: Floats, states: Floats, backwards: bool
) -> None:
    """Run the cells over texts in one direction.

    Args:
        inputs: projected inputs, (R, at least 2 W): those of the rightward cells, then of the leftward ones.
        places: the row of each token's input, (T,).
        starts, lengths: of the texts among the tokens, (P,), longest first.
        panels: packed weights (H, W) of the cells.
        states: (T, 2 H), of which the left or the right half is written.
        backwards: whether these are the leftward cells.
    """
    P, H, W = starts.shape[0], states.shape[1] // 2, panels.shape[0] * panels.shape[2]
    first, left = (W, H) if backwards else (0, 0)
    gates = np.empty((P, W), np.float32)
    state = np.zeros((P, H), np.float32)
    memory = np.zeros((P, H), np.float32)
    active = P
    for t in range(lengths[0]):
        while lengths[active - 1] <= t:
            active -= 1
        for r in range(active):
            row = places[starts[r] + (lengths[r] - 1 - t if backwards else t)]
            for j in range(W):
                gates[r, j] = inputs[row, first + j]
        if t:  # states are zero before the first token
            add_product(gates[:active], state[:active], panels)
        for r in range(active):
            advance(gates[r], memory[r], state[r])
            token = starts[r] + (lengths[r] - 1 - t if backwards else t)
            for j in range(H):
                states[token, left + j] = state[r, j]


@kernel
def project(states: Floats, panels: Floats, bias: Floats) -> Floats:
    """Return `bias + states @ weights`, (T, W)."""
    T = states.shape[0]
    projected = np.empty((T, bias.shape[0]), np.float32)
    for i in range(T):
        projected[i] = bias
    add_product(projected, states, panels)
    return projected


@kernel
def emit(inputs: Floats, places: Places, states: Floats, panels: Floats, labels: int) -> npt.NDArray[np.float64]:
    """Return the emissions (T, L): what the words say, at the end of their rows, and what their context adds."""
    T, width = states.shape[0], panels.shape[0] * panels.shape[2]
    first = inputs.shape[1] - width
    sums = np.empty((T, width), np.float32)
    for i in range(T):
        sums[i] = inputs[places[i], first:]
    add_product(sums, states, panels)
    return sums[:, :labels].astype(np.float64)
