"""Events to labels: what each kind of delivery says about tasks and annotations, written in one transaction.

Every event may come late, twice, out of order or not at all; `sync` then puts what is missing into the same inbox, as
events of the same shape with `"surespan": {"source": "sync", "at": <time of the poll>}`. Nothing here depends on the
order in which events are processed (docs/decisions/0007-ingest.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from sqlalchemy.orm import Session

from backend.calibration.order import record_sampling
from backend.documents.document import Document, UnreadableDocument
from backend.domain.records import AnnotationRecord, Draw, EventRecord, LabelChange, ProjectRecord, TaskRecord
from backend.domain.streams import draw_unshown
from backend.domain.target import Target, TextTag
from backend.errors import InvalidLabelConfig
from backend.jobs.kinds import queue_refit, queue_train
from backend.labels.label_sets import note_labels
from backend.labelstudio.annotations import control_of, matches_text, read_annotation, read_id
from backend.labelstudio.config import LabelConfig, parse_config
from backend.labelstudio.payloads import (
    START_TRAINING,
    InvalidPayload,
    describe_kind,
    document_in,
    join_uid,
    kind_of,
    read_tasks,
    read_time,
    text_in,
)
from backend.store.acceptance import is_accepted, name_annotation
from backend.store.batches import NewTask, ensure_tasks
from backend.store.engine import database_now
from backend.store.events import EventOutcome, append_events
from backend.store.labels import delete_annotation, delete_tasks, lock_annotated, record_annotation
from backend.store.projects import ensure_project, ensure_task, find_project, list_task_versions
from backend.store.state import HEARD, ensure_salt, get_state, set_state
from backend.store.task_draws import was_shown_undrawn

CHUNK = 100

Classes = Callable[[Session, ProjectRecord], tuple[str, ...]]
Body = Mapping[str, Any]


@dataclass(frozen=True)
class Ingest:
    """Processes events; `classes` says those of a project's model, which decide what control of its config is ours.

    `on_change` is told of every label that changed. The transaction may still be rolled back and tried again, so what
    it notes is only where to look.
    """

    classes: Classes
    labels_control: str | None = None
    on_change: Callable[[ProjectRecord, LabelChange], None] = field(default=lambda project, change: None)  # noqa: ARG005

    def process(self, session: Session, event: EventRecord) -> EventOutcome:
        """Write what an event says; unknown kinds and events that say nothing here are skipped.

        Raises:
            InvalidPayload: when the event cannot be read; nothing is written.
        """
        handler = _HANDLERS.get(event.action)
        if handler is None:
            return EventOutcome.SKIPPED
        return handler(self, session, event)

    def _annotation(self, session: Session, event: EventRecord) -> EventOutcome:
        body = event.payload
        annotations, tasks = body.get("annotation"), body.get("task")
        if isinstance(annotations, list):
            return _split(session, event, _singles(body, annotations, tasks))
        project = self._project(session, event, _spoken(body, annotations))
        ours = self._label_control(session, project)
        if ours is None:
            return EventOutcome.SKIPPED
        record = read_annotation(annotations, control=ours.name, document=_shown(tasks, ours.text))
        task = self._task(session, project, ours, tasks, annotations or {})
        record = mark_accepted(session, project, record, task=task.external_id)
        for change in record_annotation(session, task.id, record, event_id=event.id):
            self._tell(project, change)
        return EventOutcome.DONE

    def _annotations_deleted(self, session: Session, event: EventRecord) -> EventOutcome:
        items = _list(event.payload, "annotations")
        if len(items) > CHUNK:
            return _split(session, event, _chunks(event, "annotations", items))
        project = self._project(session, event)
        numbers = [read_id(item, "id") for item in items]
        lock_annotated(session, project.id, numbers)
        at = _moment_of(event)
        for deleted in numbers:
            for change in delete_annotation(session, project.id, annotation_id=deleted, at=at, event_id=event.id):
                self._tell(project, change)
        return EventOutcome.DONE

    def _tasks_created(self, session: Session, event: EventRecord) -> EventOutcome:
        items = _list(event.payload, "tasks")
        if len(items) > 10 * CHUNK:
            return _split(session, event, _chunks(event, "tasks", items, size=10 * CHUNK))
        project = self._project(session, event)
        ours = self._label_control(session, project)
        if ours is None:
            return EventOutcome.SKIPPED
        fresh = []
        for task in read_tasks(items):
            text = None if task is None else text_in(task.data, ours.text)
            if task is not None and task.id and text is not None:
                fresh.append(NewTask(task.id, text, language=task.language, created_at=task.created_at))
        # Nothing is drawn yet: that is done when a task is first shown, by the order in force then.
        ensure_tasks(session, project.id, fresh)
        return EventOutcome.DONE

    def _tasks_deleted(self, session: Session, event: EventRecord) -> EventOutcome:
        items = _list(event.payload, "tasks")
        if len(items) > CHUNK:
            return _split(session, event, _chunks(event, "tasks", items))
        project = self._project(session, event)
        names = [str(read_id(item, "id")) for item in items]
        for change in delete_tasks(session, project.id, external_ids=names, at=_moment_of(event)):
            self._tell(project, change)
        return EventOutcome.DONE

    def _project_updated(self, session: Session, event: EventRecord) -> EventOutcome:
        self._project(session, event)
        return EventOutcome.DONE

    def _start_training(self, session: Session, event: EventRecord) -> EventOutcome:
        project = self._project(session, event)
        queue_refit(session, project, reason="asked for by Label Studio")
        queue_train(session, project, who="Label Studio")  # the handler says so where learning is switched off
        return EventOutcome.DONE

    def _project(self, session: Session, event: EventRecord, spoken: datetime | None = None) -> ProjectRecord:
        """Return the project of an event, with what the event says about it; `spoken` is when that was so."""
        given = event.payload.get("project")
        uid = read_project_uid(given)
        heard = given if isinstance(given, dict) else {}
        known = find_project(session, uid)
        changed = read_time(heard.get("updated_at"))
        as_of = changed or _stated_at(event)
        project = known
        if known is None or _is_news(session, known, as_of):
            title, config = (_text(heard, name) for name in ("title", "label_config"))
            project = ensure_project(session, uid if known is None else known.uid, title=title, label_config=config)
            if as_of is not None:
                set_state(session, project.id, HEARD, {"updated_at": as_of.isoformat()})
            self._note_labels(session, project, as_of)
        assert project is not None  # noqa: S101 - found or made
        source = "webhook" if _source(event) is None else "sync"
        for at in (changed, spoken, _stated_at(event)):
            if at is not None:
                record_sampling(session, project.id, sampling=_text(heard, "sampling"), at=at, source=source)
        return project

    def _note_labels(self, session: Session, project: ProjectRecord, at: datetime | None) -> None:
        """Note which labels the project has now, for its page."""
        if project.label_config is None:
            return
        with suppress(InvalidLabelConfig):
            target = self._target(session, project, _parsed(project.label_config))
            if target is not None:
                note_labels(session, project.id, target.names, at=at or database_now(session))

    def _label_control(self, session: Session, project: ProjectRecord) -> _LabelControl | None:
        if project.label_config is None:
            return None
        try:
            config = _parsed(project.label_config)
        except InvalidLabelConfig:
            return None
        name = control_of(config, self._target(session, project, config), named=self.labels_control)
        control = next((control for control in config.controls if control.name == name), None)
        return None if control is None else _LabelControl(control.name, control.text)

    def _target(self, session: Session, project: ProjectRecord, config: LabelConfig) -> Target | None:
        try:
            return config.target(self.classes(session, project), control=self.labels_control)
        except InvalidLabelConfig:
            return None

    def _task(
        self, session: Session, project: ProjectRecord, ours: _LabelControl, task: object, annotation: Mapping[str, Any]
    ) -> TaskRecord:
        (read,) = read_tasks([task])
        if read is None or not read.id:
            raise InvalidPayload("the task of an annotation as an object with 'id'", describe_kind(task))
        text = text_in(read.data, ours.text)
        if text is None:
            versions = list_task_versions(session, project.id, external_id=read.id)
            if not versions:
                raise InvalidPayload(f"the task's text under {ours.text.key!r}", "none, and the task is not known")
            # What an address held when the task was shown: the newest version that has the words of the regions.
            fits = [each for each in versions if each.text is not None and matches_text(annotation, each.text)]
            return (fits or versions)[-1]
        if not matches_text(annotation, text):
            # The text was edited after this annotation was made: it belongs to the text that it was made on.
            versions = list_task_versions(session, project.id, external_id=read.id)
            made_on = [each for each in versions if each.text is not None and matches_text(annotation, each.text)]
            if made_on:
                return made_on[-1]
        keep = partial(
            ensure_task,
            session,
            project.id,
            external_id=read.id,
            text=text,
            language=read.language,
            created_at=read.created_at,
        )
        kept = keep()
        if kept.draw is None:
            kept = keep(draw=_drawn(session, project, kept))
        return kept

    def _tell(self, project: ProjectRecord, change: LabelChange) -> None:
        if change.changed:
            self.on_change(project, change)


@dataclass(frozen=True)
class _LabelControl:
    """The control of a project's label config that holds its labels, and the text it is over."""

    name: str
    text: TextTag


_parsed = lru_cache(maxsize=64)(parse_config)

_HANDLERS: Mapping[str, Callable[[Ingest, Session, EventRecord], EventOutcome]] = {
    "ANNOTATION_CREATED": Ingest._annotation,  # noqa: SLF001 - one table for the class's own methods
    "ANNOTATION_UPDATED": Ingest._annotation,  # noqa: SLF001
    "ANNOTATIONS_CREATED": Ingest._annotation,  # noqa: SLF001
    "ANNOTATIONS_DELETED": Ingest._annotations_deleted,  # noqa: SLF001
    "TASKS_CREATED": Ingest._tasks_created,  # noqa: SLF001
    "TASKS_DELETED": Ingest._tasks_deleted,  # noqa: SLF001
    "PROJECT_UPDATED": Ingest._project_updated,  # noqa: SLF001
    START_TRAINING: Ingest._start_training,  # noqa: SLF001
}
ACTIONS = frozenset(_HANDLERS)  # what a webhook must send


def read_project_uid(project: object) -> str:
    """Return the uid of a project object, `<id>.<created timestamp>` as in /setup; its id alone without the time.

    Raises:
        InvalidPayload: when there is no id.

    >>> read_project_uid({"id": 1, "created_at": "2026-11-16T00:14:01.305864Z"}), read_project_uid(7)
    ('1.1794788041', '7')
    """
    if isinstance(project, dict):
        number = read_id(project, "id")
        created = read_time(project.get("created_at"))
        return str(number) if created is None else join_uid(number, created)
    if isinstance(project, bool) or not isinstance(project, int | str) or not str(project).strip():
        raise InvalidPayload("the project of an event as an object with 'id'", describe_kind(project))
    return str(project).strip()[:100]


def mark_accepted(
    session: Session, project: ProjectRecord, annotation: AnnotationRecord, *, task: str
) -> AnnotationRecord:
    """Return an annotation with whether acceptance made it, and note its number if so (METHODS 12.4).

    The webhook may come before the process that sent the annotation knows that the server took it.
    """
    ours = is_accepted(
        session,
        project.id,
        task=task,
        annotation_id=annotation.annotation_id,
        unique_id=annotation.unique_id,
        by=annotation.completed_by,
        timed=annotation.lead_time is not None,
    )
    if ours and annotation.unique_id is not None:
        name_annotation(session, annotation.unique_id, annotation_id=annotation.annotation_id)
    return replace(annotation, accepted=True) if ours else annotation


def _shown(task: object, tag: TextTag) -> Document:
    """Return what the task of an annotation shows, where positions cannot be read without it."""
    (read,) = read_tasks([task])
    try:
        return document_in(None if read is None else read.data, tag)
    except UnreadableDocument as error:
        raise InvalidPayload(f"what the task shows under {tag.key!r}", str(error)) from None


def _drawn(session: Session, project: ProjectRecord, task: TaskRecord) -> Draw | None:
    """Return the draw of a task that has none: it was never shown, or shown before anything was drawn.

    It does not depend on other texts that the task's id had: whether those are deleted may be heard later.
    """
    if was_shown_undrawn(session, task.id):
        return None
    return draw_unshown(ensure_salt(session, project.id), project.uid, task.external_id)


def _is_news(session: Session, project: ProjectRecord, as_of: datetime | None) -> bool:
    """Whether a project object is at least as new as the one that is kept: late deliveries change nothing back."""
    if as_of is None:
        return project.label_config is None
    heard = read_time((get_state(session, project.id, HEARD) or {}).get("updated_at"))
    return heard is None or as_of > heard


def _spoken(body: Body, annotation: object) -> datetime | None:
    """Return when an annotation event was sent, by the server's clock: webhooks go out as the annotation is saved."""
    if not isinstance(annotation, dict) or "surespan" in body:
        return None
    first = body.get("action") == "ANNOTATION_CREATED"
    return read_time(annotation.get("created_at" if first else "updated_at"))


def _source(event: EventRecord) -> str | None:
    note = event.payload.get("surespan")
    source = note.get("source") if isinstance(note, dict) else None
    return source if isinstance(source, str) else None


def _stated_at(event: EventRecord) -> datetime | None:
    note = event.payload.get("surespan")
    return read_time(note.get("at")) if isinstance(note, dict) and _source(event) is not None else None


def _moment_of(event: EventRecord) -> datetime:
    """Return when a deletion happened: webhooks do not say, so their arrival counts."""
    note = event.payload.get("surespan")
    stated = read_time(note.get("at")) if isinstance(note, dict) else None
    return stated or event.received_at


def _singles(body: Body, annotations: list[Any], tasks: object) -> Iterator[dict[str, Any]]:
    listed = tasks if isinstance(tasks, list) else [tasks] * len(annotations)
    by_id = {task["id"]: task for task in listed if isinstance(task, dict) and isinstance(task.get("id"), int)}
    for i, annotation in enumerate(annotations):
        named = annotation.get("task") if isinstance(annotation, dict) else None
        task: object = by_id.get(named) if isinstance(named, int) else None
        if task is None and i < len(listed):
            task = listed[i]
        yield {**body, "action": "ANNOTATION_CREATED", "annotation": annotation, "task": task}


def _chunks(event: EventRecord, name: str, items: list[Any], *, size: int = CHUNK) -> Iterator[dict[str, Any]]:
    note = event.payload.get("surespan")
    # The parts are stored later than the whole came in, and a deletion counts from when it came in.
    told = {"at": event.received_at.isoformat()} | (note if isinstance(note, dict) else {})
    for begin in range(0, len(items), size):
        yield {**event.payload, name: items[begin : begin + size], "surespan": told}


def _split(session: Session, event: EventRecord, parts: Iterator[dict[str, Any]]) -> EventOutcome:
    """Put the parts of a large event into the inbox: short transactions, and a part that is bad hurts no other."""
    append_events(session, list(parts), received_at=event.received_at)
    return EventOutcome.DONE


def _list(body: Body, name: str) -> list[Any]:
    items = body.get(name)
    if not isinstance(items, list):
        raise InvalidPayload(f"a list under {name!r}", kind_of(body, name))
    return items


def _text(frame: Mapping[str, Any], name: str) -> str | None:
    value = frame.get(name)
    return value if isinstance(value, str) and value else None
