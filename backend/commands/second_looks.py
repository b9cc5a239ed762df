"""`surespan second-looks`: confirmed labels that are probably wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from backend.commands.errors import reported
from backend.errors import NotFound
from backend.settings import load_settings

if TYPE_CHECKING:
    from backend.domain.records import ProjectRecord
    from backend.store import Store


@click.command("second-looks")
@click.option("--project", default="local", show_default=True, help="Id or uid of the project.")
@click.option("--model", help="The tagger. [default: SURESPAN_MODEL or the bundled one]")
@click.option("--fdr", help="Share of listed labels that may be right, kept for the project. [default: 0.1]")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Entries of each list.")
@click.option("--keep", multiple=True, metavar="TASK", help="Say that the label of this task is right; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@reported
def command(
    *, project: str, model: str | None, fdr: str | None, limit: int, keep: tuple[str, ...], as_json: bool
) -> None:
    """Check the confirmed labels of a project and list those that are probably wrong.

    Of the labels that are listed, an expected share of at most --fdr is right; docs/guarantee.md says under which
    assumptions. Reference labels to check first come in a list of their own. The service's worker makes the lists
    after each refit; this makes them now.
    """
    from backend.calibration.local import project_view
    from backend.calibration.score_labels import score_unscored
    from backend.models.own import load_model_for
    from backend.review.second_looks import refresh_looks
    from backend.review.second_looks_report import looks_report
    from backend.store import open_store
    from backend.store.projects import ensure_model
    from backend.tagger.configured import load_configured
    from conformal.errors import InvalidArgument
    from conformal.quantile import exact_level

    if fdr is not None:
        try:
            exact_level(fdr)
        except InvalidArgument:
            raise click.ClickException(
                f"--fdr: expected a decimal number between 0 and 1, for example 0.1, got {fdr!r}"
            ) from None
    settings = load_settings(**({} if model is None else {"model": model}))
    with open_store(settings.database_url) as store:
        tagger = load_configured(settings) if model else load_model_for(store, project, settings=settings)
        project_record, view = project_view(store, tagger, settings, key=project)
        with store.write() as session:
            record = ensure_model(session, view.name, view.hash, classes=view.space.classes)
        _keep(store, project_record, keep)
        score_unscored(store, project_record, model=record, tagger=view, max_text=settings.max_text)
        refresh_looks(store, project_record, model=record, tagger=view, fdr=fdr)
        with store.read() as session:
            report = looks_report(session, project_record, record, base=settings.people_url, limit=limit)
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
    else:
        _print(report)


def _keep(store: Store, project: ProjectRecord, tasks: tuple[str, ...]) -> None:
    from backend.store.actions import record_action
    from backend.store.second_looks import settle_look

    for task in tasks:
        with store.write() as session:
            revision = settle_look(session, project.id, task=task)
            if revision is None:
                raise NotFound(f"expected a task whose label was checked, got {task!r}: see the list")
            record_action(
                session, project.id, who="command line", action="keep", details={"task": task, "revision": revision}
            )


def _print(report: dict[str, Any]) -> None:
    from backend.review.second_looks_report import percent, said_spans

    console = Console(highlight=False)
    console.print(report["summary"], markup=False)
    for name, title in (("listed", "Probably wrong"), ("check", "Reference labels to check first")):
        if not report[name]:
            continue
        table = Table(title=title, box=None)
        for heading in ("task", "label has", "model says", "least plausible word", "p-value"):
            table.add_column(heading, overflow="fold")
        for each in report[name]:
            word = each["word"]["text"] or ""
            cells = (
                each["task"],
                said_spans(each["implausible"]),
                said_spans(each["instead"]),
                f"{word} ({percent(each['probability'])})",
                "" if each["p_value"] is None else f"{each['p_value']:.2g}",
            )
            table.add_row(*(cell.replace("[", r"\[") for cell in cells))
        console.print(table)
