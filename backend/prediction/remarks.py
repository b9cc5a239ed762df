"""What is said beside a promise: the measured gap of assisted labels, and what an adaptive level is worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe_gap(gap: Mapping[str, Any]) -> str:
    """Say in one sentence what `Gap.as_dict` holds.

    >>> describe_gap({"gap": 0.15, "interval_95": [0.052, 0.253]})
    'Measured: people kept the best labeling 15.0 points more often when they saw it (95 % interval +5.2 to +25.3).'
    """
    if gap.get("gap") is None:
        return "How much has not been measured yet: that needs tasks labelled without a prelabel."
    low, high = gap["interval_95"]
    value = gap["gap"]
    sense = "more often" if value >= 0 else "less often"
    return (
        f"Measured: people kept the best labeling {abs(100 * value):.1f} points {sense} when they saw it "
        f"(95 % interval {100 * low:+.1f} to {100 * high:+.1f})."
    )


ADAPTIVE_REMARK = (
    "The level is adaptive: in the long run the share of misses among audited tasks tends to the project's alpha; "
    "nothing is promised for a finite number of tasks."
)
