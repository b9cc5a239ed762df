"""Label Studio exports: the JSON list of tasks, or one task a line (JSONL).

Offsets count Unicode code points of the untouched text, as Python does. Flag controls are no labels: where the
control of the entity labels is named, others are ignored.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from backend.domain.records import TextSpan
from backend.tagger.errors import InvalidData
from backend.tagger.readers.conll import open_text
from backend.tagger.readers.types import LabelledText, Reading

FLAG_CONTROL = "flag"
_SHAPED = ("hypertextlabels", "paragraphlabels")  # kinds of results whose positions are not characters of a text
_LANGUAGE_FIELDS = ("language", "lang")


def read_label_studio(
    path: str | Path,
    *,
    text_field: str | None = None,
    label_control: str | None = None,
    language: str | None = None,
) -> Reading:
    """Read the annotated tasks of an export.

    Of a task with several annotations the ground truth counts, else the one with the lowest id. Skipped
    (`was_cancelled`) and missing annotations leave the task out, counted in `skipped`; an empty result is a valid
    labeling. `text_field` names the data field with the text; without it, the field the results point to is `text`
    or the only text field (one that names the language aside). `label_control` names the control of the entity
    labels; without it, every control but `flag` counts.

    Raises InvalidData with file and line (JSONL) or task position (JSON) for anything malformed.
    """
    file = Path(path)
    texts: list[LabelledText] = []
    skipped: Counter[str] = Counter()
    for where, line, task in _tasks(file):
        annotation, why = _chosen(task, where)
        if annotation is None:
            skipped[why] += 1
            continue
        data = task.get("data", task)
        if not isinstance(data, Mapping):
            raise InvalidData(f"{where}: expected the task's data to be an object, got {type(data).__name__}")
        text = _text(data, text_field, where)
        spans = tuple(_spans(annotation, text, label_control, where))
        said = next((data[key] for key in _LANGUAGE_FIELDS if isinstance(data.get(key), str) and data[key]), None)
        texts.append(LabelledText(text, spans, language or said, None, file.name, line))
    return Reading(tuple(texts), 0, skipped)


def _tasks(file: Path) -> Iterator[tuple[str, int, Mapping[str, object]]]:
    lines = file.name.lower().removesuffix(".gz").endswith(("jsonl", "ndjson"))
    try:
        with open_text(file) as stream:
            if lines:
                for number, raw in enumerate(stream, start=1):
                    if raw.strip():
                        where = f"{file.name}:{number}"
                        yield where, number, _object(_parse(raw, where), where)
                return
            whole = _parse(stream.read(), file.name)
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise InvalidData(f"{file.name}: expected a UTF-8 text file, got {error}; convert it first") from None
    except OSError as error:
        raise InvalidData(f"{file}: expected a readable file, got {error.strerror or error}") from None
    if not isinstance(whole, list):
        raise InvalidData(f"{file.name}: expected a JSON list of tasks, got {type(whole).__name__}")
    for position, task in enumerate(whole, start=1):
        where = f"{file.name}: task {position}"
        yield where, position, _object(task, where)


def _parse(raw: str, where: str) -> object:
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        raise InvalidData(
            f"{where}: expected JSON, got {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InvalidData(f"{where}: expected a task object, got {type(value).__name__}")
    return value


def _chosen(task: Mapping[str, object], where: str) -> tuple[Mapping[str, object] | None, str]:
    annotations = task.get("annotations", task.get("completions"))
    if annotations is None and "label" in task:  # the JSON_MIN export: one flat object a task
        return {"min": task["label"]}, ""
    if annotations is None:
        return None, "tasks without annotations"
    if not isinstance(annotations, list) or not all(isinstance(a, Mapping) for a in annotations):
        raise InvalidData(f"{where}: expected annotations to be a list of objects, got {type(annotations).__name__}")
    if not annotations:
        return None, "tasks without annotations"
    valid = [a for a in annotations if not a.get("was_cancelled")]
    if not valid:
        return None, "skipped tasks"
    truths = [a for a in valid if a.get("ground_truth")]
    return min(truths or valid, key=lambda a: a["id"] if isinstance(a.get("id"), int) else 0), ""


def _text(data: Mapping[str, object], field: str | None, where: str) -> str:
    fields = [key for key, value in data.items() if isinstance(value, str) and key not in _LANGUAGE_FIELDS]
    named = field or ("text" if "text" in fields else fields[0] if len(fields) == 1 else None)
    if named is None or not isinstance(data.get(named), str):
        wanted = repr(field) if field else "'text'"
        raise InvalidData(
            f"{where}: expected a text in the data field {wanted}, got fields {sorted(data)}; name the field"
        )
    return str(data[named])


def _spans(annotation: Mapping[str, object], text: str, control: str | None, where: str) -> Iterator[TextSpan]:
    if "min" in annotation:
        results: object = [{"type": "labels", "value": value} for value in _list(annotation["min"], where)]
    else:
        results = annotation.get("result", [])
    for result in _list(results, where):
        item = _object(result, where)
        said = item.get("value")
        if item.get("type") in _SHAPED or (isinstance(said, Mapping) and "startOffset" in said):
            raise InvalidData(
                f"{where}: expected labels over a plain text, got labels over a dialogue or an HTML page: "
                "`surespan export` writes those as plain text"
            )
        if item.get("type") != "labels":
            continue
        name = item.get("from_name")
        if (name != control) if control is not None else (name == FLAG_CONTROL):
            continue
        value = _object(item.get("value"), where)
        start, end, labels = value.get("start"), value.get("end"), value.get("labels")
        if not isinstance(start, int) or not isinstance(end, int) or not isinstance(labels, list) or not labels:
            raise InvalidData(f"{where}: expected start, end and labels in a result, got {sorted(value)}")
        if not 0 <= start <= end <= len(text):
            raise InvalidData(
                f"{where}: expected a span inside 0..{len(text)}, got {start}..{end}; is it the right text?"
            )
        yield from (TextSpan(start, end, str(label)) for label in labels)


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise InvalidData(f"{where}: expected a list of results, got {type(value).__name__}")
    return value


def write_label_studio(
    texts: Iterable[LabelledText],
    path: str | Path,
    *,
    lines: bool = False,
    label_control: str = "label",
    text_object: str = "text",
) -> int:
    """Write texts as annotated tasks, a JSON list or (`lines`) one a line; return how many. The reader's inverse."""
    tasks: list[str] = []
    for number, text in enumerate(texts, start=1):
        data = {"text": text.text} | ({"language": text.language} if text.language else {})
        result = [
            {
                "id": f"r{number}",
                "from_name": label_control,
                "to_name": text_object,
                "type": "labels",
                "value": {"start": start, "end": end, "text": text.text[start:end], "labels": [label]},
            }
            for number, (start, end, label) in enumerate(text.spans)
        ]
        task = {"id": number, "data": data, "annotations": [{"id": number, "was_cancelled": False, "result": result}]}
        tasks.append(json.dumps(task, ensure_ascii=True))
    with Path(path).open("w", encoding="utf-8", newline="\n") as stream:
        stream.write("\n".join([*tasks, ""]) if lines else "[" + ",\n".join(tasks) + "]\n")
    return len(tasks)
