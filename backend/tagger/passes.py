"""Forward passes take turns: so many at once, in the order in which they were asked for.

A long text takes many passes, each of them much longer than that of a short text. They have a turn of their own: one at
a time, each asked for anew, beside the passes of short texts, which never wait for them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from backend.domain.precedence import PROCESS
from backend.tagger.errors import TaggerError


class Passes:
    """Lets `concurrency` forward passes of short texts run at once, and one of a long text beside them."""

    def __init__(self, concurrency: int) -> None:
        if concurrency < 1:
            raise TaggerError(f"expected a concurrency of at least 1, got {concurrency}")
        self.short, self.long = Turnstile(concurrency), Turnstile(1)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Wait for the turn of one pass and hold it; a long text lets short ones go first before it asks."""
        PROCESS.pause()
        with (self.long if PROCESS.is_long else self.short).turn():
            yield


class Turnstile:
    """Lets `slots` holders in, in the order in which they came: who comes back does not overtake those who wait."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn and hold it."""
        with self._lock:
            mine = threading.Event()
            if self._free:
                self._free -= 1
                mine.set()
            else:
                self._waiting.append(mine)
        mine.wait()
        try:
            yield
        finally:
            with self._lock:
                if self._waiting:  # the turn goes straight to who has waited longest
                    self._waiting.popleft().set()
                else:
                    self._free += 1
