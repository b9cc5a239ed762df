"""One text or many: run a function over a batch in threads. The kernels hold no interpreter lock."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from conformal.errors import InvalidArgument, InvalidPotentials
from conformal.trellis.potentials import Potentials

T = TypeVar("T")
R = TypeVar("R")

# Texts handed over at a time: enough to hide the cost of a call, few enough to bound the memory of its results.
LARGEST_PIECE = 256

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
    return run_pieces(lambda piece: [function(index) for index in piece], range(count), threads)


def run_pieces(function: Callable[[Sequence[T]], list[R]], items: Sequence[T], threads: int | None) -> list[R]:
    """Return the joined results of `function` on consecutive pieces of `items`, in at most `threads` threads."""
    if threads is None:
        threads = usual_threads()
    if not isinstance(threads, int) or threads < 1:
        raise InvalidArgument(f"expected threads >= 1, got {threads!r}")
    count = len(items)
    if not count:
        return []
    # A thread switch costs more than a few short texts.
    threads = min(threads, (count + 3) // 4)
    pieces = threads * 4 if threads > 1 else (count + LARGEST_PIECE - 1) // LARGEST_PIECE
    pieces = max(pieces, (count + LARGEST_PIECE - 1) // LARGEST_PIECE)
    bounds = [count * i // pieces for i in range(pieces + 1)]
    parts = [items[low:high] for low, high in itertools.pairwise(bounds) if low < high]
    done = map(function, parts) if threads <= 1 else _pool(threads).map(function, parts)
    return [result for part in done for result in part]


def usual_threads() -> int:
    """Return how many threads to use where nobody says: OMP_NUM_THREADS, as numerical libraries do, else one a core."""
    said = os.environ.get("OMP_NUM_THREADS", "").strip()
    return int(said) if said.isdecimal() and int(said) > 0 else os.cpu_count() or 1


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
