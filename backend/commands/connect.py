"""`surespan connect`: wire a Label Studio project to this service."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from backend.commands.errors import reported
from backend.commands.server import client_for, label_studio_options, project_option, settings_for, silent
from backend.prediction.remarks import describe_unknown, teach_labels

if TYPE_CHECKING:
    from backend.connection.connect import Connected


@click.command("connect")
@project_option
@label_studio_options
@click.option("--backend-url", help="Address of `surespan serve` as Label Studio sees it. [default: this machine]")
@click.option(
    "--sampling",
    type=click.Choice(["keep", "uniform", "uncertainty"]),
    help="How tasks are given out: at random, least certain first, or as the project has it. [default: ask]",
)
@click.option(
    "--shuffled/--not-shuffled",
    default=None,
    help="Declare that the collection is in random order, so that sequential sampling may calibrate.",
)
@click.option(
    "--random-order",
    is_flag=True,
    help="Declare that the tasks labelled so far were chosen at random, so that their labels may calibrate.",
)
@click.option("--no-flags", is_flag=True, help="Leave the label config alone: doubtful spans are then not marked.")
@click.option("--yes", is_flag=True, help="Answer every question with yes.")
@reported
def command(
    *,
    number: int,
    url: str | None,
    api_key: str | None,
    as_json: bool,
    backend_url: str | None,
    sampling: str | None,
    shuffled: bool | None,
    random_order: bool,
    no_flags: bool,
    yes: bool,
) -> None:
    """Connect a Label Studio project to this service.

    Any labels over a text will do: those that the model knows are predicted from the start, for the others tasks come
    blank until a model has learnt them.

    Checks the label config, offers to add the control that marks doubtful spans, registers the backend under the
    version it answers, sets the webhook's secret, turns prelabeling on, adds tabs and an instruction, and takes in
    the annotations that are there. Doing it again changes nothing.
    """
    from backend.connection.connect import Connector, Wishes
    from backend.intake.reconcile import sync_project
    from backend.models.loading import ModelLoader
    from backend.models.own import model_for
    from backend.store import open_store
    from backend.store.projects import find_project

    settings = settings_for(url, api_key)
    quiet = as_json
    say = silent if quiet else click.echo

    def ask(question: str) -> bool:
        if yes:
            return True
        return False if quiet else click.confirm(question, default=True)

    wishes = Wishes(
        backend_url=backend_url or settings.own_url,
        sampling=sampling,
        shuffled=shuffled,
        random_order=random_order,
        flags=not no_flags,
    )
    with open_store(settings.database_url) as store, client_for(settings) as client:
        with store.read() as session:
            known = find_project(session, str(number))
            header = ModelLoader(settings).header() if known is None else model_for(session, known, settings=settings)
        classes = header.classes
        done = Connector(settings, store, client, ask=ask, say=say).connect(number, wishes, classes=classes)
        synced = sync_project(store, client, done.project, settings=settings, classes=classes, full=True)
    if as_json:
        click.echo(json.dumps(_as_dict(done) | {"sync": synced.as_dict()}))
        return
    _echo(done)
    if synced.brought_in:
        evidence = "they may calibrate" if random_order else "tasks labelled before they were drawn do not calibrate"
        click.echo(f"Took in {synced.brought_in} existing annotations; {evidence}.")


def _echo(done: Connected) -> None:
    target = done.target
    if not target.blank:
        labels = ", ".join(f"{name} → {label}" for name, label in target.labels.items())
        click.echo(f"Classes of the model and their labels, predicted from the start: {labels}.")
    if target.blank or target.unknown:
        said = describe_unknown(target.unknown, blank=target.blank)
        click.echo(f"{said} {teach_labels(done.number)}")
    if done.folded and not target.blank:
        click.echo(f"Not suggested, because this project has no label for them: {', '.join(done.folded)}.")
    for note in done.notes:
        click.echo(f"Note: {note}.")
    if not done.changes:
        click.echo(f"Project {done.number} was connected already; nothing was changed ({done.version}).")
    else:
        click.echo(f"Project {done.number} is connected; predictions carry the version {done.version}.")


def _as_dict(done: Connected) -> dict[str, Any]:
    return {
        "project": done.number,
        "uid": done.project.uid,
        "model_version": done.version,
        "labels": dict(done.target.labels),
        "unknown": list(done.target.unknown),
        "folded": list(done.folded),
        "flag": done.target.flag is not None,
        "changes": done.changes,
        "notes": done.notes,
    }
