"""How far a training is, as people and programs read it: labels, what is being done, the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable

_MINUTES = 90.0  # seconds from which on minutes are said


class TimeLeft:
    """Guesses from the way since the first step how long the rest takes; the guess is high while steps may be saved."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[float, float] | None = None

    def guess(self, share: float) -> float | None:
        """Return the seconds that are left at this share of the way; None while nothing can be said.

        >>> left = TimeLeft(iter((10.0, 14.0)).__next__)
        >>> [left.guess(share) for share in (0.0, 0.1, 0.5)]
        [None, None, 5.0]
        """
        if share <= 0.0:
            return None  # a process that only starts says nothing about the way
        now = self._clock()
        if self._first is None:
            self._first = now, share
        begun, first = self._first
        return None if share <= first else (now - begun) / (share - first) * (1.0 - share)


def progress_note(labels: int, stage: str, left: float | None) -> str:
    """Say how far a training is.

    >>> progress_note(1200, "fold 2 of 5, step 40, F1 0.71 on held-out labels", 12.4)
    '1,200 labels: fold 2 of 5, step 40, F1 0.71 on held-out labels, about 12 s left'
    >>> progress_note(20, "reading", None)
    '20 labels: reading'
    """
    if left is None:
        return f"{labels:,} labels: {stage}"
    said = f"{left:.0f} s" if left < _MINUTES else f"{left / 60:.0f} min"
    return f"{labels:,} labels: {stage}, about {said} left"
