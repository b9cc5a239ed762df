"""Figures of second looks: labels that are probably wrong, and reference labels to check first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import url_for

from backend.dashboard.figures import Figure, Link, columns
from backend.dashboard.subject import Subject
from backend.review.second_looks_report import describe_look, looks_state, said_spans, summarise, task_url
from backend.store.second_looks import CHECK, LISTED, Look, list_looks

SHOWN = 25


def listed(subject: Subject) -> Figure:
    """Show the labels that are probably wrong."""
    looks, known = _read(subject, LISTED)
    rows = tuple((*_row(subject, each), each.p_value) for each in looks)
    return Figure(
        "second-looks",
        "Labels that are probably wrong",
        "Confirmed labels that the model finds implausible, compared with labels set aside at random; the p-value is "
        "the share of those that are as strange, and the list is cut so that at most the stated share of it is "
        "expected to be right.",
        columns(
            "Task",
            "Label has",
            "Model says",
            "Least plausible word",
            "Its label’s probability",
            "P-value",
            number=[4, 5],
        ),
        rows,
        summarise(known, shown=0),
        lead=summarise(known, shown=len(looks)) if looks else "",
        links=tuple(_links(subject, each) for each in looks),
    )


def check(subject: Subject) -> Figure:
    """Show the reference labels that are worth checking."""
    looks, _ = _read(subject, CHECK)
    return Figure(
        "second-looks-check",
        "Reference labels to check first",
        "The strangest labels among those that others are compared with. Correct them in Label Studio, or say that "
        "they are right: every error found here lets the list of probable errors grow. Nothing is promised about "
        "how many of these are wrong.",
        columns("Task", "Label has", "Model says", "Least plausible word", "Its label’s probability", number=[4]),
        tuple(_row(subject, each) for each in looks),
        "None now: either no labels have been compared yet, or the strangest ones have all been checked.",
        links=tuple(_links(subject, each) for each in looks),
    )


def _read(subject: Subject, state: str) -> tuple[list[Look], dict[str, Any]]:
    known = looks_state(subject.session, subject.project, subject.model)
    if subject.model is None:
        return [], known
    return list_looks(subject.session, subject.project.id, model_id=subject.model.id, state=state, limit=SHOWN), known


def _row(subject: Subject, look: Look) -> tuple[Any, ...]:
    evidence = describe_look(look, subject.project)
    word = evidence["word"]["text"]
    shown = word if word is not None else f"characters {evidence['word']['start']} to {evidence['word']['end']}"
    return (
        look.task,
        said_spans(evidence["implausible"]),
        said_spans(evidence["instead"]),
        shown,
        evidence["probability"],
    )


def _links(subject: Subject, look: Look) -> tuple[Link, ...]:
    url = task_url(subject.settings.people_url, subject.project, look.task)
    right = Link(
        "It is right",
        url_for("dashboard.ask", uid=subject.project.uid, action="keep", task=look.task),
        f"The label of task {look.task} is right",
    )
    return (*(() if url is None else (Link("Open", url, f"Open task {look.task} in Label Studio"),)), right)


MAKERS: dict[str, Callable[[Subject], Figure]] = {"second-looks": listed, "second-looks-check": check}
