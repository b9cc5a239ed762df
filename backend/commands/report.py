"""`surespan report`: what a project's prelabels are worth, as one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backend.commands.errors import reported
from backend.errors import NotFound
from backend.settings import load_settings

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from backend.dashboard.subject import Subject
    from backend.serving.service import Service


@click.command("report")
@click.option("--project", "key", required=True, help="Id or uid of a project.")
@click.option(
    "--out",
    default="report.html",
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="The file to write.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object, and write no file.")
@reported
def command(*, key: str, out: Path, as_json: bool) -> None:
    """Measure what a project's prelabels are worth, and write its page as one file.

    How good they are, what they saved, how far the end is, and whether the promise is kept: tables and charts, light
    and dark, with nothing that is loaded from elsewhere and no text of a task. The model is not loaded.
    """
    from backend.app import create_app, service_of
    from backend.dashboard.report import write_report

    app = create_app(load_settings(), start=False)
    try:
        service = service_of(app)
        with app.test_request_context(), service.reads.read() as session:
            subject = _subject(service, session, key)
            if as_json:
                click.echo(json.dumps(subject.worth, ensure_ascii=False))
                return
            page = write_report(subject)
    finally:
        service_of(app).close()
    out.write_text(page, encoding="utf-8")
    click.echo(f"{out} is written: {len(page.encode()) // 1000:,} kB, to be opened in any browser.")


def _subject(service: Service, session: Session, key: str) -> Subject:
    from backend.dashboard.subject import find_subject
    from backend.store.projects import list_projects

    try:
        subject = find_subject(service, session, key)
    except NotFound:
        known = ", ".join(each.uid for each in list_projects(session)[-20:]) or "none"
        raise NotFound(f"expected a project of this database, got {key!r}; known: {known}") from None
    subject.measured = _measure(service, session, subject)
    return subject


def _measure(service: Service, session: Session, subject: Subject) -> dict[str, Any] | None:
    """Return fresh figures; None where the model has nothing to say of the project."""
    from backend.store.engine import database_now
    from backend.worth.measure import measure

    header, model, config = subject.header, subject.model, subject.project.label_config
    if header is None or model is None or config is None or subject.blank:
        return None
    target = service.views.target(config, header.classes)
    found = measure(session, subject.project, model, target=target, settings=service.settings)
    return found | {"at": database_now(session).isoformat()}
