"""What is said beside a promise: the measured gap, what an adaptive level is worth, which labels are out of reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.label_names import listed_names


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


def describe_unknown(unknown: Sequence[str], *, blank: bool) -> str:
    """Say which labels of a project its model does not know, and what follows; nothing where it knows them all.

    >>> describe_unknown(["Drug", "Symptom"], blank=False)
    'Labels Drug, Symptom are not known to the model: nothing is suggested for them, and no set holds them.'
    >>> describe_unknown(["Drug"], blank=True)
    'Label Drug is not known to the model: tasks come blank.'
    """
    if not unknown:
        return "The label config names no label that a model could know: tasks come blank." if blank else ""
    one = len(unknown) == 1
    known = f"Label{'' if one else 's'} {listed_names(unknown)} {'is' if one else 'are'} not known to the model"
    if blank:
        return f"{known}: tasks come blank."
    return f"{known}: nothing is suggested for {'it' if one else 'them'}, and no set holds {'it' if one else 'them'}."


def teach_labels(project: object) -> str:
    """Say what to do about labels that the model does not know.

    >>> teach_labels(7)
    'Label about twenty tasks: a model is trained from them; or run `surespan train --project 7 --serve`.'
    """
    asked = f"surespan train --project {project} --serve"
    return f"Label about twenty tasks: a model is trained from them; or run `{asked}`."


ADAPTIVE_REMARK = (
    "The level is adaptive: in the long run the share of misses among audited tasks tends to the project's alpha; "
    "nothing is promised for a finite number of tasks."
)
