"""How far learning is, in words and as a share of the way, for whoever waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[str, float], None]
"""Is told what is being done and how far it is, from 0 to 1."""

PAUSE = 0.5  # seconds between two steps that are told


@dataclass
class Course:
    """Tells the steps of fits, one fit after the other; `f1` is of the labels held out so far."""

    say: Progress
    f1: float | None = None
    clock: Callable[[], float] = time.monotonic

    def fit(self, words: str, begin: float, end: float, *, most: int) -> Callable[[int], None]:
        """Tell that a fit begins, which takes this part of the way; return what to tell its steps.

        >>> told = []
        >>> course = Course(lambda *said: told.append(said), f1=0.5, clock=iter((0.0, 0.1, 0.9)).__next__)
        >>> step = course.fit("fold 2 of 5", 0.25, 0.5, most=8)
        >>> step(1)  # too soon after the first word
        >>> step(4)
        >>> for said in told:
        ...     print(said)
        ('fold 2 of 5, F1 0.50 on held-out labels', 0.25)
        ('fold 2 of 5, step 4, F1 0.50 on held-out labels', 0.375)
        """
        known = "" if self.f1 is None else f", F1 {self.f1:.2f} on held-out labels"
        self.say(f"{words}{known}", begin)
        last = self.clock()

        def tell(step: int) -> None:
            nonlocal last
            now = self.clock()
            if now - last >= PAUSE:
                last = now
                self.say(f"{words}, step {step}{known}", begin + (end - begin) * min(step / most, 1.0))

        return tell
