"""Turns at the model: a few chunks at once, taken from the projects in rotation, so that no batch starves another."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager


class FairGate:
    """Lets at most `slots` holders in. Whoever waits is let in by key in rotation, in order within a key.

    A large batch takes one turn per chunk, so a request of another project waits for the chunks under way and for at
    most one chunk of every other project.

    Args:
        urgent: a key that has every second turn if it wants to: it waits for one turn of another key at most.
    """

    def __init__(self, slots: int, *, urgent: str | None = None) -> None:
        self._free, self._urgent = slots, urgent
        self._last: str | None = None
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[threading.Event]] = OrderedDict()

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        """Wait for a turn of this key and hold it."""
        ticket = self._enter(key)
        if ticket is not None:
            ticket.wait()
        try:
            yield
        finally:
            self._leave()

    @property
    def waiting(self) -> int:
        """How many wait for a turn."""
        with self._lock:
            return sum(len(queue) for queue in self._waiting.values())

    def _enter(self, key: str) -> threading.Event | None:
        with self._lock:
            if self._free > 0:
                self._free -= 1
                self._last = key
                return None
            ticket = threading.Event()
            self._waiting.setdefault(key, deque()).append(ticket)
            return ticket

    def _leave(self) -> None:
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            # The slot goes straight to the next key, which then moves to the end of the rotation.
            key = next(iter(self._waiting))
            if self._urgent in self._waiting and self._last != self._urgent:
                key = str(self._urgent)
            queue = self._waiting[key]
            self._last = key
            ticket = queue.popleft()
            if queue:
                self._waiting.move_to_end(key)
            else:
                del self._waiting[key]
            ticket.set()
