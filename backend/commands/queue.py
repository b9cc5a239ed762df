"""`surespan queue`: what to look at next."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from backend.commands.errors import reported
from backend.errors import NotFound
from backend.settings import Settings, load_settings

if TYPE_CHECKING:
    from backend.domain.records import ModelRecord, ProjectRecord
    from backend.store import Store
    from backend.store.disagreements import Disagreement
    from backend.store.queue import QueuedTask


@click.command("queue")
@click.option("--project", "key", required=True, help="Id of a Label Studio project.")
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="Print at most this many.")
@click.option("--claim", "who", metavar="NAME", help="Lease the tasks to this annotator; nobody else gets them.")
@click.option(
    "--minutes",
    type=click.FloatRange(0, 1440, min_open=True),
    help="How long a lease lasts. [default: SURESPAN_AT_WORK_MINUTES]",
)
@click.option(
    "--release", "giver", metavar="NAME", help="Give back what this annotator has leased, and print nothing else."
)
@click.option(
    "--review-order",
    is_flag=True,
    help="With --claim: accept that from now on only blind tasks of the project may set thresholds.",
)
@click.option("--evidence-first", is_flag=True, help="Drawn-blind tasks before all others: acceptance rests on them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@reported
def command(
    *,
    key: str,
    limit: int,
    who: str | None,
    minutes: float | None,
    giver: str | None,
    review_order: bool,
    evidence_first: bool,
    as_json: bool,
) -> None:
    """Print the tasks that are most worth a look, the most valuable first.

    Empty and open sets come first, then the tasks whose best labeling is most likely wrong. Audit tasks appear at
    random positions, without further details. Labelled tasks, those that somebody has open and those that are leased to
    someone are left out. Tasks that several people labelled differently follow in a list of their own.

    Labels made in this order are not a random sample. In a project with another order of tasks, --claim therefore
    asks for --review-order.
    """
    from backend.review.queue import claim, describe_disagreement, describe_task, fill_queue, review_queue
    from backend.store import open_store
    from backend.store.disagreements import disagreements
    from backend.store.queue import release_claims

    if who is not None and giver is not None:
        raise click.UsageError("expected --claim or --release, got both")
    settings = load_settings()
    with open_store(settings.database_url) as store:
        project, model = _find(settings, store, key)
        if giver is not None:
            released = store.run(lambda session: release_claims(session, project.id, who=giver))
            click.echo(
                json.dumps({"project": project.uid, "released": released}) if as_json else f"{released} released."
            )
            return
        fill_queue(store)
        tasks: list[QueuedTask] = []
        differing: list[Disagreement] = []
        if model is not None and who is not None:
            tasks = claim(
                store,
                project,
                model_id=model.id,
                settings=settings,
                who=who,
                limit=limit,
                minutes=minutes,
                accept_review=review_order,
                evidence_first=evidence_first,
            )
        elif model is not None:
            with store.read() as session:
                tasks = review_queue(
                    session,
                    project.id,
                    model_id=model.id,
                    settings=settings,
                    limit=limit,
                    evidence_first=evidence_first,
                )
        if who is None:
            with store.read() as session:
                differing = disagreements(session, project.id, limit=limit)
    if as_json:
        answer: dict[str, Any] = {"project": project.uid, "tasks": [describe_task(each) for each in tasks]}
        if who is None:
            answer["disagreements"] = [describe_disagreement(each) for each in differing]
        click.echo(json.dumps(answer))
        return
    if tasks:
        click.echo(f"{'task':>10}  {'worth':>7}  {'P(best)':>7}  {'set':>5}  stratum")
        for each in tasks:
            click.echo(_line(each))
    else:
        click.echo("Nothing is waiting: tasks appear once they have predictions and no label.")
    if differing:
        click.echo("Annotators disagree; a ground truth settles it:")
        for one in differing:
            click.echo(f"{one.task:>10}  {one.votes} of {one.voters} say what counts now")


def _line(task: QueuedTask) -> str:
    if task.blind:
        return f"{task.task:>10}  {'audit, shown blank':>23}"
    size = "open" if task.is_open else str(task.set_size)
    probability = "" if task.probability is None else f"{task.probability:.3f}"
    return f"{task.task:>10}  {task.value or 0.0:7.3f}  {probability:>7}  {size:>5}  {task.stratum}"


def _find(settings: Settings, store: Store, key: str) -> tuple[ProjectRecord, ModelRecord | None]:
    from backend.models.loading import ModelLoader
    from backend.models.views import Views
    from backend.store.projects import find_project, list_projects, lookup_model

    with store.read() as session:
        project = find_project(session, key)
        known = ", ".join(each.uid for each in list_projects(session)[-20:]) or "none"
    if project is None:
        raise NotFound(f"expected a project of this database, got {key!r}; known: {known}")
    header = Views(settings, store, ModelLoader(settings)).serving_model(project)
    with store.read() as session:
        return project, lookup_model(session, header.name, header.hash)
