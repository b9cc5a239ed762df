"""A copy of the database while it is in use: complete, consistent, or not there at all."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from backend.errors import BackupFailed
from backend.store.engine import Store


def backup(store: Store, target: Path, *, pg_dump: str | None = None) -> Path:
    """Write a copy of the database to `target` and return its path.

    SQLite is copied by its online backup, which sees one moment and lets others read and write meanwhile, and the copy
    is checked before it gets its name. PostgreSQL is dumped by `pg_dump` in its custom format, for `pg_restore`.

    Raises:
        BackupFailed: when the target exists, `pg_dump` is missing, or copying failed; no half copy is left.
    """
    target = target.absolute()
    if target.exists():
        raise BackupFailed(f"expected a name that is free, got {target}, which exists: choose another")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        if store.is_sqlite:
            _copy_sqlite(Path(str(store.url.database)), partial)
        else:
            _dump_postgresql(store, partial, pg_dump or shutil.which("pg_dump"))
        _flush(partial)
        os.link(partial, target)  # unlike a rename, this never replaces a file that appeared meanwhile
        _flush(target.parent)
    except FileExistsError:
        raise BackupFailed(f"expected a name that is free, got {target}, which exists: choose another") from None
    except (sqlite3.Error, OSError) as error:
        raise BackupFailed(f"the copy to {target} failed: {error}; nothing was left there") from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def _copy_sqlite(source: Path, partial: Path) -> None:
    if not source.exists():
        raise BackupFailed(f"expected a database at {source}, got no file: check SURESPAN_DATABASE_URL")
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as reader,
        closing(sqlite3.connect(partial)) as writer,
    ):
        reader.backup(writer)
        verdict = writer.execute("PRAGMA integrity_check").fetchone()[0]
        if verdict != "ok":
            raise BackupFailed(
                f"expected a sound copy, got {verdict!r} from the integrity check: the database is damaged"
            )
        # A copy of a WAL database would open in WAL mode and leave files beside it on a read-only medium.
        writer.execute("PRAGMA journal_mode = DELETE")


def _dump_postgresql(store: Store, partial: Path, pg_dump: str | None) -> None:
    url = store.url.set(drivername="postgresql")
    # `URL.set` takes None for "leave as it is", so the password is dropped from the tuple itself.
    shown = url._replace(password=None).render_as_string(hide_password=False)
    if pg_dump is None:
        raise BackupFailed(
            "expected the program pg_dump on the PATH, got none: install PostgreSQL's client programs, or run on a "
            f"machine that has them: pg_dump --format=custom --file={partial.name[1:].rsplit('.', 2)[0]} '{shown}'"
        )
    # The password goes by the environment, because other users can read a command line.
    environment = dict(os.environ)
    if url.password is not None:
        environment["PGPASSWORD"] = str(url.password)
    command = [pg_dump, "--format=custom", "--no-owner", f"--file={partial}"]
    command.append(f"--dbname={shown}")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()
        raise BackupFailed(f"pg_dump failed: {reason[-1] if reason else f'exit code {done.returncode}'}")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
