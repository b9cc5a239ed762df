"""`surespan preannotate`: bulk predictions for a project or a file, resumable."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from backend.commands.errors import reported
from backend.commands.server import client_for, label_studio_options, settings_for, silent
from backend.logs import configure_logging
from backend.settings import Settings

if TYPE_CHECKING:
    from backend.preannotate.engine import Engine
    from backend.preannotate.projects import ProjectReport

Tell = Callable[[str, int, int | None], None]  # stage, done, of how many


@click.command("preannotate")
@click.option("--project", "number", type=click.IntRange(min=1), help="Number of the project in Label Studio.")
@click.option(
    "--input",
    "source",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Texts instead of a project: JSONL, a Label Studio export, one text per line, or CoNLL columns; .gz too.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the tasks with predictions: a list if named .json, else one per line.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "json", "text", "conll"]),
    help="What --input holds. [default: by its name; .txt is one text per line, unknown names are CoNLL]",
)
@click.option(
    "--label-config",
    "config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Label config (XML) that --output is for. [default: control label over the model's classes, and flag]",
)
@click.option("--language", help="Language of the texts of --input; identified if not given.")
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Predict with processes on this machine, or on a Ray cluster (RAY_ADDRESS).",
)
@click.option("--jobs", type=click.IntRange(1, 1024), help="Processes or actors. [default: one per core, at most 4]")
@click.option(
    "--batch",
    default=500,
    show_default=True,
    type=click.IntRange(1, 2000),
    help="Tasks that are stored together; a kill loses at most these.",
)
@label_studio_options
@reported
def command(
    *,
    number: int | None,
    source: Path | None,
    output: Path | None,
    form: str | None,
    config: Path | None,
    language: str | None,
    engine_name: str,
    jobs: int | None,
    batch: int,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Predict all unlabelled tasks of a project, or all texts of a file.

    A run that was stopped, in whatever way, continues where it left off when started again with the same options;
    nothing is done twice. In a project, predictions count as served and tasks drawn for the blind audit stay blank,
    as when Label Studio asks the service.
    """
    if (number is None) == (source is None):
        raise click.UsageError("expected --project or --input, got " + ("neither" if number is None else "both"))
    if (source is None) != (output is None):
        raise click.UsageError("expected --input and --output together, got one of them")
    if number is not None and (form or config or language):
        raise click.UsageError("expected --format, --label-config and --language with --input only")
    from backend.preannotate.engines import make_engine

    settings = settings_for(url, api_key)
    engine = make_engine(engine_name, jobs or _cores())
    if number is not None:
        _project(settings, number, engine=engine, batch=batch, as_json=as_json)
    elif source is not None and output is not None:
        _file(settings, source, output, form=form, config=config, language=language, engine=engine, batch=batch,
              as_json=as_json)  # fmt: skip


def _project(settings: Settings, number: int, *, engine: Engine, batch: int, as_json: bool) -> None:
    from backend.preannotate.projects import preannotate_project
    from backend.store import open_store

    configure_logging("WARNING")
    with open_store(settings.database_url) as store, client_for(settings) as client, _bars(quiet=as_json) as progress:
        report = preannotate_project(
            settings,
            store,
            client,
            number,
            engine=engine,
            batch=batch,
            progress=progress,
            say=silent if as_json else click.echo,
        )
    if as_json:
        click.echo(json.dumps(asdict(report)))
    else:
        _say(report)
    if report.refused:
        shown = ", ".join(str(each) for each in report.lacking[:10])
        raise click.ClickException(
            f"Label Studio did not take the predictions of {report.refused} tasks ({shown}): does the label config "
            "still have the labels? Start the command again"
        )


def _say(report: ProjectReport) -> None:
    seconds = report.seconds["all"]
    click.echo(
        f"Project {report.project}: {report.tasks} unlabelled tasks checked, {report.predicted} given predictions "
        f"({report.from_lists} of them from remembered lists) of {report.version} in {seconds:.0f} s; "
        f"{report.removed} duplicate or superseded predictions removed."
    )
    if report.blank:
        click.echo(f"{report.blank} tasks are drawn for the blind audit and stay blank on purpose (SURESPAN_BLIND).")
    if report.at_work:
        click.echo(f"{report.at_work} tasks are being worked on and were left alone: start the command again later.")


def _file(
    settings: Settings,
    source: Path,
    output: Path,
    *,
    form: str | None,
    config: Path | None,
    language: str | None,
    engine: Engine,
    batch: int,
    as_json: bool,
) -> None:
    from backend.preannotate.files import Wanted, preannotate_file
    from backend.preannotate.texts import Format, format_of

    wanted = Wanted(
        source,
        output,
        Format(form) if form else format_of(source),
        None if config is None else config.read_text(encoding="utf-8"),
        language,
        batch,
    )
    with _bars(quiet=as_json) as progress:
        report = preannotate_file(
            settings, wanted, engine=engine, progress=lambda done, total: progress("texts", done, total)
        )
    if as_json:
        click.echo(json.dumps(asdict(report)))
        return
    if report.resumed == report.tasks:
        click.echo(f"{output}: all {report.tasks} tasks were there already.")
        return
    went_on = f", {report.resumed} of them by an earlier run" if report.resumed else ""
    click.echo(f"{output}: {report.tasks} tasks with predictions of {report.model_version}{went_on}.")
    if report.blank:
        click.echo(f"{report.blank} texts have no prediction: longer than SURESPAN_MAX_TEXT, or it failed.")
    if config is None:
        click.echo(
            f"Made for labels {', '.join(report.labels)} in a control 'label' and 'Needs review' in a control 'flag'; "
            "for another label config give --label-config."
        )


@contextmanager
def _bars(*, quiet: bool) -> Iterator[Tell]:
    """Show a bar per stage with an estimate of the time left, on stderr."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bars:
        stages = {}

        def tell(stage: str, done: int, total: int | None) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage, total=total, completed=done)  # not counted as speed
            bars.update(stages[stage], completed=done, total=total)

        yield tell


def _cores() -> int:
    return min(4, len(os.sched_getaffinity(0)))
