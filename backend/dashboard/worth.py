"""The panels of what prelabels are worth: how good, what they saved, how far to go. All from one kept record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from backend.dashboard.charts import Chart, Estimate, count_chart, interval_chart, stacked_chart
from backend.dashboard.figures import Figure, columns
from backend.dashboard.subject import Subject
from conformal.estimates import LEAST_LABELS

_NOT_YET = "Not measured yet: the worker does it minutes after the first labels, and again as they come."
_BLIND, _NAIVE = "From blind labels", "Naive, from assisted labels"
_SCOPES = {"all": "all", "label": "label", "language": "language"}
_ACTIONS = ("kept", "relabelled", "moved", "deleted")
_HOUR = 3600.0


def accuracy(subject: Subject) -> Figure:
    """Show precision, recall and F1 of the best labelings over the collection."""
    found: Sequence[Mapping[str, Any]] = subject.worth["accuracy"] or ()
    rows = tuple(
        (
            _SCOPES[each["scope"]],
            each["name"] or "all entities",
            each["labels"],
            *_three(each["f1"]),
            *_three(each["precision"]),
            *_three(each["recall"]),
            each["naive_f1"],
            each["gap_f1"],
            each["missing"],
        )
        for each in found
    )
    groups: dict[str, list[Estimate]] = {_BLIND: [], _NAIVE: []}
    for each in found:
        if each["f1"] is not None:
            name = each["name"] or "all entities"
            groups[_BLIND].append(Estimate(name, *each["f1"]))
            if each["naive_f1"] is not None:
                groups[_NAIVE].append(Estimate(name, each["naive_f1"], each["naive_f1"], each["naive_f1"]))
    return Figure(
        "accuracy",
        "How good the prelabels are",
        "Of the likeliest labeling, over the whole collection: labels made without a prelabel, corrected by what the "
        "model expects of all tasks, with 95 % intervals. The naive figure counts labels that were made with the "
        "prelabel in view, where people leave errors standing; the gap is how much better that looks.",
        columns(
            "Of what",
            "Name",
            "Blind labels",
            "F1",
            "F1 from",
            "F1 to",
            "Precision",
            "Precision from",
            "Precision to",
            "Recall",
            "Recall from",
            "Recall to",
            "Naive F1",
            "Gap",
            "Labels missing",
            count=[2, 14],
            share=list(range(3, 14)),
        ),
        rows,
        _NOT_YET,
        chart=interval_chart(groups, target=None, roles={_BLIND: "first", _NAIVE: "second"})
        if groups[_BLIND]
        else None,
        lead=describe_accuracy(found),
    )


def describe_accuracy(found: Sequence[Mapping[str, Any]]) -> str:
    """Say how good the prelabels are, or how many labels are missing to say it."""
    if not found:
        return ""
    total = found[0]
    if total["f1"] is None and not total["missing"]:
        return f"No entity was labelled or predicted in {total['labels']:,} blind labels: there is nothing to measure."
    if total["f1"] is None:
        return (
            f"Not known yet: it takes {LEAST_LABELS} labels made without a prelabel, and there are "
            f"{total['labels']:,}; {total['missing']:,} are missing."
        )
    f1, precision, recall = (_interval(total[name]) for name in ("f1", "precision", "recall"))
    said = f"F1 is {f1}, precision {precision}, recall {recall}."
    if total["gap_f1"] is not None:
        better = "better" if total["gap_f1"] > 0 else "worse"
        said += (
            f" Assisted labels alone would say {100 * total['naive_f1']:.1f} %, "
            f"{100 * abs(total['gap_f1']):.1f} points {better}."
        )
    return said


def saving(subject: Subject) -> Figure:
    """Show the time of tasks with and without a prelabel."""
    found: Mapping[str, Any] = subject.worth["saving"] or {}
    total = found.get("total")
    rows = tuple(_saved(each, who) for each, who in _of_people(subject, total, found.get("people", [])))
    return Figure(
        "saving",
        "What prelabels save",
        "Blind tasks are drawn by lot, so the difference is the prelabel's. First submissions under a random order, "
        "before anything was accepted; each person under one model compared with themselves, a time above "
        f"{found.get('cap', 600):g} s counted as that. The interval comes from drawing the lot again.",
        columns(
            "Who",
            "Blind tasks",
            "Assisted tasks",
            "Seconds blind",
            "Seconds assisted",
            "An entity, blind",
            "An entity, assisted",
            "Saved",
            "95 % from",
            "95 % to",
            "Verdict",
            count=[1, 2],
            number=[3, 4, 5, 6],
            share=[7, 8, 9],
        ),
        rows,
        "Nothing to compare yet: it takes tasks with and without a prelabel, labelled by the same person in a random "
        "order, with the time that Label Studio keeps. About 100 blind tasks find a saving of 20 % in three of four "
        "projects." + _left_out(found),
        chart=_seconds_chart(total),
        lead=describe_saving(found),
    )


def _seconds_chart(total: Mapping[str, Any] | None) -> Chart | None:
    if total is None:
        return None
    means = {"Without a prelabel": round(total["blind_seconds"]), "With": round(total["assisted_seconds"])}
    chart = count_chart(means)
    return None if chart is None else replace(chart, note="Seconds a task, on average.")


def describe_saving(found: Mapping[str, Any]) -> str:
    """Say what was saved, as plainly where it is nothing or less."""
    total = found.get("total")
    if not total:
        return ""
    saved, low, high = 1 - total["ratio"], 1 - total["high"], 1 - total["low"]
    spoken = f"{100 * low:.0f} to {100 * high:.0f} %"
    rests = f"from {total['blind']:,} blind and {total['assisted']:,} assisted tasks"
    if total["verdict"] == "saves":
        return f"A prelabel saves {100 * saved:.0f} % of a task's time ({spoken}), {rests}."
    if total["verdict"] == "slower":
        return f"Slower with prelabels: a task takes {-100 * saved:.0f} % longer ({spoken} saved), {rests}."
    return f"Not significant: a saving of {100 * saved:.0f} % ({spoken}) may be chance, {rests}."


def edits(subject: Subject) -> Figure:
    """Show what people did to what was served."""
    found: Mapping[str, Any] = subject.worth["edits"] or {}
    people = [] if not found.get("tasks") else list(_of_people(subject, found, found["people"]))
    rows = tuple(
        (
            who,
            each["tasks"],
            each["untouched"] / each["tasks"],
            *(each[name] for name in (*_ACTIONS, "added")),
        )
        for each, who in people
    )
    shares = {name: [_of_served(each, name) for each, _ in people] for name in _ACTIONS}
    return Figure(
        "edits",
        "What was done to prelabels",
        "From the likeliest labeling as it was served to the first submission. Moved: one span became another that "
        "overlaps it. Somebody who keeps much more than others may not be looking.",
        columns(
            "Who",
            "Tasks",
            "Submitted as served",
            "Kept",
            "Relabelled",
            "Moved",
            "Deleted",
            "Added",
            count=[1, 3, 4, 5, 6, 7],
            share=[2],
        ),
        rows,
        "Nobody has submitted a task with a prelabel in view yet." if subject.worth["measured_at"] else _NOT_YET,
        chart=stacked_chart(shares, [who for _, who in people]) if any(any(each) for each in shares.values()) else None,
    )


def agreement(subject: Subject) -> Figure:
    """Show how far people agree who labelled the same tasks."""
    found: Mapping[str, Any] = subject.worth["agreement"] or {}
    some = (found["tasks"], found["pairs"], found["exact"], found["overlapping"], found["alpha"]) if found else None
    return Figure(
        "agreement",
        "Agreement between annotators",
        "Over pairs of people who labelled the same task: F1 of spans that are the same to the character, and of those "
        "with the same label that overlap; Krippendorff's alpha over words is 0 where they agree as by chance and 1 "
        "where always. No model can agree with people better than they do with each other.",
        columns(
            "Tasks",
            "Pairs of people",
            "Same spans",
            "Overlapping spans",
            "Alpha",
            count=[0, 1],
            share=[2, 3],
            number=[4],
        ),
        (some,) if some is not None and some[0] else (),
        "No task was labelled by two people yet." if subject.worth["measured_at"] else _NOT_YET,
    )


def left(subject: Subject) -> Figure:
    """Show the tasks of the collection by what they still need."""
    found: Mapping[str, Any] = subject.worth["left"] or {}
    parts: dict[str, int] = {}
    if found.get("tasks"):
        parts = {
            "Labelled, skipped or accepted": found["tasks"] - found["left"],
            "To be labelled blank": found["blind"],
            "With amber places to look at": found["with_places"],
            "Without an amber place": found["without_places"],
        }
    about = (
        "" if not found or found.get("sampled") is None else f" Counted on {found['sampled']:,} tasks drawn at random."
    )
    return Figure(
        "left",
        "Tasks by what they need",
        f"All that are done or that the model was asked about. Blank ones have to be read from end to end.{about}",
        columns("Tasks", "Number", count=[1]),
        tuple(parts.items()),
        "The model has not been asked about any task yet." if subject.worth["measured_at"] else _NOT_YET,
        chart=count_chart(parts),
        lead=describe_left(found),
    )


def describe_left(found: Mapping[str, Any]) -> str:
    """Say how much is left."""
    if not found or not found.get("tasks"):
        return ""
    if not found["left"]:
        return "Nothing is left."
    ready = found.get("acceptable")
    said = f"{found['left']:,} of {found['tasks']:,} tasks are left, with {found['places']:,} amber places to look at."
    return f"{said} {ready:,} could be accepted now." if ready else said


def to_the_end(subject: Subject) -> Figure:
    """Show the work that is left, and the errors that stay if all stop today."""
    found: Mapping[str, Any] = subject.worth["left"] or {}
    rows = []
    if found.get("seconds"):
        said = found["seconds"]
        rows.append(
            ("Hours of work, if every task is opened", *(said[name] / _HOUR for name in ("total", "low", "high")))
        )
    if found.get("errors"):
        said = found["errors"]
        words = "Errors left if you stopped today" + ("" if said["corrected"] else ", as the model itself expects")
        rows.append((words, said["value"], said["low"], said["high"]))
    return Figure(
        "to-the-end",
        "Until the end, and if you stopped today",
        "The work is that of the newest submissions, the interval that of what is still to come. Errors are missing "
        "and false entities in the tasks that are left, if their prelabels were taken as they are; without an interval "
        "the model's own expectation, which nobody has checked. Only while people get tasks in a random order and "
        "nothing was accepted is what is left like what was seen: otherwise no time is forecast.",
        columns("What", "Expected", "95 % from", "95 % to", number=[1, 2, 3]),
        tuple(rows),
        "Nothing can be said of the rest yet." if subject.worth["measured_at"] else _NOT_YET,
        lead=describe_work(found),
    )


def describe_work(found: Mapping[str, Any]) -> str:
    """Say how long it will take."""
    said = found.get("seconds") if found else None
    if not said:
        return ""
    total, low, high = (said[name] / _HOUR for name in ("total", "low", "high"))
    return f"About {_hours(total)} of work ({_hours(low)} to {_hours(high)})."


def next_labels(subject: Subject) -> Figure:
    """Show what comes with how many more labels."""
    return Figure(
        "milestones",
        "What comes with more labels",
        "Decided by counts alone. How many labels an estimate needs does not depend on what they say.",
        columns("What", "Of", "There are", "It takes", "Missing", count=[2, 3, 4]),
        tuple(
            (each["title"], each["of"], each["has"], each["needs"], each["missing"])
            for each in subject.worth["milestones"]
        ),
        "",
    )


def _three(values: Sequence[float] | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if values is None else (values[0], values[1], values[2])


def _interval(values: Sequence[float]) -> str:
    value, low, high = (100 * each for each in values)
    return f"{value:.1f} % ({low:.1f} to {high:.1f} %)"


def _of_people(
    subject: Subject, total: Mapping[str, Any] | None, people: Sequence[Mapping[str, Any]]
) -> list[tuple[Mapping[str, Any], str]]:
    """Return the figures of all, then those of each person where there are several and they may be shown."""
    if total is None:
        return []
    several = people if subject.people and len(people) > 1 else ()
    return [(total, "all"), *((each, f"annotator {each['person'] or 'unknown'}") for each in several)]


def _saved(each: Mapping[str, Any], who: str) -> tuple[Any, ...]:
    return (
        who,
        each["blind"],
        each["assisted"],
        each["blind_seconds"],
        each["assisted_seconds"],
        each["blind_seconds_an_entity"],
        each["assisted_seconds_an_entity"],
        1 - each["ratio"],
        1 - each["high"],
        1 - each["low"],
        "slower with prelabels" if each["verdict"] == "slower" else each["verdict"],
    )


def _of_served(each: Mapping[str, Any], name: str) -> float:
    served = sum(each[part] for part in _ACTIONS)
    return each[name] / served if served else 0.0


def _left_out(found: Mapping[str, Any]) -> str:
    known: Mapping[str, int] = found.get("left_out") or {}
    said = [f"{count:,} {_WHY[name]}" for name, count in known.items() if name in _WHY]
    return f" Left out so far: {', '.join(said)}." if said else ""


def _hours(hours: float) -> str:
    """Write a time.

    >>> _hours(0.25), _hours(12.34)
    ('15 min', '12.3 h')
    """
    return f"{60 * hours:.0f} min" if hours < 1 else f"{hours:.1f} h"


_WHY = {
    "order": "made in another order, or after tasks were accepted",
    "no time": "without a time",
    "skipped": "skipped",
    "not drawn": "of tasks without a draw",
    "not served": "of tasks that nothing was served for",
    "nothing to show": "of tasks that the model had nothing to show for",
}
MAKERS: dict[str, Callable[[Subject], Figure]] = {
    "accuracy": accuracy,
    "saving": saving,
    "edits": edits,
    "agreement": agreement,
    "left": left,
    "to-the-end": to_the_end,
    "milestones": next_labels,
}
