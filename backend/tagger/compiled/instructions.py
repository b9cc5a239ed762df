"""What the processor can do and Python has no name for: written in LLVM, called from kernels like functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba.extending
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

Generator = tuple[Any, Callable[..., Any]]


def intrinsic(make: Callable[..., Generator]) -> Callable[..., Any]:
    """Make a function of kernels from one that takes numba's typing context and types; returns signature and code."""
    return cast("Callable[..., Any]", numba.extending.intrinsic(make))


def _fused(typing_context: Any, a: Any, b: Any, c: Any) -> Generator:  # noqa: ANN401, ARG001 - numba's own types
    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:  # noqa: ANN401, ARG001
        single = ir.FloatType()
        kind = ir.FunctionType(single, [single] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.f32")  # type: ignore[no-untyped-call]
        return builder.call(fma, arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


fused: Callable[[np.float32, np.float32, np.float32], np.float32] = intrinsic(_fused)
"""a * b + c, rounded once: one instruction."""
