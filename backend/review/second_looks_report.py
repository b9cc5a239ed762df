"""What is said about second looks: for the API, the command and the page. Needs no model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any
from urllib.parse import quote

from sqlalchemy.orm import Session

from backend.domain.records import ModelRecord, ProjectRecord
from backend.store.second_looks import CHECK, FDR, LISTED, Look, list_looks
from backend.store.state import SECOND_LOOKS, get_state

SAID = 3  # spans that are put in words


def looks_report(
    session: Session, project: ProjectRecord, model: ModelRecord | None, *, base: str | None = None, limit: int = 50
) -> dict[str, Any]:
    """Return both lists with their evidence, and what they rest on.

    Args:
        base: address of Label Studio, for links to the tasks.
    """
    known = looks_state(session, project, model)
    lists: dict[str, list[Look]] = {LISTED: [], CHECK: []}
    if model is not None:
        lists = {state: list_looks(session, project.id, model_id=model.id, state=state, limit=limit) for state in lists}
    return {
        "project": project.uid,
        "fdr": known["fdr"],
        "computed_at": known.get("at"),
        "reference": known["reference"],
        "checked": known["checked"],
        "tested": known["tested"] + known["picked"],
        "inexpressible": known["inexpressible"],
        "summary": summarise(known, shown=len(lists[LISTED])),
        "listed": [describe_look(each, project, base) for each in lists[LISTED]],
        "check": [describe_look(each, project, base) for each in lists[CHECK]],
    }


def looks_state(session: Session, project: ProjectRecord, model: ModelRecord | None) -> dict[str, Any]:
    """Return the figures kept with the lists; zeros while the model has made none."""
    blank: dict[str, Any] = {
        "fdr": FDR, "reference": 0, "checked": 0, "tested": 0, "picked": 0, "listed": 0, "check": 0, "inexpressible": 0,
    }  # fmt: skip
    known = get_state(session, project.id, SECOND_LOOKS) or {}
    if model is None or known.get("model") != model.id:
        return blank | {"fdr": known.get("fdr", FDR)}
    return blank | known


def summarise(known: Mapping[str, Any], *, shown: int) -> str:
    """Say in a sentence or two what the list is worth, and what would make it better."""
    if "at" not in known:
        return "No label has been checked yet: that happens after each refit, or now with `surespan second-looks`."
    share = f"{100 * float(known['fdr']):g} %"
    least = least_discoveries(known)
    if shown:
        said = (
            f"At most {share} of the labels on such a list are expected to be right. "
            f"{known['tested'] + known['picked']:,} labels were compared with {known['reference']:,} reference labels."
        )
    elif not known["reference"]:
        return "Too few labels of randomly drawn tasks: a part of them serves as the reference for all others."
    elif least > known["tested"] + known["picked"]:
        return (
            f"{known['reference']:,} reference labels are too few for a list at {share}: it needs "
            f"{math.ceil(1 / float(Fraction(str(known['fdr'])))) - 1} or more."
        )
    else:
        said = (
            f"No label stands out so far: with {known['reference']:,} reference labels, at least {least:,} of "
            f"{known['tested'] + known['picked']:,} must."
        )
    if known["check"]:
        said += " Errors among the reference labels shorten the list: check the strangest of those first."
    return said


def least_discoveries(known: Mapping[str, Any]) -> int:
    """Return how many labels must stand out from every reference label before any can be listed.

    >>> least_discoveries({"fdr": "0.1", "tested": 700, "picked": 0, "reference": 299})
    24
    """
    return math.ceil(Fraction(max(int(known["tested"]), 1), int(known["reference"]) + 1) / Fraction(str(known["fdr"])))


def describe_look(look: Look, project: ProjectRecord, base: str | None = None) -> dict[str, Any]:
    """Return an entry as JSON: what was said, which of it is implausible, what the model says instead."""
    evidence = look.evidence
    word = evidence.get("word") or [0, 0, math.exp(-look.score)]
    return {
        "task": look.task,
        "kind": look.state,
        "p_value": look.p_value,
        "probability": word[2],
        "word": {"start": word[0], "end": word[1], "text": _cut(look.text, word[0], word[1])},
        "implausible": [_span(each, look.text) for each in evidence.get("label", [])],
        "instead": [_span(each, look.text) for each in evidence.get("model", [])],
        "spans": [_span(each, look.text) for each in look.spans],
        "text": look.text,
        "label": look.label_id,
        "annotation": look.annotation_id,
        "completed_by": look.completed_by,
        "labelled_at": None if look.labelled_at is None else look.labelled_at.isoformat(),
        "url": task_url(base, project, look.task),
    }


def said_spans(spans: Sequence[Mapping[str, Any]]) -> str:
    """Return spans in words, the first three of them; "no entity" where there is none.

    >>> said_spans([{"label": "PER", "text": "Anna", "start": 0, "end": 4, "probability": 0.0021}])
    'PER “Anna” (0.21 %)'
    """
    if not spans:
        return "no entity"
    said = []
    for each in spans[:SAID]:
        text = each["text"] if each["text"] is not None else f"characters {each['start']} to {each['end']}"
        chance = f" ({percent(each['probability'])})" if "probability" in each else ""
        said.append(f"{each['label']} “{text}”{chance}")
    more = len(spans) - SAID
    return ", ".join(said) + (f" and {more} more" if more > 0 else "")


def percent(share: float) -> str:
    """Return a probability with two digits that count.

    >>> percent(0.0021), percent(0.97), percent(3e-7)
    ('0.21 %', '97 %', 'below 0.001 %')
    """
    if share < 1e-5:
        return "below 0.001 %"
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def task_url(base: str | None, project: ProjectRecord, task: str) -> str | None:
    """Return the address of a task in Label Studio, None where it has none."""
    if not base or not project.key.isdigit():
        return None
    return f"{base.rstrip('/')}/projects/{project.key}/data?task={quote(task)}"


def _span(each: Sequence[Any], text: str | None) -> dict[str, Any]:
    start, end, label, *probability = each
    found = {"start": start, "end": end, "label": label, "text": _cut(text, start, end)}
    return found | ({"probability": probability[0]} if probability else {})


def _cut(text: str | None, start: int, end: int) -> str | None:
    return None if text is None else text[start:end]
