"""Deliveries to the disk, many at a time: whoever comes while one write is under way goes with the next.

A write to the disk takes milliseconds, and SQLite lets one writer in at a time. With a transaction for each delivery a
hundred at once would wait for a hundred writes; together they wait for two.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import Any

from backend.errors import StoreUnavailable
from backend.models.gate import FairGate
from backend.store import Store
from backend.store.events import store_events

MOST = 256  # deliveries in one transaction
DELIVERIES = "inbox"  # the name under which they take their turns


class Inbox:
    """Stores deliveries; `start` it after the fork. Before that (and after `close`) each is written by its caller."""

    def __init__(self, store: Store, writing: FairGate) -> None:
        self._store, self._writing = store, writing
        self._queue: deque[tuple[dict[str, Any], Future[int]]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to write what comes in."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="inbox", daemon=True)
            self._thread.start()

    def put(self, payload: dict[str, Any]) -> int:
        """Keep a delivery and return its id once it is on disk.

        Raises:
            InvalidEvent: when it cannot be kept.
            StoreError: when it was not kept; it must not be acknowledged.
        """
        done: Future[int] = Future()
        with self._changed:
            queued = self._thread is not None and not self._stopping
            if queued:  # decided under the lock: what is put there before the end is asked for is written by the thread
                self._queue.append((payload, done))
                self._changed.notify()
        return done.result() if queued else self._write([payload])[0]

    def close(self, timeout: float = 60.0) -> None:
        """Write what is left and stop."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout)
        for _, done in self._queue:
            done.set_exception(StoreUnavailable("the service stopped before the event was stored: send it again"))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                if not self._queue:
                    return
                taken = [self._queue.popleft() for _ in range(min(MOST, len(self._queue)))]
            self._store_all(taken)

    def _store_all(self, taken: list[tuple[dict[str, Any], Future[int]]]) -> None:
        try:
            numbers = self._write([payload for payload, _ in taken])
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it, whatever it is
            if len(taken) == 1:
                taken[0][1].set_exception(error)
                return
            # One that cannot be kept must not take the others with it.
            for each in taken:
                self._store_all([each])
            return
        for (_, done), number in zip(taken, numbers, strict=True):
            done.set_result(number)

    def _write(self, payloads: list[dict[str, Any]]) -> list[int]:
        with self._writing.turn(DELIVERIES):
            return store_events(self._store, payloads)
