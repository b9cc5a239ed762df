"""`surespan accept`: the tasks that nobody needs to open."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from backend.commands.errors import reported
from backend.commands.server import project_option
from backend.errors import NotFound
from backend.settings import Settings, load_settings

if TYPE_CHECKING:
    from backend.acceptance.decision import Wish
    from backend.domain.records import JobRecord, ProjectRecord
    from backend.store import Store

_LOOK = 0.5  # seconds between two looks at the job
_PATIENCE = 30.0  # seconds until it is said that nobody has taken it


@click.command("accept")
@project_option
@click.option(
    "--max-error", default=None, help="Share of tasks that may be accepted and wrong. [default: as last time, or 0.02]"
)
@click.option(
    "--of",
    type=click.Choice(["all", "accepted"]),
    default=None,
    help="Of what: all tasks, or the accepted ones. [default: as last time, or all]",
)
@click.option("--dry-run", is_flag=True, help="Make the decision that is due and show it; accept nothing.")
@click.option("--withdraw", "take_back", is_flag=True, help="Take back what was accepted and nobody has touched.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@reported
def command(
    *, number: int, max_error: str | None, of: str | None, dry_run: bool, take_back: bool, as_json: bool
) -> None:
    """Accept the tasks of a project that nobody needs to open, with a promise about their errors.

    The best labeling of tasks without a flag becomes an annotation by the service's own account. Decisions rest on
    labels that people made without a prediction in view, and are made at 125, 250, 500, ... of them and after a change
    of model: asking more often shows the last one. docs/guarantee.md says what is promised. The work is done by the
    service's worker; this waits for it.
    """
    from backend.acceptance.decision import Wish
    from backend.acceptance.report import default_wish
    from backend.jobs.kinds import queue_accept, queue_withdraw
    from backend.store import open_store
    from backend.store.actions import record_action
    from conformal.risk.acceptance import Promise

    if take_back and (dry_run or max_error or of):
        raise click.UsageError("expected --withdraw alone, got it with other options")
    settings = load_settings()
    with open_store(settings.database_url) as store:
        project = _project(store, number)
        with store.read() as session:
            last = default_wish(session, project.id)
        wish = Wish(max_error or last.max_error, Promise(of) if of else last.promise)
        with store.write() as session:
            if take_back:
                job = queue_withdraw(session, project, reason="asked for on the command line")
            else:
                job = queue_accept(
                    session,
                    project,
                    max_error=wish.max_error,
                    promise=wish.promise.value,
                    who="command line",
                    dry_run=dry_run,
                )
            action = "withdraw" if take_back else "preview" if dry_run else "accept"
            details = {"job": job} if take_back else {"job": job, "max_error": wish.max_error, "of": wish.promise.value}
            record_action(session, project.id, who="command line", action=action, details=details)
        done = _wait(store, job, quiet=as_json)
        report = {} if take_back else _report(store, project, settings, wish)
    result = dict(done.result or {})
    if as_json:
        click.echo(json.dumps({"job": result, "report": report, "error": done.error}))
    else:
        _say(result, report)
    if done.state != "done" or "refused" in result:
        raise click.ClickException(str(result.get("refused") or done.error or f"the job is {done.state}"))


def _project(store: Store, number: int) -> ProjectRecord:
    from backend.store.projects import find_project

    with store.read() as session:
        project = find_project(session, str(number))
    if project is None:
        raise NotFound(f"expected a connected project, got {number}: run `surespan connect --project {number}`")
    return project


def _wait(store: Store, number: int, *, quiet: bool) -> JobRecord:
    from backend.store.jobs import load_job

    begun, told, note = time.monotonic(), False, ""
    while True:
        with store.read() as session:
            job = load_job(session, number)
        if job is None:
            raise NotFound("expected the job to be there, got none: the project was removed meanwhile")
        if job.state not in {"queued", "running"} or job.error is not None:
            return job
        if job.state == "queued" and not told and time.monotonic() - begun > _PATIENCE:
            told = True
            click.echo("No worker has taken the job yet: is the service running?", err=True)
        if not quiet and job.progress_note and job.progress_note != note:
            note = job.progress_note
            click.echo(note, err=True)
        time.sleep(_LOOK)


def _report(store: Store, project: ProjectRecord, settings: Settings, wish: Wish) -> dict[str, Any]:
    from backend.acceptance.report import acceptance_report
    from backend.store.acceptance import list_acceptances
    from backend.store.projects import load_model

    with store.read() as session:
        decisions = list_acceptances(session, project.id)
        model = load_model(session, decisions[-1].model_id) if decisions else None
        return acceptance_report(session, project, model, settings=settings, wish=wish)


def _say(result: dict[str, Any], report: dict[str, Any]) -> None:
    if "taken_back" in result:
        click.echo(
            f"{result['taken_back']:,} taken back, {result['touched']:,} left because somebody has touched them, "
            f"{result['gone']:,} were gone already."
        )
        return
    if result.get("decision"):
        click.echo(result["decision"]["summary"])
    if "accepted" in result:
        click.echo(f"{result['accepted']:,} tasks accepted, {result['left_alone']:,} left alone.")
    if "stopped" in result:
        click.echo(f"Stopped: {result['stopped']}.")
    if "standing" in result:
        click.echo(f"For more: {result['standing']}.")
    if report:
        now = f"{report['acceptable']:,} tasks can be accepted now, {report['accepted']:,} are."
        click.echo(f"{now} {report['promise']}")
