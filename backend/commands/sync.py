"""`surespan sync`: reconcile annotations with Label Studio now."""

from __future__ import annotations

import json

import click

from backend.commands.errors import reported
from backend.commands.server import client_for, label_studio_options, settings_for
from backend.errors import LabelStudioError, NotFound
from backend.settings import Settings


@click.command("sync")
@click.option("--project", "number", type=click.IntRange(min=1), help="Number of the project. [default: all connected]")
@label_studio_options
@click.option("--dead", is_flag=True, help="Instead, retry what failed for good: events, labels, jobs.")
@reported
def command(*, number: int | None, url: str | None, api_key: str | None, as_json: bool, dead: bool) -> None:
    """Bring in what Label Studio's webhooks did not deliver: annotations, edits, deletions.

    What is found is put into the inbox, where the service or `surespan worker` takes it from. With --dead nothing is
    asked of Label Studio: events, labels and jobs that were set aside after several failures are tried again as they
    came.
    """
    from backend.intake.reconcile import sync_project
    from backend.models.own import model_for
    from backend.store import open_store
    from backend.store.projects import find_project, list_projects

    settings = settings_for(url, api_key)
    if dead:
        _replay(settings, number, as_json=as_json)
        return
    with open_store(settings.database_url) as store, client_for(settings) as client:
        with store.read() as session:
            if number is None:
                projects = [each for each in list_projects(session) if each.key.isdigit()]
            else:
                project = find_project(session, str(number))
                if project is None:
                    raise NotFound(
                        f"expected a connected project, got {number}: run `surespan connect --project {number}`"
                    )
                projects = [project]
        reports, failed = [], []
        for each in projects:
            with store.read() as session:
                classes = model_for(session, each, settings=settings).classes
            try:
                reports.append(sync_project(store, client, each, settings=settings, classes=classes, full=True))
            except LabelStudioError as error:
                failed.append(f"project {each.uid}: {error}")
    if as_json:
        click.echo(json.dumps({"projects": [each.as_dict() for each in reports], "errors": failed}))
    elif not projects:
        click.echo("No project is connected: run `surespan connect --project N`.")
    for done in [] if as_json else reports:
        counts = done.counts
        click.echo(
            f"Project {done.project}: looked at {counts.looked_at} tasks; {counts.brought_in} annotations brought in, "
            f"{counts.deleted} deleted, {counts.unchanged} unchanged; {counts.edited_tasks} tasks edited, "
            f"{counts.deleted_tasks} deleted."
        )
        if counts.waiting:
            click.echo(f"{counts.waiting} changes are already waiting in the inbox: is a worker running?")
    if failed:
        raise click.ClickException("\n".join(failed))


def _replay(settings: Settings, number: int | None, *, as_json: bool) -> None:
    from backend.store import open_store
    from backend.store.aside import retry_aside

    key = None if number is None else str(number)
    with open_store(settings.database_url) as store:
        again = store.run(lambda session: retry_aside(session, project_key=key))
    if as_json:
        click.echo(json.dumps({"replayed": again["event"], "labels": again["label"], "jobs": again["job"]}))
        return
    events, labels, jobs = again["event"], again["label"], again["job"]
    if events:
        click.echo(
            f"{events} event{' waits' if events == 1 else 's wait'} again; the worker takes them from the inbox."
        )
    if labels:
        click.echo(f"{labels} label{' is' if labels == 1 else 's are'} scored again within five minutes by the worker.")
    if jobs:
        click.echo(f"{jobs} job{' waits' if jobs == 1 else 's wait'} again for the worker.")
    if not any(again.values()):
        click.echo("There are no dead events, no labels that were set aside and no failed jobs.")
