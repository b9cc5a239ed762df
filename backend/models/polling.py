"""What the database says, read again every few seconds: fresh enough to follow a change, and nobody waits in line."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from cachetools import LRUCache

from backend.errors import StoreError

_log = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

AWAY = 10.0  # seconds that a database which did not answer is left alone
MOST = 10_000


class Polled(Generic[K, V]):
    """Values by key, each at most `every` seconds old; older when the database cannot be asked.

    Whoever finds a value too old asks for it; others meanwhile go on with the one there is. Only the first question
    about a key makes its caller wait. Safe to share between threads.
    """

    def __init__(self, ask: Callable[[K, V | None], V], *, every: float, most: int = MOST) -> None:
        self._ask, self.every = ask, every
        self._answers: LRUCache[K, tuple[float, V | None]] = LRUCache(most)
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return the value, None when the database has never answered for this key."""
        with self._lock:
            known = self._answers.get(key)
        now = time.monotonic()
        if known is not None and now < known[0]:
            return known[1]
        if known is not None and not self._refreshing.acquire(blocking=False):
            return known[1]
        try:
            before = None if known is None else known[1]
            value: V | None = self._ask(key, before)
            due = time.monotonic() + self.every
        except StoreError as error:
            _log.warning("database not read", extra={"reason": type(error).__name__})
            # A database that is away takes seconds to say so: it is left alone for a while, not asked by each request.
            value, due = (None if known is None else known[1]), now + AWAY
        finally:
            if known is not None:
                self._refreshing.release()
        with self._lock:
            self._answers[key] = (due, value)
        return value

    def forget(self, key: K) -> None:
        """Ask again at the next `get`, and wait for the answer."""
        with self._lock:
            self._answers.pop(key, None)
