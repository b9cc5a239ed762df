"""What Label Studio sends, checked and turned into domain types; nothing behind this module sees raw JSON.

A request whose frame is wrong is refused with what was expected and got. A single task that is wrong is not: it keeps
its place in the batch and says why it cannot be predicted. Messages name types and keys, never contents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from backend.documents.document import ANY_TEXT, Document, PlainText, UnreadableDocument
from backend.documents.reading import length_of, read_document
from backend.domain.target import Shape, TextTag
from backend.domain.text import plain
from backend.errors import BackendError

MAX_TASK_ID = 200
MAX_PROJECT = 100
_MARKUP = 10  # times the longest text that a page may have with its markup


class InvalidPayload(BackendError):
    """A request body that does not have the shape of its route."""

    def __init__(self, expected: str, got: str, *, hint: str = "") -> None:
        super().__init__(f"expected {expected}, got {got}")
        self.expected, self.got, self.hint = expected, got, hint


class Unpredictable(StrEnum):
    """Why a task has no prediction."""

    NOT_AN_OBJECT = "the task is not an object"
    NO_DATA = "the task has no data"
    MISSING_KEY = "the task's data lacks the key that the label config shows"
    NOT_TEXT = "the value is not a text"
    UNREADABLE = "what the editor shows of the value is not certain"
    URL = "the value is a URL and its host is not allowed by SURESPAN_TASK_HOSTS"
    FETCH_FAILED = "the value is a URL that gave no text in time"
    PRIVATE = "the value is a URL whose host lies at a private address (SURESPAN_TASK_HOSTS_PRIVATE)"
    TOO_LONG = "the text is longer than SURESPAN_MAX_TEXT"
    FAILED = "the prediction failed"


@dataclass(frozen=True)
class TaskIn:
    """A task as it came: its id, its data, and the regions of the predictions it carries."""

    id: str
    data: Mapping[str, Any] | None
    created_at: datetime | None
    predictions: tuple[Mapping[str, Any], ...]

    @property
    def language(self) -> str | None:
        """The language that the task's data names."""
        for key in ("language", "lang"):
            value = (self.data or {}).get(key)
            if isinstance(value, str) and 0 < len(value) <= 20:
                return plain(value, 20)
        return None


@dataclass(frozen=True)
class PredictIn:
    """A call of /predict. `context` is the list of regions of interactive mode, None otherwise."""

    project: str
    label_config: str | None
    tasks: tuple[TaskIn | None, ...]
    context: tuple[Mapping[str, Any], ...] | None


@dataclass(frozen=True)
class SetupIn:
    """A call of /setup."""

    project: str
    label_config: str


def read_predict(body: object) -> PredictIn:
    """Check a call of /predict.

    >>> read_predict({"tasks": [{"id": 7, "data": {"text": "Bob"}}], "project": "1.2"}).tasks[0].id
    '7'
    """
    frame = _object(body, "a JSON object with 'tasks'")
    tasks = frame.get("tasks")
    if not isinstance(tasks, list):
        raise InvalidPayload("a list under 'tasks'", kind_of(frame, "tasks"))
    params = frame.get("params")
    context = params.get("context") if isinstance(params, dict) else None
    regions = context.get("result") if isinstance(context, dict) else None
    return PredictIn(
        project=read_project(frame, default="local"),
        label_config=_config(frame, "label_config"),
        tasks=read_tasks(tasks),
        context=tuple(each for each in regions if isinstance(each, dict)) if isinstance(regions, list) else None,
    )


def read_setup(body: object) -> SetupIn:
    """Check a call of /setup."""
    frame = _object(body, "a JSON object with 'project' and 'schema'")
    config = _config(frame, "schema")
    if config is None:
        raise InvalidPayload("the label config as a text under 'schema'", kind_of(frame, "schema"))
    return SetupIn(read_project(frame), config)


def read_event(body: object) -> dict[str, Any]:
    """Check a delivery to /webhook: any object that names an action, known or not."""
    frame = _object(body, "a JSON object with 'action'")
    action = frame.get("action")
    if not isinstance(action, str) or not action.strip():
        raise InvalidPayload("a text under 'action', such as ANNOTATION_CREATED", kind_of(frame, "action"))
    return frame


def read_project(frame: Mapping[str, Any], *, default: str | None = None) -> str:
    """Return the project's uid, `<id>.<created timestamp>`, or its id alone where that is all that was sent."""
    project = frame.get("project")
    if isinstance(project, dict):
        project = project.get("id")
    if project is None and default is not None:
        return default
    if isinstance(project, bool) or not isinstance(project, int | str):
        raise InvalidPayload("the project as '<id>.<created timestamp>' under 'project'", kind_of(frame, "project"))
    uid = str(project).strip()
    if not uid or len(uid) > MAX_PROJECT or uid != plain(uid, MAX_PROJECT) or not uid.isprintable():
        raise InvalidPayload(f"a project of 1 to {MAX_PROJECT} printable characters", f"{len(uid)} characters")
    return uid


def read_tasks(tasks: Sequence[object]) -> tuple[TaskIn | None, ...]:
    """Read tasks of any payload; None stands for what is no task object."""
    return tuple(_task(task) for task in tasks)


def read_shown(task: TaskIn | None, tag: TextTag, *, max_text: int) -> Document | Unpredictable:
    """Return what a task shows under a tag of its label config, or why there is nothing to predict.

    URLs are told, not followed.

    Raises:
        UnreadableDocument: with more than `Unpredictable.UNREADABLE` says.
    """
    if task is None:
        return Unpredictable.NOT_AN_OBJECT
    if task.data is None:
        return Unpredictable.NO_DATA
    value = task.data.get(tag.key)
    if value is None:
        return Unpredictable.MISSING_KEY
    if not isinstance(value, list if tag.shape is Shape.DIALOGUE else str) and not isinstance(value, PlainText):
        return Unpredictable.NOT_TEXT
    if isinstance(value, str) and is_url(value, tag):
        return Unpredictable.URL
    if length_of(value, tag) > _MARKUP * max_text:
        return Unpredictable.TOO_LONG
    document = read_document(value, tag)
    return document if len(document.text) <= max_text else Unpredictable.TOO_LONG


def read_text(task: TaskIn | None, tag: TextTag, *, max_text: int) -> str | Unpredictable:
    """Return the text of a task under a tag of its label config, or why there is none; URLs are told, not followed."""
    try:
        shown = read_shown(task, tag, max_text=max_text)
    except UnreadableDocument:
        return Unpredictable.UNREADABLE
    return shown if isinstance(shown, Unpredictable) else shown.text


def text_in(data: Mapping[str, Any] | None, tag: TextTag) -> str | None:
    """Return the text that a task's data holds itself, however long; None where there is none, or an address of one."""
    value = (data or {}).get(tag.key)
    if isinstance(value, str) and is_url(value, tag):
        return None
    try:
        return read_document(value, tag).text
    except UnreadableDocument:
        return None


def document_in(data: Mapping[str, Any] | None, tag: TextTag) -> Document:
    """Return what the positions of an annotation refer to; those of a plain text need none of it.

    Raises:
        UnreadableDocument: when the task's data holds nothing that can be read.
    """
    return ANY_TEXT if tag.shape is Shape.TEXT else read_document((data or {}).get(tag.key), tag)


def url_of(task: TaskIn | None, tag: TextTag) -> str | None:
    """Return the address of a task's text, where that is what the task holds and positions need no more than a text."""
    value = None if task is None or task.data is None or tag.shape is not Shape.TEXT else task.data.get(tag.key)
    return value if isinstance(value, str) and is_url(value, tag) else None


def is_url(value: str, tag: TextTag) -> bool:
    """Whether a value is an address of a text rather than a text.

    >>> is_url("https://host/a.txt", TextTag("text", "text", False)), is_url("see http://a b", TextTag("t", "t", False))
    (True, False)
    """
    if tag.is_url:
        return True
    stripped = value.strip()
    if any(character.isspace() for character in stripped):
        return False
    try:
        parts = urlsplit(stripped)
    except ValueError:
        return False
    return parts.scheme.lower() in {"http", "https"} and bool(parts.netloc)


def kind_of(frame: Mapping[str, Any], key: str) -> str:
    """Say what is under a key without repeating it."""
    if key not in frame:
        return f"no {key!r}"
    return describe_kind(frame[key])


def describe_kind(value: object) -> str:
    """Name the JSON kind of a value.

    >>> describe_kind([1]), describe_kind(None)
    ('a list', 'null')
    """
    kinds = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return "null" if value is None else kinds.get(type(value), "something else")


def _object(body: object, expected: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise InvalidPayload(expected, describe_kind(body))
    return body


def _config(frame: Mapping[str, Any], key: str) -> str | None:
    config = frame.get(key)
    if config is not None and not isinstance(config, str):
        raise InvalidPayload(f"the label config as a text under {key!r}", kind_of(frame, key))
    return config if config and config.strip() else None


def _task(task: object) -> TaskIn | None:
    if not isinstance(task, dict):
        return None
    identity = task.get("id")
    known = isinstance(identity, int | str) and not isinstance(identity, bool)
    data = task.get("data")
    predictions = task.get("predictions")
    return TaskIn(
        id=plain(identity, MAX_TASK_ID) if known else "",
        data=data if isinstance(data, dict) else None,
        created_at=read_time(task.get("created_at")),
        predictions=tuple(each for each in predictions if isinstance(each, dict))
        if isinstance(predictions, list)
        else (),
    )


def join_uid(number: object, created: datetime) -> str:
    """Return the uid under which Label Studio names a project to its backends: `<id>.<created timestamp>`.

    >>> join_uid(1, read_moment("2026-11-16T05:24:34.161204Z"))
    '1.1794806674'
    """
    return f"{number}.{int(created.timestamp())}"


def read_moment(text: str) -> datetime:
    """Return a time of Label Studio's, in UTC.

    >>> read_moment("2026-11-16T05:24:34.161204Z").isoformat()
    '2026-11-16T05:24:34.161204+00:00'
    """
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def read_time(value: object) -> datetime | None:
    """Return a moment that Label Studio wrote, in UTC; None when it is none.

    >>> read_time("2026-11-16T00:14:01.305864Z").microsecond, read_time("today")
    (305864, None)
    """
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        return read_moment(value)
    except (ValueError, OverflowError):
        return None


SECRET_HEADER = "X-Surespan-Secret"  # noqa: S105 - the name of a header
START_TRAINING = "START_TRAINING"  # what the button of that name sends, to /webhook but without the secret
