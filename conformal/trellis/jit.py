"""Compiling the kernels: numba without the interpreter lock, cached on disk, wherever that is possible.

Never `parallel=True`: its OpenMP layer kills forked children and its workqueue layer aborts with two threads.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile `function` on first call, releasing the interpreter lock while it runs.

    The compiled code is kept beside the source, else in the user's cache directory, else (read-only install
    without a home) in a private temporary directory; without any writable place it is compiled per process.
    """
    return _place(function, {})


def inner_kernel(function: F) -> F:
    """Compile like `kernel`, for functions that allocate nothing: without reference counts.

    Numba counts references to every array a function is given, two atomic operations each, which in the small
    functions of the search costs as much as their work.
    """
    return _place(function, {"_nrt": False})


def _place(function: F, options: dict[str, Any]) -> F:
    try:
        return _compile(function, {"cache": True, **options})
    except RuntimeError:  # numba's word for "no place to keep compiled code"
        pass
    try:
        numba.config.CACHE_DIR = str(_private_directory())  # type: ignore[attr-defined]
        return _compile(function, {"cache": True, **options})
    except (OSError, RuntimeError):
        return _compile(function, options)


def _compile(function: F, options: dict[str, Any]) -> F:
    # error_model="numpy": dividing by zero gives inf instead of a branch in every loop.
    return cast("F", numba.njit(nogil=True, error_model="numpy", **options)(function))


def _private_directory() -> Path:
    """Return a directory only this user can write: cached code is loaded back, so nobody else may place it."""
    path = Path(tempfile.gettempdir()) / f"surespan-kernels-{os.getuid() if hasattr(os, 'getuid') else 0}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    ours = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    if stat.S_ISDIR(status.st_mode) and ours and not status.st_mode & 0o077:
        return path
    return Path(tempfile.mkdtemp(prefix="surespan-kernels-"))
