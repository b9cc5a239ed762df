"""How many predictions are let in: some in progress, more in a waiting room, the rest sent away at once.

Every waiting request holds a thread. The process has more threads than may wait here, so that /health, /setup and
/webhook always find one free, however many predictions are asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from backend.errors import Overloaded

WAITING_ROOM = 96  # requests; a waiting thread costs a few dozen kilobytes
QUICK_THREADS = 16  # threads that predictions never take


class Admission:
    """Lets `in_progress` holders in and up to `waiting` more wait for them."""

    def __init__(self, in_progress: int, *, waiting: int = WAITING_ROOM) -> None:
        self._seats = threading.BoundedSemaphore(in_progress + waiting)
        self._running = threading.BoundedSemaphore(in_progress)
        self._most = in_progress + waiting

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Wait to be let in, and hold a seat until leaving.

        Raises:
            Overloaded: when the waiting room is full.
        """
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def acquire(self) -> None:
        """Take a seat; `release` must follow."""
        if not self._seats.acquire(blocking=False):
            raise Overloaded(f"expected at most {self._most} predictions at once, got more: try again in a moment")
        self._running.acquire()

    def release(self) -> None:
        """Give the seat back."""
        self._running.release()
        self._seats.release()


def process_threads(in_progress: int) -> int:
    """Return how many threads a process needs for `in_progress` predictions and everything else."""
    return in_progress + WAITING_ROOM + QUICK_THREADS
