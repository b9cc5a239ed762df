"""Confirmed labels as files: CoNLL columns, or one JSON object a line, written as they are read, a page at a time.

No flag control and no prediction is ever in them. What a format cannot say is never bent until it fits: the text is
left out, or the loss is counted, and the report says which. JSON says everything; CoNLL has words and tags only, so
that the spaces between words are lost, and a span that cuts a word cannot be said at all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from urllib.parse import quote

from sqlalchemy.orm import Session

from backend.domain.label_choice import ACCEPTED
from backend.domain.records import ProjectRecord, TextSpan
from backend.errors import InvalidLabelConfig
from backend.labelstudio.config import Control, LabelConfig, parse_config
from backend.store.confirmed import EXCLUDE, ConfirmedLabel, confirmed_labels, count_unconfirmed, project_classes
from backend.tagger.readers.label_studio import FLAG_CONTROL
from backend.tagger.spans import to_token_spans
from backend.tagger.tokens import tokenize

PAGE = 500
NAMED = 10  # tasks that a report names for each reason
COLUMNS = ("word", "task", "annotation", "who", "when", "evidence", "exclusion", "votes", "tag")
_NOTHING = "_"


class Format(StrEnum):
    """What is written for a label."""

    CONLL = "conll"  # word, tab, IOB2 tag; a blank line after each text
    JSONL = "jsonl"  # {"task", "text", "label": [{"start", "end", "text", "labels"}]}, as Label Studio's JSON_MIN
    LABEL_STUDIO = "label-studio"  # {"id", "data", "annotations"}, as Label Studio's JSON, a task a line


@dataclass(frozen=True)
class TaskNames:
    """What a project's label config calls the control of its entities, the text, and the key of the task's data.

    What was stored of a dialogue or a page is its plain text, which its own tag cannot show: such tasks are written
    for a `<Text>` with these names.
    """

    control: str = "label"
    object: str = "text"
    key: str = "text"


@dataclass
class Report:
    """What was written, and what was not: `left_out` are texts, `changed` what CoNLL could not keep of written ones."""

    texts: int = 0
    entities: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    tasks: dict[str, list[str]] = field(default_factory=dict)

    def leave_out(self, label: ConfirmedLabel, reason: str) -> None:
        """Count a text that is not written, and remember the first few by their task."""
        self.left_out[reason] += 1
        named = self.tasks.setdefault(reason, [])
        if len(named) < NAMED:
            named.append(label.task)

    def lines(self) -> list[str]:
        """Say it to people.

        >>> report = Report(texts=2, entities=3)
        >>> report.left_out["skipped"] += 1
        >>> report.lines()
        ['2 texts, 3 entities', 'left out: 1 (skipped)']
        """
        lines = [f"{self.texts:,} texts, {self.entities:,} entities"]
        for reason, count in sorted(self.left_out.items()):
            named = self.tasks.get(reason, [])
            more = ", ..." if len(named) < count and named else ""
            where = f": task {', '.join(named)}{more}" if named else ""
            lines.append(f"left out: {count:,} ({reason}){where}")
        lines += [f"not kept: {what} ({count:,})" for what, count in sorted(self.changed.items()) if count]
        return lines


def export(
    session: Session,
    project: ProjectRecord,
    *,
    form: Format,
    provenance: bool = False,
    control: str | None = None,
    classes: Mapping[str, str] | None = None,
    accepted: str = EXCLUDE,
) -> tuple[Iterator[str], Report]:
    """Return the lines of an export, made while they are read, and the report that fills up meanwhile.

    Use a session of `Store.read()`: the export is then of one moment. Memory is that of a page of labels.

    Args:
        provenance: say task, annotation, who, when, evidence, exclusion and votes as well.
        control: the Labels control that holds the entities, for the Label Studio form; found if not given.
        classes: what to write in place of a label; labels are written as the label config calls them otherwise.
        accepted: `exclude` what acceptance made, `include` it, or write it `only`. It is marked wherever it is written.
    """
    unconfirmed = count_unconfirmed(session, project.id)
    if accepted != EXCLUDE:
        unconfirmed.pop(ACCEPTED, None)
    report = Report(left_out=Counter(unconfirmed))
    names = find_names(session, project, control=control) if form is Format.LABEL_STUDIO else TaskNames()
    labels = (_renamed(label, classes or {}) for label in _all(session, project, accepted))
    return write_lines(labels, report, form=form, provenance=provenance, names=names), report


def write_lines(
    labels: Iterable[ConfirmedLabel],
    report: Report,
    *,
    form: Format,
    provenance: bool = False,
    names: TaskNames | None = None,
) -> Iterator[str]:
    """Yield the lines of some labels, one label at a time, and fill the report."""
    makers: dict[Format, Callable[[ConfirmedLabel], list[str]]] = {
        Format.CONLL: _Conll(report, provenance=provenance).block,
        Format.JSONL: lambda label: [_minimal(label, provenance=provenance)],
        Format.LABEL_STUDIO: lambda label: [_task(label, names or TaskNames(), provenance=provenance)],
    }
    if form is Format.CONLL and provenance:
        yield f"# columns = {' '.join(COLUMNS)}\n"
    for label in labels:
        if label.text is None:
            report.leave_out(label, "its text was removed by SURESPAN_TEXT_RETENTION")
            continue
        lines = makers[form](label)
        if lines:
            report.texts += 1
            report.entities += len(label.spans)
            yield from lines


def _all(session: Session, project: ProjectRecord, accepted: str) -> Iterator[ConfirmedLabel]:
    after = 0
    while page := confirmed_labels(session, project.id, after=after, limit=PAGE, accepted=accepted):
        after = page[-1].id
        yield from page


def _renamed(label: ConfirmedLabel, classes: Mapping[str, str]) -> ConfirmedLabel:
    if not classes:
        return label
    spans = {span._replace(label=classes.get(span.label, span.label)) for span in label.spans}
    return replace(label, spans=tuple(sorted(spans)))


class _Conll:
    """Texts as columns. Words are the live tokenizer's, so that reading the file gives the tagger's own tokens."""

    def __init__(self, report: Report, *, provenance: bool) -> None:
        self._report, self._provenance = report, provenance
        self._names: dict[str, str] = {}  # as written -> as stored

    def block(self, label: ConfirmedLabel) -> list[str]:
        """Return the lines of one text, none when its labeling cannot be said."""
        text = label.text or ""
        tokens = tokenize(text)
        words = [text[start:end] for start, end in tokens]
        aligned = to_token_spans(label.spans, tokens, text=text)
        reason = _unsayable(words)
        if aligned.inexpressible:
            reason = f"a span of it cannot be said in words: {aligned.inexpressible[0].reason.value}"
        tags = ["O"] * len(words)
        for start, end, name in aligned.spans:
            written = self._written(name)
            if written is None:
                reason = reason or "a label of it has no name that a tag can hold, or is written like another"
                continue
            tags[start:end] = [f"B-{written}", *[f"I-{written}"] * (end - start - 1)]
        if reason is not None:
            self._report.leave_out(label, reason)
            return []
        changed = self._report.changed
        changed["spaces and invisible characters of texts"] += " ".join(words) != text
        edges = sum(text[span.start : span.end] != text[span.start : span.end].strip() for span in label.spans)
        changed["white space at the edges of spans"] += edges
        middle = "".join(f"{value}\t" for value in _provenance(label)) if self._provenance else ""
        lines = [f"{word}\t{middle}{tag}\n" for word, tag in zip(words, tags, strict=True)]
        mark = ["# accepted = true\n"] if label.accepted else []
        return [*self._language(label), *mark, *lines, "\n"]

    def _language(self, label: ConfirmedLabel) -> list[str]:
        if not label.language:
            return []
        if label.language.split() != [label.language] or not _is_utf8(label.language):
            self._report.changed["languages whose name is not one word"] += 1
            return []
        return [f"# lang = {label.language}\n"]

    def _written(self, name: str) -> str | None:
        """Return a class as tags can hold it: spaces become `_`, unless that is another class's name."""
        written = "_".join(name.split())
        if not written or not _is_utf8(written) or self._names.setdefault(written, name) != name:
            return None
        self._report.changed[f"the label {name!r}, written {written}"] += written != name
        return written


def _unsayable(words: list[str]) -> str | None:
    if not words:
        return "it has no word"
    if any(word != word.strip() or not _is_utf8(word) for word in words):
        return "a word of it has a space or a character that a column cannot hold"
    return None


def _is_utf8(word: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in word)


def _provenance(label: ConfirmedLabel) -> list[str]:
    values = {
        "task": label.task,
        "annotation": label.annotation_id,
        "who": label.completed_by,
        "when": label.updated_at and label.updated_at.isoformat(),
        "evidence": label.evidence,
        "exclusion": label.exclusion,
        "votes": f"{label.votes}/{label.voters}",
    }
    return [_cell(values[name]) for name in COLUMNS[1:-1]]


def _cell(value: object) -> str:
    """Return a value as a column: % codes for what would break it, `_` for nothing."""
    text = "" if value is None else str(value)
    return "".join(c if c.isprintable() and not c.isspace() else quote(c, safe="") for c in text) or _NOTHING


def _minimal(label: ConfirmedLabel, *, provenance: bool) -> str:
    text = label.text or ""
    line: dict[str, object] = {"task": label.task, "text": text}
    if label.language:
        line["language"] = label.language
    line["label"] = [_value(span, text) for span in label.spans]
    if label.accepted:
        line["accepted"] = True
    if provenance:
        line |= {
            "annotation_id": label.annotation_id,
            "annotator": label.completed_by,
            "updated_at": label.updated_at and label.updated_at.isoformat(),
            **_worth(label),
        }
    return _json(line)


def find_names(session: Session, project: ProjectRecord, *, control: str | None = None) -> TaskNames:
    """Return the names that the project's label config gives things, so that tasks can be imported there again."""
    try:
        config = parse_config(project.label_config or "")
    except InvalidLabelConfig:
        return TaskNames(control or "label")
    try:
        target = config.target(project_classes(session, project.id), control=control)
    except InvalidLabelConfig:
        other = _entity_control(config, control)
        return (
            TaskNames(control or "label") if other is None else TaskNames(other.name, other.text.name, other.text.key)
        )
    return TaskNames(target.control, target.text.name, target.text.key)


def _task(label: ConfirmedLabel, names: TaskNames, *, provenance: bool) -> str:
    text = label.text or ""
    data = {names.key: text} | ({"language": label.language} if label.language else {})
    results = [
        {
            "id": f"s{number}",
            "from_name": names.control,
            "to_name": names.object,
            "type": "labels",
            "value": _value(span, text),
        }
        for number, span in enumerate(label.spans)
    ]
    annotation: dict[str, object] = {"was_cancelled": False, "ground_truth": label.ground_truth, "result": results}
    if label.accepted:
        annotation["accepted"] = True
    if provenance:
        annotation |= {
            "id": label.annotation_id,
            "completed_by": label.completed_by,
            "created_at": label.created_at and label.created_at.isoformat(),
            "updated_at": label.updated_at and label.updated_at.isoformat(),
            "lead_time": label.lead_time,
            "surespan": _worth(label),
        }
    identity = int(label.task) if label.task.isascii() and label.task.isdigit() else label.task
    return _json({"id": identity, "data": data, "annotations": [annotation]})


def _entity_control(config: LabelConfig, name: str | None) -> Control | None:
    wanted = [each for each in config.controls if (each.name == name if name else each.name != FLAG_CONTROL)]
    return wanted[0] if wanted else None


def _value(span: TextSpan, text: str) -> dict[str, object]:
    return {"start": span.start, "end": span.end, "text": text[span.start : span.end], "labels": [span.label]}


def _worth(label: ConfirmedLabel) -> dict[str, object]:
    return {
        "evidence": label.evidence,
        "exclusion": label.exclusion,
        "votes": label.votes,
        "voters": label.voters,
    }


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=True) + "\n"  # ASCII: a lone surrogate survives as its code
