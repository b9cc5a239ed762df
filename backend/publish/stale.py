"""Which predictions of a task are ours, which of them are superseded, and which may go: pure functions of a page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from backend.labelstudio.payloads import read_moment
from backend.labelstudio.versions import base_version, same_words_version


def has_version(task: Mapping[str, Any], version: str) -> bool:
    """Whether a task has the best prediction of a version, which goes by the version's very name."""
    return any(each["model_version"] == version for each in task["predictions"])


def superseded(task: Mapping[str, Any], version: str, *, before: datetime) -> list[int]:
    """Return the predictions of earlier versions that may be removed.

    They may be as soon as the present version's best one was there before `before`: who opened the task since then has
    that one in view. Without it nothing is removed.
    """
    best = [each for each in task["predictions"] if each["model_version"] == version]
    if not best or min(read_moment(each["created_at"]) for each in best) > before:
        return []
    return [
        int(each["id"]) for each in task["predictions"] if base_version(each["model_version"]) not in {None, version}
    ]


def has_superseded(task: Mapping[str, Any], version: str) -> bool:
    """Whether a task has predictions of ours that are not of this version."""
    return any(base_version(each["model_version"]) not in {None, version} for each in task["predictions"])


def has_ours(task: Mapping[str, Any]) -> bool:
    """Whether a task has predictions of ours, of whatever version."""
    return any(base_version(each["model_version"]) is not None for each in task["predictions"])


def doubled(task: Mapping[str, Any], version: str) -> list[int]:
    """Return predictions of a version that are there twice, the later ones.

    Label Studio may have fetched the same version while it was being stored; two best ones would count twice.

    >>> task = {"predictions": [{"id": 1, "model_version": "v"}, {"id": 2, "model_version": "v"}]}
    >>> doubled(task, "v")
    [2]
    """
    seen: set[str] = set()
    extra: list[int] = []
    for each in sorted(task["predictions"], key=lambda prediction: int(prediction["id"])):
        name = str(each["model_version"])
        if name in {version, same_words_version(version)} or name.startswith(f"{version} #"):
            if name in seen:
                extra.append(int(each["id"]))
            seen.add(name)
    return extra


def made_for_other_text(task: Mapping[str, Any], edited: Collection[int]) -> list[int]:
    """Return our predictions of a task whose text was edited since they were made."""
    if int(task["id"]) not in edited:
        return []
    return [int(each["id"]) for each in task["predictions"] if base_version(each["model_version"]) is not None]


def as_items(task: int, entry: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a task's predictions, worst first, as the bulk route takes them.

    >>> as_items(7, [{"model_version": "v", "score": 0.5, "result": []}])
    [{'task': 7, 'model_version': 'v', 'score': 0.5, 'result': []}]
    """
    return [{"task": task, **each} for each in entry]
