"""`surespan export`: the labels that people confirmed, as a file."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backend.commands.errors import reported
from backend.errors import InvalidInput, NotFound
from backend.settings import Settings, load_settings

if TYPE_CHECKING:
    from backend.domain.records import ProjectRecord
    from backend.labels.export import Format
    from backend.store import Store

_FORMATS = ("conll", "jsonl", "label-studio")


@click.command("export")
@click.option("--project", "key", default="local", show_default=True, help="Id of a Label Studio project, or local.")
@click.option(
    "--output",
    default="-",
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="File to write (.gz is compressed); - is stdout.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    help="What to write. [default: jsonl for stdout and files named .jsonl or .ndjson, else conll]",
)
@click.option("--provenance", is_flag=True, help="Add task, annotation, author, time, evidence, exclusion and votes.")
@click.option("--classes", is_flag=True, help="Write the model's classes in place of the labels that stand for them.")
@click.option(
    "--accepted",
    type=click.Choice(["exclude", "include", "only"]),
    default="exclude",
    show_default=True,
    help="What `surespan accept` accepted and nobody looked at: leave it out, write it too, or alone.",
)
@reported
def command(*, key: str, output: Path, form: str | None, provenance: bool, classes: bool, accepted: str) -> None:
    """Write the confirmed labels of a project, as its label config calls them.

    Skipped tasks, bulk copies of predictions and marks of doubt are not labels and are left out. What was left out, and
    what CoNLL columns cannot say, is counted on stderr; no text is written with a labeling that differs from the
    confirmed one. Accepted labelings carry a mark wherever they are written.
    """
    from backend.labels.export import export
    from backend.store import open_store

    chosen = _format(form, output)
    settings = load_settings()
    with open_store(settings.database_url) as store:
        project = _project(store, key)
        renamed = _classes(settings, store, project) if classes else None
        with store.read() as session, _opened(output) as write:
            lines, report = export(
                session,
                project,
                form=chosen,
                provenance=provenance,
                control=settings.labels_control,
                classes=renamed,
                accepted=accepted,
            )
            for line in lines:
                write(line.encode())
    for line in report.lines():
        click.echo(line, err=True)


def _format(form: str | None, output: Path) -> Format:
    from backend.labels.export import Format

    name = output.name.lower().removesuffix(".gz")
    if name.endswith(".json"):
        raise click.UsageError(f"expected a file named .jsonl, got {output.name}: one task per line is written")
    lines = str(output) == "-" or name.endswith((".jsonl", ".ndjson"))
    if form is None:
        return Format.JSONL if lines else Format.CONLL
    chosen = Format(form)
    if str(output) != "-" and lines != (chosen is not Format.CONLL):
        # The readers tell formats by the name, so such a file could not be read again.
        wanted = "a name without .jsonl" if chosen is Format.CONLL else "a file named .jsonl"
        raise click.UsageError(f"expected {wanted} for --format {form}, got {output.name}")
    return chosen


def _project(store: Store, key: str) -> ProjectRecord:
    from backend.store.projects import find_project, list_projects

    with store.read() as session:
        project = find_project(session, key)
        if project is not None:
            return project
        known = ", ".join(each.uid for each in list_projects(session)[-20:]) or "none"
    raise NotFound(f"expected a project of this database, got {key!r}; known: {known}")


def _classes(settings: Settings, store: Store, project: ProjectRecord) -> Mapping[str, str]:
    from backend.calibration.score_labels import class_names
    from backend.models.own import model_for

    with store.read() as session:
        return class_names(project.label_config, model_for(session, project, settings=settings).classes)


@contextmanager
def _opened(output: Path) -> Iterator[Callable[[bytes], object]]:
    """Give a way to write to stdout, or to a file that gets its name only when all of it was written."""
    if str(output) == "-":
        yield sys.stdout.buffer.write
        return
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as raw:
            if output.suffix.lower() == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw) as packed:
                    yield packed.write
            else:
                yield raw.write
        partial.replace(output)
    except OSError as error:
        raise InvalidInput(f"expected a file that can be written, got {output}: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)
