"""The tabs below a project's summary: which figures each shows, under which headings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from werkzeug.exceptions import NotFound

from backend.dashboard import acceptance, coverage, flag_risk, models, operations, second_looks, worth
from backend.dashboard.figures import Figure
from backend.dashboard.subject import Subject

MAKERS: dict[str, Callable[[Subject], Figure]] = {
    **acceptance.MAKERS,
    **coverage.MAKERS,
    **flag_risk.MAKERS,
    **operations.MAKERS,
    **models.MAKERS,
    **second_looks.MAKERS,
    **worth.MAKERS,
}


@dataclass(frozen=True)
class Section:
    """A heading with its figures, by their names."""

    anchor: str
    heading: str
    figures: tuple[str, ...]


@dataclass(frozen=True)
class Tab:
    """A page of details. `by_days`: what it shows is of the last days; `with_model`: it ends with the model's card."""

    name: str
    title: str
    sections: tuple[Section, ...]
    by_days: bool = False
    with_model: bool = False


TABS = (
    Tab(
        "worth",
        "What it is worth",
        (
            Section("accuracy", "How good are the prelabels?", ("accuracy", "agreement")),
            Section("saving", "What did they save?", ("saving", "edits")),
        ),
    ),
    Tab(
        "work",
        "What is left",
        (
            Section("left", "How far is the end?", ("left", "to-the-end", "milestones")),
            Section("queue", "What to look at next", ("queue", "disagreements")),
            Section("acceptance", "What nobody needs to open", ("acceptance",)),
            Section("second-looks", "What to look at again", ("second-looks", "second-looks-check")),
        ),
    ),
    Tab(
        "promise",
        "The promise",
        (
            Section("alarms", "Alarms", ("alarms",)),
            Section(
                "coverage",
                "Is the guarantee holding?",
                (
                    "coverage-over-time",
                    "coverage-by-language",
                    "coverage-by-length",
                    "coverage-by-class",
                    "coverage-by-guarantee",
                    "coverage-of-shown",
                    "coverage-of-documents",
                ),
            ),
            Section("sets", "How large are the sets?", ("set-sizes",)),
            Section("flags", "What may be left alone?", ("flag-promise", "flags")),
        ),
        by_days=True,
    ),
    Tab(
        "thresholds",
        "Labels and thresholds",
        (
            Section("evidence", "What thresholds rest on", ("evidence", "anchoring-gap", "drift")),
            Section("thresholds", "Thresholds", ("thresholds", "pools", "activations")),
        ),
    ),
    Tab(
        "running",
        "Models and jobs",
        (
            Section("models", "Models", ("labels", "learning", "models")),
            Section("loop", "How the loop runs", ("inbox", "jobs", "reconciliation")),
            Section("actions", "What people did", ("actions",)),
        ),
        with_model=True,
    ),
)


def find_tab(name: str) -> Tab:
    """Return the tab with this name, the first one where there is none."""
    return next((tab for tab in TABS if tab.name == name), TABS[0])


def figures_of(subject: Subject, tab: Tab) -> list[tuple[Section, list[Figure]]]:
    """Return the figures of a tab under their headings."""
    return [(section, [MAKERS[name](subject) for name in section.figures]) for section in tab.sections]


def make_figure(subject: Subject, name: str) -> Figure:
    """Return a figure by its name.

    Raises:
        NotFound: when there is no such figure.
    """
    if name not in MAKERS:
        raise NotFound
    return MAKERS[name](subject)
