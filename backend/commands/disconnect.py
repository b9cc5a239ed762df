"""`surespan disconnect`: take back what `surespan connect` did to a Label Studio project."""

from __future__ import annotations

import json

import click

from backend.commands.errors import reported
from backend.commands.server import client_for, label_studio_options, project_option, settings_for, silent


@click.command("disconnect")
@project_option
@label_studio_options
@reported
def command(*, number: int, url: str | None, api_key: str | None, as_json: bool) -> None:
    """Undo what `connect` did to a project: backend, webhook, tabs, instruction, label config, sampling.

    What somebody has changed since stays as it is. Labels, thresholds and predictions stay too.
    """
    from backend.connection.disconnect import disconnect
    from backend.store import open_store

    settings = settings_for(url, api_key)
    with open_store(settings.database_url) as store, client_for(settings) as client:
        done = disconnect(store, client, number, say=silent if as_json else click.echo)
    if as_json:
        click.echo(json.dumps({"project": done.number, "changes": done.changes, "left": done.left}))
        return
    for left in done.left:
        click.echo(f"Note: {left}.")
    if not done.changes:
        click.echo("Nothing to undo: the project was not connected.")
