"""Products of float32 matrices in which a row's result depends on that row alone, to the last bit.

Libraries choose the order of their sums by the number of rows, so that a text's scores move with the texts beside it.
Here every element starts from what stands in the result and adds the products in order, one fused step each, whichever
block of rows it falls in. Weights are packed once, in panels of columns that stay in the nearest cache.

The innermost loop is written in LLVM's own vectors, because compilers do not find this arrangement in a plain loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from backend.tagger.compiled.instructions import WIDE, intrinsic, multiply_add
from conformal.trellis.jit import inner_kernel

Floats = npt.NDArray[np.float32]

_LANES = 16 if WIDE else 8
_VECTORS = 2
PANEL = _LANES * _VECTORS  # columns of a panel
_ROWS = 8 if WIDE else 4  # rows of a block: as many as their sums fit into the registers
_TOGETHER = 4  # panels that a single row takes at once, or each sum would wait for itself
_BLOCK = 64  # rows that meet a panel while it lies in the nearest cache


class Packed(NamedTuple):
    """A matrix (inner, columns) in panels: (panels, inner, PANEL), with zeros beyond its last column."""

    panels: Floats
    columns: int

    @property
    def width(self) -> int:
        """Columns of a result, with those that fill up the last panel."""
        return self.panels.shape[0] * PANEL


def pack(matrix: npt.NDArray[Any]) -> Packed:
    """Pack a matrix (inner, columns).

    >>> pack(np.ones((3, 5))).panels.shape == (1, 3, PANEL)
    True
    """
    inner, columns = matrix.shape
    count = -(-columns // PANEL)
    padded = np.zeros((inner, count * PANEL), np.float32)
    padded[:, :columns] = matrix
    return Packed(np.ascontiguousarray(padded.reshape(inner, count, PANEL).transpose(1, 0, 2)), columns)


def _block(rows: int, panels: int) -> Callable[..., None]:
    """Make the function that adds `rows` rows times `panels` neighbouring panels to a result, all in registers.

    It takes addresses: of the result and the bytes between its rows, of the left rows and the bytes between them, of
    the first panel and the bytes between panels, and the length of the inner dimension.
    """
    vectors = _VECTORS * panels

    @intrinsic
    def add_block(
        typing_context: Any,  # noqa: ANN401, ARG001 - numba's own types
        result: Any,  # noqa: ANN401, ARG001
        result_step: Any,  # noqa: ANN401, ARG001
        left: Any,  # noqa: ANN401, ARG001
        left_step: Any,  # noqa: ANN401, ARG001
        panel: Any,  # noqa: ANN401, ARG001
        panel_step: Any,  # noqa: ANN401, ARG001
        inner: Any,  # noqa: ANN401, ARG001
    ) -> tuple[Any, Callable[..., Any]]:
        signature = types.void(*[types.intp] * 7)

        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:  # noqa: ANN401
            to, to_step, rows_at, rows_step, panels_at, panels_step, count = arguments
            whole, single = ir.IntType(64), ir.FloatType()
            vector = ir.VectorType(single, _LANES)
            bytes_of = 4 * _LANES

            def at(base: Any, offset: Any, kind: Any) -> Any:  # noqa: ANN401
                return builder.inttoptr(builder.add(base, offset), kind.as_pointer())

            def size(value: int) -> Any:  # noqa: ANN401
                return ir.Constant(whole, value)

            places = [
                builder.add(
                    builder.mul(to_step, size(r)), size((v // _VECTORS) * 4 * PANEL + (v % _VECTORS) * bytes_of)
                )
                for r in range(rows)
                for v in range(vectors)
            ]
            sums = [builder.load(at(to, place, vector), align=4) for place in places]
            before = builder.block
            loop = builder.append_basic_block("inner")
            after = builder.append_basic_block("after")
            is_any = builder.icmp_signed(">", count, size(0))
            builder.cbranch(is_any, loop, after)

            builder.position_at_end(loop)
            k = builder.phi(whole)
            k.add_incoming(size(0), before)
            running = [builder.phi(vector) for _ in sums]
            for phi, value in zip(running, sums, strict=True):
                phi.add_incoming(value, before)
            weights = [
                builder.load(
                    at(
                        panels_at,
                        builder.add(
                            builder.add(builder.mul(k, size(4 * PANEL)), builder.mul(panels_step, size(v // _VECTORS))),
                            size((v % _VECTORS) * bytes_of),
                        ),
                        vector,
                    ),
                    align=4,
                )
                for v in range(vectors)
            ]
            added: list[Any] = []
            for r in range(rows):
                offset = builder.add(builder.mul(rows_step, size(r)), builder.mul(k, size(4)))
                value = builder.load(at(rows_at, offset, single), align=4)
                lane = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
                mask = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [0] * _LANES)
                spread = builder.shuffle_vector(lane, ir.Constant(vector, ir.Undefined), mask)
                added.extend(
                    multiply_add(builder, spread, weights[v], running[r * vectors + v]) for v in range(vectors)
                )
            following = builder.add(k, size(1))
            k.add_incoming(following, loop)
            for phi, value in zip(running, added, strict=True):
                phi.add_incoming(value, loop)
            builder.cbranch(builder.icmp_signed("<", following, count), loop, after)

            builder.position_at_end(after)
            ends = []
            for value, final in zip(sums, added, strict=True):
                end = builder.phi(vector)
                end.add_incoming(value, before)
                end.add_incoming(final, loop)
                ends.append(end)
            for end, place in zip(ends, places, strict=True):
                builder.store(end, at(to, place, vector), align=4)
            return context.get_dummy_value()

        return signature, generate

    return add_block


_many = _block(_ROWS, 1)
_half = _block(_ROWS // 2, 1)
_one = _block(1, 1)
_two_by_two = _block(2, 2)
_one_by_four = _block(1, _TOGETHER)


@inner_kernel
def add_product(result: Floats, left: Floats, panels: Floats) -> None:
    """Add `left` (R, inner) times packed panels (P, inner, PANEL) to `result` (R, P * PANEL).

    Rows may be further apart than they are wide; the elements of a row are neighbours.
    """
    rows, inner = left.shape
    count = panels.shape[0]
    to, to_step = result.ctypes.data, result.strides[0]
    at, at_step = left.ctypes.data, left.strides[0]
    panel, panel_step = panels.ctypes.data, panels.strides[0]
    across = 4 * PANEL
    for first in range(0, rows, _BLOCK):
        last = min(first + _BLOCK, rows)
        whole = first + (last - first) // _ROWS * _ROWS
        for p in range(count):
            for row in range(first, whole, _ROWS):
                _many(to + row * to_step + p * across, to_step, at + row * at_step, at_step, panel + p * panel_step,
                      panel_step, inner)  # fmt: skip
        row = whole
        if last - row >= _ROWS // 2:
            for p in range(count):
                _half(to + row * to_step + p * across, to_step, at + row * at_step, at_step, panel + p * panel_step,
                      panel_step, inner)  # fmt: skip
            row += _ROWS // 2
        while row + 2 <= last:
            for p in range(0, count - 1, 2):
                _two_by_two(to + row * to_step + p * across, to_step, at + row * at_step, at_step,
                            panel + p * panel_step, panel_step, inner)  # fmt: skip
            if count % 2:
                p = count - 1
                for each in range(row, row + 2):
                    _one(to + each * to_step + p * across, to_step, at + each * at_step, at_step,
                         panel + p * panel_step, panel_step, inner)  # fmt: skip
            row += 2
        if row < last:
            p = 0
            while p + _TOGETHER <= count:
                _one_by_four(to + row * to_step + p * across, to_step, at + row * at_step, at_step,
                             panel + p * panel_step, panel_step, inner)  # fmt: skip
                p += _TOGETHER
            while p < count:
                _one(to + row * to_step + p * across, to_step, at + row * at_step, at_step, panel + p * panel_step,
                     panel_step, inner)  # fmt: skip
                p += 1
