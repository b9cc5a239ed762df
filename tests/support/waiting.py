"""Waiting for what a busy machine brings about later: for a condition, never for a number of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# After so many seconds, what was waited for is called lost. A free machine needs a tenth of it at most.
WAIT = 180.0
# Who asks often keeps the server busy that the answer is waited for from: longer and longer pauses, up to this.
_PAUSE = 0.2


def wait_for(condition: Callable[[], Any], what: str, *, seconds: float = WAIT, pause: float = _PAUSE) -> Any:
    """Return the first true value of the condition, seen at most `pause` seconds late.

    Raises:
        AssertionError: when there is none in that time.
    """
    end, asleep = time.monotonic() + seconds, 0.02
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:.0f} s: {what}; at last {value!r}")
        time.sleep(min(asleep, pause))
        asleep *= 1.3
