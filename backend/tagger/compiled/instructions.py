"""What the processor can do and Python has no name for: written in LLVM, called from kernels like functions.

What it can do is what numba compiles for: usually this processor, another one where NUMBA_CPU_NAME says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba.extending
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target

Generator = tuple[Any, Callable[..., Any]]


def _abilities() -> tuple[bool, bool]:
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()[:3]
    named = features.split(",")
    # Outside x86 every processor that matters multiplies and adds in one step.
    return "+avx512f" in named, "+fma" in named or not triple.startswith(("x86", "i386", "i686"))


WIDE, FUSES = _abilities()  # vectors of 16 numbers; a * b + c in one step, rounded once


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:  # noqa: ANN401 - LLVM's own types
    """Write a * b + c for numbers or vectors.

    Where the processor cannot do it in one step it is rounded twice: LLVM would call a function for every number, a
    hundred times as slow.
    """
    if not FUSES:
        return builder.fadd(builder.fmul(a, b), c)
    lanes = f"v{a.type.count}f32" if isinstance(a.type, ir.VectorType) else "f32"
    kind = ir.FunctionType(a.type, [a.type] * 3)
    fma: Any = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.{lanes}")  # type: ignore[no-untyped-call]
    return builder.call(fma, [a, b, c])


def intrinsic(make: Callable[..., Generator]) -> Callable[..., Any]:
    """Make a function of kernels from one that takes numba's typing context and types; returns signature and code."""
    return cast("Callable[..., Any]", numba.extending.intrinsic(make))


def _fused(typing_context: Any, a: Any, b: Any, c: Any) -> Generator:  # noqa: ANN401, ARG001 - numba's own types
    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:  # noqa: ANN401, ARG001
        return multiply_add(builder, *arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


fused: Callable[[np.float32, np.float32, np.float32], np.float32] = intrinsic(_fused)
"""a * b + c in one instruction, where the processor has it."""
