"""What a page of the server's tasks says that the store does not know: pure comparison, webhook-shaped events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from backend.domain.target import TextTag
from backend.domain.text import text_hash
from backend.labelstudio.client import Json
from backend.labelstudio.payloads import read_moment, text_in
from backend.store.reconcile import KnownAnnotation, KnownTask, Waiting

# What the inbox gets of a task: its predictions and annotations are large, and the events have their own.
_TASK = ("id", "data", "meta", "created_at", "updated_at", "is_labeled", "inner_id", "overlap")
_PROJECT = ("id", "title", "label_config", "sampling", "created_at", "model_version")


@dataclass
class Counts:
    """What a reconciliation did. `waiting` was left because the inbox may know about it already."""

    looked_at: int = 0
    brought_in: int = 0
    deleted: int = 0
    deleted_tasks: int = 0
    edited_tasks: int = 0
    unchanged: int = 0
    waiting: int = 0
    set_aside: int = 0

    def add(self, other: Counts) -> None:
        """Add what another page gave."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Differences:
    """The events of a page, what they are about, the tasks whose text was edited, and the earliest unsettled change."""

    events: list[Json] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    edited: list[int] = field(default_factory=list)
    unsettled: datetime | None = None


@dataclass(frozen=True)
class Frame:
    """What all events of a reconciliation have in common: the project, the time of the poll, where texts are."""

    project: Mapping[str, Any]
    at: datetime
    text: TextTag | None

    def event(self, action: str, *, at: datetime | None = None, **parts: object) -> Json:
        """Return an event as a webhook would carry it, marked as ours."""
        project = {name: self.project[name] for name in _PROJECT if name in self.project}
        note = {"source": "sync", "at": (at or self.at).isoformat()}
        return {"action": action, "project": project, **parts, "surespan": note}


def keys_of(tasks: Iterable[Json]) -> list[str]:
    """Return the ordering keys of events that may concern these tasks.

    >>> keys_of([{"id": 7, "annotations": [{"id": 3}]}])
    ['t7', 'a3']
    """
    keys: list[str] = []
    for task in tasks:
        keys += [f"t{task['id']}", *(f"a{each['id']}" for each in task["annotations"])]
    return keys


def compare(
    tasks: Sequence[Json],
    frame: Frame,
    *,
    annotations: Mapping[int, KnownAnnotation],
    living: Sequence[KnownAnnotation],
    known: Mapping[str, Sequence[KnownTask]],
    waiting: Waiting,
) -> Differences:
    """Compare a page of the server's tasks with what the store knows about them.

    Args:
        annotations: what is known of the annotations on the page.
        living: what the store takes for alive on these tasks; what of it the server no longer has was deleted.
        known: the tasks of the page as the store has them, by number.
        waiting: what is in the inbox; nothing is said twice that waits there.
    """
    differences = Differences()
    held = {int(each["id"]) for task in tasks for each in task["annotations"]}
    for task in tasks:
        differences.counts.looked_at += 1
        _compare_task(task, frame, known.get(str(task["id"]), ()), waiting, differences)
        for annotation in task["annotations"]:
            _compare_annotation(task, annotation, frame, annotations.get(int(annotation["id"])), waiting, differences)
    gone = [each for each in living if each.annotation_id not in held and each.updated_at < frame.at]
    _compare_gone(gone, tasks, frame, waiting, differences)
    return differences


def _compare_annotation(
    task: Json,
    annotation: Json,
    frame: Frame,
    known: KnownAnnotation | None,
    waiting: Waiting,
    differences: Differences,
) -> None:
    updated = read_moment(annotation["updated_at"])
    if known is not None and known.alive and known.updated_at >= updated and known.task == str(task["id"]):
        differences.counts.unchanged += 1
        return
    key = f"a{annotation['id']}"
    if (key, str(annotation["updated_at"])) in waiting.set_aside:
        differences.counts.set_aside += 1
        return
    if waiting.covers(key):
        _postpone(differences, task)
        return
    slim = {name: task[name] for name in _TASK if name in task}
    differences.events.append(frame.event("ANNOTATION_UPDATED", annotation=annotation, task=slim))
    differences.counts.brought_in += 1


def _compare_gone(
    gone: Sequence[KnownAnnotation], tasks: Sequence[Json], frame: Frame, waiting: Waiting, differences: Differences
) -> None:
    by_number = {str(task["id"]): task for task in tasks}
    for each in gone:
        if waiting.covers(f"a{each.annotation_id}"):
            _postpone(differences, by_number.get(each.task or "", {}))
            continue
        differences.events.append(frame.event("ANNOTATIONS_DELETED", annotations=[{"id": each.annotation_id}]))
        differences.counts.deleted += 1


def _compare_task(
    task: Json, frame: Frame, known: Sequence[KnownTask], waiting: Waiting, differences: Differences
) -> None:
    text = None if frame.text is None or not known else text_in(task["data"], frame.text)
    if text is None:
        return  # never shown and never labelled, or its text is not here to compare
    created = read_moment(task["created_at"])
    others = [each for each in known if each.created_at is not None and each.created_at < created]
    same = [each for each in known if each not in others]
    edited = bool(same) and text_hash(text) not in {each.text_hash for each in same}
    if not others and not edited:
        return
    if waiting.covers(f"t{task['id']}"):
        _postpone(differences, task)
        return
    if others:
        # Servers give numbers out again: what we know under this one was deleted before this task was made.
        before = created - timedelta(microseconds=1)
        differences.events.append(frame.event("TASKS_DELETED", at=before, tasks=[{"id": task["id"]}]))
        differences.counts.deleted_tasks += 1
    slim = {name: task[name] for name in _TASK if name in task}
    differences.events.append(frame.event("TASKS_CREATED", tasks=[slim]))
    differences.edited.append(int(task["id"]))
    differences.counts.edited_tasks += 1


def _postpone(differences: Differences, task: Json) -> None:
    differences.counts.waiting += 1
    if "updated_at" in task:
        moment = read_moment(task["updated_at"])
        differences.unsettled = moment if differences.unsettled is None else min(differences.unsettled, moment)
