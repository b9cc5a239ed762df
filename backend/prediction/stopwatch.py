"""Where the time of a prediction goes, by stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Sums the seconds of named stages; used by one thread at a time.

    >>> watch = Stopwatch()
    >>> with watch.measure("tagging"):
    ...     pass
    >>> list(watch.seconds)
    ['tagging']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the time spent inside to a stage."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - begun
