"""The panel of acceptance, and what is asked before something is accepted or taken back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flask import url_for
from sqlalchemy.orm import Session

from backend.acceptance.decision import Wish
from backend.acceptance.report import acceptance_report, default_wish
from backend.dashboard.figures import Figure, Link, columns
from backend.dashboard.subject import Subject
from backend.jobs.kinds import queue_accept, queue_withdraw
from backend.labelstudio.payloads import InvalidPayload
from backend.store.acceptance import PLANNED, SENT, TAKEN_BACK, count_accepted, list_acceptances
from conformal.errors import InvalidArgument
from conformal.risk.acceptance import Promise

ACCEPT, PREVIEW, WITHDRAW = "accept", "preview", "withdraw"


def decisions(subject: Subject) -> Figure:
    """Show the decisions of a project and what was accepted on each."""
    session, project = subject.session, subject.project
    report = acceptance_report(session, project, subject.model, settings=subject.settings, count=False)
    counts = count_accepted(session, project.id)
    found = list_acceptances(session, project.id)[::-1]
    link = Link(
        "Take back", url_for("dashboard.ask", uid=project.uid, action=WITHDRAW), "Take back what was accepted untouched"
    )
    return Figure(
        "acceptance",
        "Tasks accepted without opening them",
        "Each decision rests on labels made without a prediction in view and is made once, at 125, 250, 500, ... of "
        "them or after a change of model. Only tasks without a flag are accepted, never blind ones, and what was "
        "accepted is no evidence.",
        columns(
            "Decision",
            "Made",
            "Errors allowed",
            "Of",
            "Blind labels",
            "Tasks up to its level",
            "Proven",
            "Accepted",
            "Taken back",
            "Withdrawn because",
            count=[0, 4, 7, 8],
            share=[5, 6],
            time=[1],
        ),
        tuple(
            (
                each.number,
                each.decided_at,
                each.max_error,
                each.promise,
                each.labels,
                each.share if each.level is not None else 0.0,
                each.bound,
                counts.get(each.id, {}).get(SENT, 0) + counts.get(each.id, {}).get(PLANNED, 0),
                counts.get(each.id, {}).get(TAKEN_BACK, 0),
                each.withdrawn_why or each.why or None,
            )
            for each in found
        ),
        f"No decision has been made: {report['missing']}. Ask for one with “Accept sure tasks” under Other actions.",
        lead=f"{report['promise']} {report['missing'][:1].upper()}{report['missing'][1:]}." if found else "",
        links=tuple(link if each.acted_at and not each.withdrawn_at else None for each in found),
    )


def acceptance_question(
    subject: Subject, action: str, given: Mapping[str, str]
) -> tuple[str, tuple[str, ...], str, dict[str, str]]:
    """Return title, explanation, button and fields of what is asked.

    Raises:
        InvalidPayload: when the share is not a number between 0 and 1.
    """
    name = subject.name
    if action == WITHDRAW:
        gone = (
            "Nothing more is accepted, and every annotation of acceptance that nobody has touched is deleted in Label "
            "Studio; its task waits for a person again. What somebody edited, reviewed or began stays."
        )
        race = "Each annotation is read again just before it is deleted; an edit in that very moment would be lost."
        return f"Take back what was accepted in {name}?", (gone, race), "Take back", {}
    wish = read_wish(subject, given)
    report = acceptance_report(subject.session, subject.project, subject.model, settings=subject.settings, wish=wish)
    decision = report["decision"]
    shown = decision["summary"] if decision else "No decision has been made for this yet."
    due = "A decision is due and is made first. " if report["due"] else ""
    now = f"{report['acceptable']:,} of the tasks left can be accepted now; {report['accepted']:,} are."
    what = (
        "The best labeling of each becomes an annotation by the service's own account, in a tab “Accepted”. Tasks "
        "with a flag, a draft, a skip or a lease are left alone, and blind ones always."
    )
    sentences = (
        str(shown),
        f"{now} For more, {report['missing']}.",
        f"{due}{report['promise']} It holds if labels were made blind and the texts stay alike.",
        what,
    )
    fields = {"max_error": wish.max_error, "of": wish.promise.value}
    if action == PREVIEW:
        return f"Decide what could be accepted in {name}, and accept nothing?", sentences[:3], "Decide", fields
    return f"Accept sure tasks of {name} ({wish.max_error} of {wish.promise.value})?", sentences, "Accept", fields


def queue_acceptance(
    session: Session, subject: Subject, action: str, *, given: Mapping[str, str], who: str
) -> dict[str, Any]:
    """Queue what was asked for, and return what is recorded of it."""
    if action == WITHDRAW:
        return {"job": queue_withdraw(session, subject.project, reason=f"asked for by {who}")}
    wish = read_wish(subject, given)
    asked = {"max_error": wish.max_error, "of": wish.promise.value}
    job = queue_accept(
        session,
        subject.project,
        max_error=wish.max_error,
        promise=wish.promise.value,
        who=who,
        dry_run=action == PREVIEW,
    )
    return asked | {"job": job}


def read_wish(subject: Subject, given: Mapping[str, str]) -> Wish:
    """Return what a form wishes for; what it does not say is as last time.

    Raises:
        InvalidPayload: when the share is not a number between 0 and 1, or `of` is neither word.
    """
    last = default_wish(subject.session, subject.project.id)
    share, of = given.get("max_error", last.max_error), given.get("of", last.promise.value)
    try:
        if len(share) > 20:
            raise InvalidArgument("")  # noqa: TRY301 - said below
        return Wish(share, Promise(of))
    except (InvalidArgument, ValueError):
        raise InvalidPayload(
            "a number between 0 and 1, of all tasks or of the accepted ones", "something else"
        ) from None


MAKERS: dict[str, Callable[[Subject], Figure]] = {"acceptance": decisions}
