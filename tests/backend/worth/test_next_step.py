"""What to do next, case by case: the first thing that is missing, and only that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.domain.guarantee import Guarantee
from backend.domain.streams import Order
from backend.worth.next_step import Facts, Where, next_step

# A project that promises something and has work left; each case changes what it says.
AT_WORK = Facts(Guarantee.OWN, Order.UNIFORM, labels=400, left=120, places=40)


@pytest.mark.parametrize(
    ("changes", "where", "button"),
    [
        ({}, Where.LABEL, "Go on labelling"),
        ({"alarms": 1}, Where.ALARMS, "Look at the alarm"),
        ({"alarms": 3, "missing": 9, "order": None}, Where.ALARMS, "Look at the alarms"),
        ({"order": None}, Where.SYNC, "Sync now"),
        ({"order": None, "labels": 0, "missing": 100}, Where.LABEL, "Label 100 more blank tasks"),
        ({"order": Order.SEQUENTIAL, "missing": 100}, Where.SETTINGS, "Choose the order of tasks"),
        ({"blank": True, "training": 8, "missing": 100}, Where.LABEL, "Label 8 more tasks"),
        ({"blank": True, "training": None}, Where.LABEL, "Label a few tasks"),
        ({"missing": 1, "word": Guarantee.BORROWED}, Where.LABEL, "Label 1 more blank task"),
        ({"missing": 2_000, "acceptable": 5}, Where.LABEL, "Label 2,000 more blank tasks"),
        ({"word": Guarantee.BORROWED}, Where.REFIT, "Refit now"),
        ({"word": Guarantee.NONE, "due": True}, Where.REFIT, "Refit now"),
        ({"word": Guarantee.NONE, "exact": False}, Where.LABEL, "Go on labelling"),
        ({"waits": True, "acceptable": 5}, Where.REFIT, "Refit now"),
        ({"word": Guarantee.ASSISTED}, Where.LABEL, "Go on labelling"),
        ({"acceptable": 1, "due": True, "listed": 4}, Where.ACCEPT, "Accept 1 sure task"),
        ({"acceptable": 1_250}, Where.ACCEPT, "Accept 1,250 sure tasks"),
        ({"due": True, "listed": 4}, Where.DECIDE, "Decide what could be accepted"),
        ({"listed": 1}, Where.LOOKS, "Look again at 1 label"),
        ({"listed": 4, "left": 0}, Where.LOOKS, "Look again at 4 labels"),
        ({"left": 0, "places": 0}, Where.REPORT, "Download the report"),
        ({"left": None}, Where.LABEL, "Go on labelling"),
        ({"order": Order.REVIEW, "places": 0}, Where.LABEL, "Go on labelling"),
        ({"order": Order.SHUFFLED, "missing": 3}, Where.LABEL, "Label 3 more blank tasks"),
    ],
)
def test_one_step_at_a_time(changes: dict[str, object], where: Where, button: str) -> None:
    step = next_step(replace(AT_WORK, **changes))  # type: ignore[arg-type]
    assert (step.where, step.button) == (where, button)
    assert step.why.endswith(".")


def test_nothing_is_said_to_learn_that_does_not() -> None:
    blank = replace(AT_WORK, blank=True)
    assert "when somebody asks for it" in next_step(blank).why
    assert "when somebody" not in next_step(replace(blank, training=8)).why


def test_the_reason_names_the_figures() -> None:
    assert next_step(AT_WORK).why == "120 tasks are left; 40 amber places in them ask for a look."
    assert "120 tasks are left, none with an amber place" in next_step(replace(AT_WORK, places=0)).why
