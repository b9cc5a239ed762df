"""The one thing that a project lead should do next: a pure function of a few facts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from backend.domain.guarantee import Guarantee
from backend.domain.streams import Order


class Where(StrEnum):
    """Where the button of a step leads."""

    ALARMS = "alarms"
    SYNC = "sync"
    SETTINGS = "settings"  # of the project in Label Studio
    LABEL = "label"  # the project's tasks in Label Studio
    REFIT = "refit"
    DECIDE = "decide"  # about acceptance
    ACCEPT = "accept"
    LOOKS = "second-looks"
    REPORT = "report"


@dataclass(frozen=True)
class Facts:
    """What the next step depends on.

    word: what most sets say of themselves. exact: the method promises something at all. missing: labels made without a
    prelabel that own thresholds still need. training: labels that the next model still needs, None where none is
    trained by itself. waits: a level was asked for that no thresholds serve yet. due: a decision about acceptance can
    be made. left: tasks nobody labelled, None while that was never counted.
    """

    word: Guarantee
    order: Order | None
    exact: bool = True
    blank: bool = False
    alarms: int = 0
    labels: int = 0
    missing: int = 0
    training: int | None = None
    waits: bool = False
    due: bool = False
    acceptable: int = 0
    listed: int = 0
    left: int | None = None
    places: int = 0


@dataclass(frozen=True)
class Step:
    """What to do, why, and where its button leads."""

    where: Where
    button: str
    why: str


def next_step(facts: Facts) -> Step:
    """Return the first thing that is missing, in the order in which one makes the next possible.

    >>> next_step(Facts(Guarantee.BORROWED, Order.UNIFORM, missing=40)).button
    'Label 40 more blank tasks'
    """
    if facts.alarms:
        these = "1 alarm is" if facts.alarms == 1 else f"{facts.alarms:,} alarms are"
        return Step(
            Where.ALARMS,
            "Look at the alarm" if facts.alarms == 1 else "Look at the alarms",
            f"{these} not yet marked as seen: what is promised may not hold until you know why.",
        )
    if facts.order is None and facts.labels:
        return Step(
            Where.SYNC,
            "Sync now",
            "In which order tasks are given out is not known, so no label counts: a reconciliation asks Label Studio.",
        )
    if facts.order is Order.SEQUENTIAL:
        return Step(
            Where.SETTINGS,
            "Choose the order of tasks",
            "Tasks are given out in turn, and nobody vouches that they lie in random order, so their labels count for "
            "nothing: choose uniform sampling, or declare the collection shuffled with surespan connect --shuffled.",
        )
    if facts.blank:
        more = "" if facts.training is None else f" {_count(facts.training, 'more')}"
        return Step(
            Where.LABEL,
            f"Label{more or ' a few'} tasks",
            "The model does not know your labels yet; one that does is trained from what you label"
            + (", when somebody asks for it." if facts.training is None else "."),
        )
    if facts.missing:
        return Step(
            Where.LABEL,
            f"Label {_count(facts.missing, 'more blank')} task{'' if facts.missing == 1 else 's'}",
            "Blank tasks show no suggestion on purpose; labels made so are what your own promise rests on.",
        )
    if facts.waits or (facts.exact and facts.word in {Guarantee.NONE, Guarantee.BORROWED}):
        return Step(
            Where.REFIT,
            "Refit now",
            "The level that you asked for is not served yet."
            if facts.waits
            else "There are labels enough for thresholds of your own: they are not fitted yet.",
        )
    return _at_work(facts)


def _at_work(facts: Facts) -> Step:
    """Return the next step of a project that promises something."""
    if facts.acceptable:
        return Step(
            Where.ACCEPT,
            f"Accept {facts.acceptable:,} sure task{'' if facts.acceptable == 1 else 's'}",
            "The decision that stands allows it: nobody needs to open them.",
        )
    if facts.due:
        return Step(
            Where.DECIDE,
            "Decide what could be accepted",
            "There are enough labels for a decision about tasks that nobody needs to open; deciding accepts nothing.",
        )
    if facts.listed:
        return Step(
            Where.LOOKS,
            f"Look again at {facts.listed:,} label{'' if facts.listed == 1 else 's'}",
            "Some labels are probably wrong, and every one that is put right makes the promise sharper.",
        )
    if facts.left == 0:
        return Step(Where.REPORT, "Download the report", "Every task is labelled or accepted: there is nothing left.")
    if facts.left is None:
        return Step(Where.LABEL, "Go on labelling", "Nothing else waits for you.")
    if not facts.places:
        return Step(
            Where.LABEL, "Go on labelling", f"{facts.left:,} tasks are left, none with an amber place known so far."
        )
    return Step(
        Where.LABEL,
        "Go on labelling",
        f"{facts.left:,} tasks are left; {facts.places:,} amber places in them ask for a look.",
    )


def _count(number: int, more: str) -> str:
    return f"{number:,} {more}"
