"""A project's page as one file that needs nothing else: for somebody who has no account here."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from flask import render_template

from backend import __version__
from backend.dashboard.state import model_card, order_sentence
from backend.dashboard.subject import Subject
from backend.dashboard.summary import summarise
from backend.dashboard.tabs import TABS, figures_of

STYLE = Path(__file__).parent / "static" / "style.css"
# Queues and jobs are of the moment, and a file is read later.
PARTS = ("worth", "work", "promise")
LEFT_OUT = {"queue", "second-looks", "second-looks-check"}


def write_report(subject: Subject) -> str:
    """Return the file: what the page shows of worth, work and promise, tables and charts, with its style inside."""
    parts = []
    for tab in TABS:
        if tab.name in PARTS:
            found = figures_of(subject, tab)
            kept = [(section, [each for each in figures if each.name not in LEFT_OUT]) for section, figures in found]
            parts += [(section, figures) for section, figures in kept if any(each.rows for each in figures)]
    return render_template(
        "report.html",
        subject=subject,
        summary=summarise(subject),
        order=order_sentence(subject),
        card=model_card(subject),
        parts=parts,
        style=STYLE.read_text(encoding="utf-8"),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        release=__version__,
    )
