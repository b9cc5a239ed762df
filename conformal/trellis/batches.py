"""One text or many: run a function over a batch in threads. The kernels hold no interpreter lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from conformal.errors import InvalidArgument, InvalidPotentials
from conformal.trellis.potentials import Potentials

R = TypeVar("R")

# Pools by (process, size): threads do not survive a fork, so a child must not inherit its parent's.
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def run(
    function: Callable[[Potentials], R], potentials: Potentials | Sequence[Potentials], threads: int | None
) -> R | list[R]:
    """Apply `function` to one `Potentials`, or to each of a sequence in at most `threads` threads, in order.

    Texts are independent of each other, so neither the number of threads nor the order of the batch changes a
    bit of any result.
    """
    if isinstance(potentials, Potentials):
        return function(potentials)
    batch = check_batch(potentials)
    return run_many(lambda index: function(batch[index]), len(batch), threads)


def run_many(function: Callable[[int], R], count: int, threads: int | None) -> list[R]:
    """Return `[function(0), ..., function(count - 1)]`, computed in at most `threads` threads."""
    if threads is None:
        threads = os.cpu_count() or 1
    if not isinstance(threads, int) or threads < 1:
        raise InvalidArgument(f"expected threads >= 1, got {threads!r}")
    # A thread switch costs more than a few short texts.
    threads = min(threads, (count + 3) // 4)
    if threads <= 1:
        return [function(index) for index in range(count)]
    pieces = threads * 4
    bounds = [count * i // pieces for i in range(pieces + 1)]
    pool = _pool(threads)
    parts = pool.map(
        lambda piece: [function(index) for index in range(bounds[piece], bounds[piece + 1])], range(pieces)
    )
    return [result for part in parts for result in part]


def check_batch(batch: Sequence[Potentials]) -> Sequence[Potentials]:
    """Return the batch, or raise if it is not a list or tuple of `Potentials`."""
    if not isinstance(batch, (list, tuple)):
        raise InvalidPotentials(f"expected Potentials or a list of Potentials, got {type(batch).__name__}")
    for position, item in enumerate(batch):
        if not isinstance(item, Potentials):
            raise InvalidPotentials(f"expected a list of Potentials, got {type(item).__name__} at {position}")
    return batch


def _pool(threads: int) -> ThreadPoolExecutor:
    key = (os.getpid(), threads)
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(threads, thread_name_prefix="conformal")
    return _pools[key]
