"""Short work goes before long work, among the threads of one process.

A text of a megabyte takes many seconds, and all threads share the interpreter and the cores: what a short text takes
milliseconds for alone would take many times that beside it. So whoever works on a long text does it in pieces, and
pauses between two of them while others work on short texts. However much short work comes, long work goes on: a pause
is at most `TIMES` as long as the piece before it, or `PATIENCE` if that is more. Nothing that is computed depends on
this.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

LONG = 10_000  # characters of a text beyond which it takes a good part of a second
PATIENCE = 0.2  # seconds: as long as most short texts take, even beside others
TIMES = 3.0  # so long work has at least a quarter of its time
PIECE = 32  # sentences of a long text between two pauses: a few dozen milliseconds


class Precedence:
    """Knows who works on what."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._short = 0
        self._changed = threading.Condition()
        self._mine = threading.local()

    @contextmanager
    def work(self, characters: int) -> Iterator[None]:
        """Hold this while working on texts of which the longest has so many characters."""
        if characters > LONG:
            before, self._mine.long = self.is_long, True
            self._mine.begun = time.monotonic()
            try:
                yield
            finally:
                self._mine.long = before
            return
        with self._changed:
            self._short += 1
        try:
            yield
        finally:
            with self._changed:
                self._short -= 1
                self._changed.notify_all()

    def pause(self) -> None:
        """Let short work go first, if this thread has long work in hand; hold no lock that others may wait for."""
        if self.is_long:
            worked = time.monotonic() - self._mine.begun
            with self._changed:
                self._changed.wait_for(lambda: not self._short, max(self._patience, TIMES * worked))
            self._mine.begun = time.monotonic()

    @property
    def is_long(self) -> bool:
        """Whether this thread has long work in hand."""
        return bool(getattr(self._mine, "long", False))


PROCESS = Precedence()  # the one of this process


def in_pieces(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, with a pause before every `PIECE` of them.

    >>> list(in_pieces("abc"))
    ['a', 'b', 'c']
    """
    for number, item in enumerate(items):
        if number % PIECE == 0:
            PROCESS.pause()
        yield item
