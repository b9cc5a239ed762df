"""`surespan models`: the models of a project, and which one serves it."""

from __future__ import annotations

import json
from typing import Any

import click

from backend.commands.errors import reported
from backend.errors import NotFound
from backend.settings import load_settings


@click.command("models")
@click.option("--project", "key", required=True, help="Id of a Label Studio project.")
@click.option(
    "--promote",
    "chosen",
    metavar="HASH",
    help="Let this model serve from now on, or go back to it; the first characters of its hash are enough.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@reported
def command(*, key: str, chosen: str | None, as_json: bool) -> None:
    """List the models that were trained for a project, the newest first, and which one serves it.

    A running service serves a promoted model within seconds, without a restart; its worker scores the labels under it
    and brings Label Studio up to date.
    """
    from backend.calibration.promotion import promote
    from backend.models.report import models_report
    from backend.store import open_store
    from backend.store.project_models import match_model
    from backend.store.projects import find_project, list_projects

    settings = load_settings()
    with open_store(settings.database_url) as store:
        with store.read() as session:
            project = find_project(session, key)
            known = ", ".join(each.uid for each in list_projects(session)[-20:]) or "none"
        if project is None:
            raise NotFound(f"expected a project of this database, got {key!r}; known: {known}")
        if chosen is not None:
            with store.write() as session:
                model = match_model(session, project.id, chosen)
                promote(
                    session,
                    project,
                    model.model_hash,
                    settings=settings,
                    who="command line",
                    why="asked for on the command line",
                )
        with store.read() as session:
            report = models_report(session, project, settings=settings)
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
        return
    for each in report["models"]:
        click.echo(_line(each))
        for remark in (each["why"], each["licence"], "" if each["can_serve"] else "its file is gone: train again"):
            if remark:
                click.echo(f"    {remark}")
    if report["serving"] is None:
        base = report["base"]
        said = f"; it {base['licence']}" if base["licence"] else ""
        click.echo(f"Project {project.uid} has no model of its own: {base['model']} serves it{said}.")


def _line(model: dict[str, Any]) -> str:
    figures = ", ".join(f"{name} {value:.3g}" for name, value in model["figures"].items() if isinstance(value, float))
    made = str(model["created_at"])[:16].replace("T", " ")
    learnt = f"{model['labels']:,} labels, base {model['base'][:12]}, by {model['asked_by'] or 'nobody'}"
    classes = ", ".join(model["classes"])
    return f"{model['version']:<24} {model['state']:<10} {made}  {learnt}: {classes}{'; ' + figures if figures else ''}"
