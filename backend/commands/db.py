"""`surespan db`: bring the database's schema up to date, check it, copy the database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click

from backend.errors import BackendError
from backend.settings import load_settings
from backend.store import Store


@click.group("db")
def command() -> None:
    """Look after the database named by SURESPAN_DATABASE_URL."""


@command.command("upgrade")
def upgrade_command() -> None:
    """Bring the schema to the one this release works with; all of it, or nothing."""
    from backend.store.schema import schema_state, upgrade

    with _store() as store:
        before = schema_state(store)
        upgrade(store)
        after = schema_state(store)
        if before.current == after.current:
            click.echo(f"{store.name}: schema {after.current} is up to date")
        else:
            click.echo(f"{store.name}: schema {before.current or 'none'} -> {after.current}")


@command.command("check")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check_command(*, as_json: bool) -> None:
    """Say whether the schema is the one this release works with. Exit code 1 when it is not."""
    from backend.store.schema import schema_differences, schema_state

    with _store() as store:
        state = schema_state(store)
        differences = schema_differences(store) if state.ready else []
        good = state.ready and not differences
        if as_json:
            answer = {"ok": good, "current": state.current, "expected": state.head, "differences": differences}
            click.echo(json.dumps(answer))
        elif good:
            click.echo(f"{store.name}: schema {state.current} is what this release works with")
        elif differences:
            click.echo(f"{store.name}: schema {state.current}, but the tables differ from it:")
            for difference in differences:
                click.echo(f"  {difference}")
        else:
            remedy = "run `surespan db upgrade`" if state.known else "install the newer Surespan that wrote it"
            click.echo(f"{store.name}: expected schema {state.head}, got {state.current or 'none'}: {remedy}")
        if not good:
            raise SystemExit(1)


@command.command("backup")
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False), required=False)
def backup_command(*, target: Path | None) -> None:
    """Copy the database to TARGET while it is in use (default: a name with the time, in this directory).

    SQLite: put the copy in place of the file to restore it. PostgreSQL: needs pg_dump; restore with pg_restore.
    """
    from backend.store.backup import backup

    with _store() as store:
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        name = target or Path(f"surespan-{moment}.{'db' if store.is_sqlite else 'dump'}")
        done = backup(store, name)
        click.echo(f"{store.name}: copied to {done} ({done.stat().st_size:,} bytes)")


@command.command("forget")
@click.option("--project", "key", required=True, help="Id of a Label Studio project, or the whole uid of a project.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def forget_command(*, key: str, yes: bool) -> None:
    """Delete everything that is stored about a project: tasks, labels, thresholds, what was served, deliveries.

    Nothing in Label Studio changes. Run `surespan disconnect` first, or its next event creates the project again.
    """
    from backend.store.projects import find_project
    from backend.store.retention import forget_project
    from backend.store.schema import ensure_schema

    with _store() as store:
        ensure_schema(store)
        with store.read() as session:
            project = find_project(session, key)
        if project is None:
            raise click.ClickException(
                f"--project: expected a project of this database, got {key!r}, which is not in it"
            )
        name = f"project {project.key} ({project.title or project.uid})"
        if not yes:
            click.confirm(f"{store.name}: delete all tasks, labels and thresholds of {name} for good?", abort=True)
        events = store.run(lambda session: forget_project(session, project))
        click.echo(f"{store.name}: {name} has been deleted, with {events:,} deliveries")


@contextmanager
def _store() -> Iterator[Store]:
    try:
        with Store(load_settings().database_url) as store:
            yield store
    except BackendError as error:
        raise click.ClickException(str(error)) from error
