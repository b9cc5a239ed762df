"""The labels of a project's config over time: which it has, which it had, and since when.

What people labelled with a name that is gone stays stored; the page of the project says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from backend.store.state import LABELS, get_state, set_state

_MOST_GONE = 100  # names that are remembered after they went


@dataclass(frozen=True)
class NotedLabel:
    """A label of the config. `since` is None where it was there when the project was first heard of."""

    name: str
    since: datetime | None
    gone: datetime | None


def note_labels(session: Session, project_id: int, labels: Iterable[str], *, at: datetime) -> None:
    """Note the labels that the label config has now; one that it has no longer is gone from this moment on."""
    before, names = noted_labels(session, project_id), list(labels)
    kept = {each.name: each for each in before}
    now = [_present(kept.get(name), name, at if before else None) for name in names]
    gone = [NotedLabel(each.name, each.since, each.gone or at) for each in before if each.name not in names]
    after = [*now, *sorted(gone, key=lambda each: each.gone or at)[-_MOST_GONE:]]
    if after != before:
        set_state(session, project_id, LABELS, {"labels": [_written(each) for each in after]})


def noted_labels(session: Session, project_id: int) -> list[NotedLabel]:
    """Return the labels that the label config has, in its order, then those that it had."""
    noted = (get_state(session, project_id, LABELS) or {}).get("labels", [])
    return [NotedLabel(each["name"], _moment(each["since"]), _moment(each["gone"])) for each in noted]


def _present(before: NotedLabel | None, name: str, at: datetime | None) -> NotedLabel:
    return before if before is not None and before.gone is None else NotedLabel(name, at, None)


def _written(label: NotedLabel) -> dict[str, str | None]:
    since, gone = (None if each is None else each.isoformat() for each in (label.since, label.gone))
    return {"name": label.name, "since": since, "gone": gone}


def _moment(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)
