"""Answers kept in memory, least recently used first out; what is being computed is not computed twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cachetools import LRUCache

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass
class Claim(Generic[K, V]):
    """What a caller found for its keys: answers, keys it must compute, and keys that others are computing."""

    found: dict[K, V] = field(default_factory=dict)
    mine: list[K] = field(default_factory=list)
    others: dict[K, Future[V]] = field(default_factory=dict)


class AnswerCache(Generic[K, V]):
    """A cache of at most `size` answers whose weights add up to at most `weight`. Safe to share between threads."""

    def __init__(self, size: int, *, weight: int = 64_000_000, weigh: Callable[[V], int] = lambda _: 1) -> None:
        self._size = size
        # One that is heavier than all together may be has the cache to itself.
        self._answers: LRUCache[K, V] = LRUCache(weight, getsizeof=lambda value: min(weight, weigh(value)))
        self._running: dict[K, Future[V]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._answers)

    def claim(self, keys: Sequence[K]) -> Claim[K, V]:
        """Say which keys are answered, which the caller must now compute, and which it may wait for."""
        claim: Claim[K, V] = Claim()
        with self._lock:
            for key in dict.fromkeys(keys):
                if key in self._answers:
                    claim.found[key] = self._answers[key]
                elif key in self._running:
                    claim.others[key] = self._running[key]
                else:
                    self._running[key] = Future()
                    claim.mine.append(key)
        return claim

    def keep(self, key: K, value: V) -> None:
        """Hand in the answer for a key that was claimed."""
        with self._lock:
            running = self._running.pop(key, None)
            if self._size:
                self._answers[key] = value
                while len(self._answers) > self._size:
                    self._answers.popitem()
        if running is not None:
            running.set_result(value)

    def give_up(self, keys: Sequence[K], error: BaseException) -> None:
        """Tell those who wait for these keys that there will be no answer; keys already answered are left alone."""
        with self._lock:
            running = [future for key in keys if (future := self._running.pop(key, None)) is not None]
        for future in running:
            future.set_exception(error)
