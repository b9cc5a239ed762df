"""What Label Studio says about a task that is to be accepted, or was: pure functions of its answers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]

_SPACE = uuid.UUID("6f2b7e0a-4b5d-5c1e-9a57-3f6d1c0a12ce")


def unique_id(project: str, task: str, decision: int) -> str:
    """Return the id under which Label Studio takes the annotation of a task and decision once.

    >>> unique_id("1.2", "7", 1) == unique_id("1.2", "7", 1), unique_id("1.2", "7", 1) == unique_id("1.2", "7", 2)
    (True, False)
    """
    return str(uuid.uuid5(_SPACE, f"{project}/{task}/{decision}"))


def is_touched(annotation: Json, *, account: int) -> bool:
    """Whether anybody has had a hand in an annotation that an account accepted.

    The editor notes how long somebody took and who it was; ground truth is a person's word too.

    >>> is_touched({"updated_by": 1, "lead_time": None}, account=1), is_touched({"updated_by": 2}, account=1)
    (False, True)
    """
    said = annotation.get("lead_time") is not None or annotation.get("ground_truth") is True
    return said or number_of(annotation.get("updated_by")) not in (None, account)


def number_of(value: object) -> int | None:
    """Return the number of a user or prediction, which some answers give as an object."""
    if isinstance(value, Mapping):
        value = value.get("id")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def our_annotation(task: Json, *, account: int, known: int | None = None) -> Json | None:
    """Return the annotation of a task that acceptance made, None when there is none.

    By its number where that is known. Otherwise, where the sender died before it heard the number, the one that the
    account made from a prediction: an edit since then does not make it a person's.
    """
    for each in task.get("annotations") or ():
        made = number_of(each.get("completed_by")) == account and each.get("parent_prediction") is not None
        if each["id"] == known if known is not None else made:
            return dict(each)
    return None


def is_free(task: Json) -> bool:
    """Whether nobody has begun or finished anything on a task: no annotation, no skip, no draft."""
    begun = task.get("drafts") or task.get("draft_exists")
    return not (begun or task.get("annotations") or task.get("total_annotations") or task.get("cancelled_annotations"))


def best_prediction(task: Json, version: str) -> Json | None:
    """Return rank 1 of a version: the prediction that goes by the version's very name."""
    found = [each for each in task.get("predictions") or () if each["model_version"] == version]
    return min(found, key=lambda each: int(each["id"]), default=None)
