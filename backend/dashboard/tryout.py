"""`/dashboard/try`: the sets of a text that someone types. Nothing is kept, and no text is logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.dashboard.actions import read_alpha
from backend.labelstudio.payloads import InvalidPayload
from backend.prediction.promise import describe_promise
from backend.serving.service import Service


@dataclass(frozen=True)
class Piece:
    """A part of a text: plain where `label` is empty, else a span; `doubtful` ones are amber."""

    text: str
    label: str = ""
    doubtful: bool = False
    candidates: str = ""


@dataclass(frozen=True)
class Tried:
    """What is shown for a text."""

    answer: Mapping[str, Any]
    promise: str
    threshold: float
    pieces: tuple[Piece, ...]
    labelings: tuple[tuple[Mapping[str, Any], bool, tuple[Piece, ...]], ...]


def read_text(service: Service, given: Mapping[str, str]) -> str:
    """Return the text of the form.

    Raises:
        InvalidPayload: when there is none, or too much of it.
    """
    text = given.get("text", "").replace("\r\n", "\n")
    if not text.strip():
        raise InvalidPayload("a text", "none", hint="type one")
    if len(text) > service.settings.max_text:
        raise InvalidPayload(f"a text of at most {service.settings.max_text} characters", f"one of {len(text)}")
    return text


def try_text(service: Service, given: Mapping[str, str], *, project: str, label_config: str | None) -> Tried:
    """Return the sets of the form's text, as the project would show them; waits for the model.

    Raises:
        InvalidPayload: when text, language or alpha cannot be used.
        ModelUnavailable, Overloaded: not now.
    """
    text = read_text(service, given)
    language = given.get("language", "").strip().lower() or None
    if language is not None and not (len(language) <= 20 and language.isascii() and language.isalpha()):
        raise InvalidPayload("a language code such as en", "something else")
    alpha = read_alpha(given) if given.get("alpha", "").strip() else None
    with service.admission.enter():
        if label_config is None:
            predictor = service.views.local(project, alpha=alpha)
        else:
            predictor = service.views.view(project, label_config, alpha=alpha).predictor
        with service.gate.turn(project):
            prediction = predictor.predict([text], languages=[language])[0]

    answer = prediction.as_dict()
    members = [each.member for each in prediction.sets.labelings]
    labelings = tuple(
        (each, member, cut(text, each["spans"])) for each, member in zip(answer["labelings"], members, strict=True)
    )
    return Tried(answer, describe_promise(prediction), prediction.sets.threshold, marked(text, answer), labelings)


def cut(text: str, spans: list[Mapping[str, Any]]) -> tuple[Piece, ...]:
    """Cut a text at spans that do not overlap.

    >>> [(piece.text, piece.label) for piece in cut("In Rome.", [{"start": 3, "end": 7, "label": "LOC"}])]
    [('In ', ''), ('Rome', 'LOC'), ('.', '')]
    """
    pieces, at = [], 0
    for span in sorted(spans, key=lambda each: int(each["start"])):
        start, end = int(span["start"]), int(span["end"])
        if start < at:
            continue
        if start > at:
            pieces.append(Piece(text[at:start]))
        pieces.append(
            Piece(text[start:end], str(span["label"]), bool(span.get("doubtful")), str(span.get("candidates", "")))
        )
        at = end
    if at < len(text):
        pieces.append(Piece(text[at:]))
    return tuple(pieces)


def marked(text: str, answer: Mapping[str, Any]) -> tuple[Piece, ...]:
    """Cut a text at the spans of its best labeling and at those in doubt; of overlapping ones the doubtful stays."""
    doubtful = [
        {
            "start": span["start"],
            "end": span["end"],
            "doubtful": True,
            "label": " / ".join(held["label"] for held in span["labels"]) or "?",
            "candidates": ", ".join(f"{held['label']} (p-value {held['p_value']:.2g})" for held in span["labels"]),
        }
        for span in answer["spans"]
        if span["flagged"]
    ]
    taken = [(span["start"], span["end"]) for span in doubtful]
    sure = [
        span
        for span in answer["labelings"][0]["spans"]
        if not any(start < span["end"] and span["start"] < end for start, end in taken)
    ]
    return cut(text, [*sure, *doubtful])
