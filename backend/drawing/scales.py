"""Where values lie along an axis, in per cent of its length, and which of them are named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

_STEPS = (1, 2, 3, 7, 14, 28, 56, 91, 182, 365)  # days between two named days


@dataclass(frozen=True)
class Scale:
    """A linear axis from `low` to `high`; a single value lies in the middle.

    >>> Scale(0.0, 4.0).at(1.0), Scale(0.0, 4.0, upwards=True).at(1.0), Scale(3.0, 3.0).at(3.0)
    (25.0, 75.0, 50.0)
    """

    low: float
    high: float
    upwards: bool = False  # the vertical axis of a screen runs down

    def at(self, value: float) -> float:
        """Return where a value lies; beyond 0 and 100 it is off the chart."""
        share = 50.0 if self.high == self.low else 100.0 * (value - self.low) / (self.high - self.low)
        return 100.0 - share if self.upwards else share


def ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Return round values within a range, at most this many.

    >>> ticks(0.0, 1.0), ticks(0.83, 1.0, most=5)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.85, 0.9, 0.95, 1.0])
    """
    if high <= low:
        return [low]
    raw = (high - low) / max(1, most - 1)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * each for each in (1, 2, 2.5, 5, 10, 20) if _count(low, high, size * each) <= most)
    first, last = _ends(low, high, step)
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(number * step, digits) + 0.0 for number in range(first, last + 1)]


def _ends(low: float, high: float, step: float) -> tuple[int, int]:
    return math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)


def _count(low: float, high: float, step: float) -> int:
    first, last = _ends(low, high, step)
    return last - first + 1


def day_ticks(days: Sequence[date], *, most: int = 5) -> list[date]:
    """Return the days that are named: whole days, evenly apart, the last one among them.

    >>> [f"{day:%m-%d}" for day in day_ticks([date(2026, 3, 1), date(2026, 3, 9)])]
    ['03-01', '03-03', '03-05', '03-07', '03-09']
    >>> day_ticks([date(2026, 3, 1)])
    [datetime.date(2026, 3, 1)]
    """
    first, last = min(days).toordinal(), max(days).toordinal()
    step = next((each for each in _STEPS if (last - first) // each < most), _STEPS[-1])
    return sorted(date.fromordinal(number) for number in range(last, first - 1, -step))
