"""The vectors of words: sums of hashed rows, brought to one scale and mixed."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from backend.tagger.compiled.products import add_product
from conformal.trellis.jit import inner_kernel, kernel

Floats = npt.NDArray[np.float32]
Table = npt.NDArray[np.int8]
Indices = npt.NDArray[np.int64]

_NARROW = 1e-5  # keeps the scale of a constant vector finite, as in training


@inner_kernel
def _add_row(sums: Floats, table: Table, scale: Floats, row: int) -> None:
    factor = scale[row, 0]
    for j in range(sums.shape[0]):
        sums[j] += np.float32(table[row, j]) * factor


@inner_kernel
def sum_rows(sums: Floats, table: Table, scale: Floats, rows: Indices) -> None:
    """Add the rows (K,) of each of U words to its sums (U, D); rows of `rows` are words."""
    for u in range(sums.shape[0]):
        for row in rows[u]:
            _add_row(sums[u], table, scale, row)


@inner_kernel
def average_rows(sums: Floats, table: Table, scale: Floats, rows: Indices, offsets: Indices) -> None:
    """Write the mean of the rows `rows[offsets[u]:offsets[u + 1]]` of each word; zero where it has none."""
    for u in range(sums.shape[0]):
        count = offsets[u + 1] - offsets[u]
        for row in rows[offsets[u] : offsets[u + 1]]:
            _add_row(sums[u], table, scale, row)
        if count > 1:
            for j in range(sums.shape[1]):
                sums[u, j] /= np.float32(count)


@kernel
def mix(joined: Floats, gain: Floats, shift: Floats, panels: Floats, bias: Floats) -> Floats:
    """Return the vectors (U, W) of words from their joined features (U, D), which are overwritten."""
    U, D = joined.shape
    for u in range(U):
        mean = 0.0
        for j in range(D):
            mean += joined[u, j]
        mean /= D
        spread = 0.0
        for j in range(D):
            spread += (joined[u, j] - mean) ** 2
        scale = 1.0 / math.sqrt(spread / D + _NARROW)
        for j in range(D):
            joined[u, j] = np.float32((joined[u, j] - mean) * scale * gain[j] + shift[j])
    mixed = np.empty((U, bias.shape[0]), np.float32)
    for u in range(U):
        mixed[u] = bias
    add_product(mixed, joined, panels)
    for u in range(U):
        for j in range(mixed.shape[1]):
            value = mixed[u, j]
            mixed[u, j] = np.float32(0.5 * value * (1.0 + math.erf(value * math.sqrt(0.5))))
    return mixed
