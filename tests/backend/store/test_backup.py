from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from backend.cli import main
from backend.errors import BackupFailed
from backend.store import Store, open_store
from backend.store.backup import backup
from backend.store.events import store_event
from backend.store.schema import schema_differences
from backend.store.tables import Event


@pytest.fixture
def programs(kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path | None:
    """Put PostgreSQL's client programs on the PATH."""
    if kind == "sqlite":
        return None
    directory: Path = request.getfixturevalue("postgresql").bin
    monkeypatch.setenv("PATH", str(directory), prepend=":")
    return directory


def test_a_copy_made_while_others_write_is_complete_and_consistent(
    store: Store, url: str, tmp_path: Path, programs: Path | None, request: pytest.FixtureRequest
) -> None:
    before = [store_event(store, {"action": "X", "n": each}) for each in range(20)]
    stop = threading.Event()
    during: list[int] = []

    def keep_writing() -> None:
        with Store(url) as other:
            while not stop.is_set():
                during.append(store_event(other, {"action": "Y"}))

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        copy = backup(store, tmp_path / "copies" / "a.copy")
    finally:
        stop.set()
        writer.join()
    with restored(store, copy, programs, request) as again, again.read() as session:
        kept = session.execute(sa.select(Event.id).order_by(Event.id)).scalars().all()
        everything = before + during
        assert kept[:20] == before
        assert kept == everything[: len(kept)]
    assert [path.name for path in copy.parent.iterdir()] == ["a.copy"]


def restored(store: Store, copy: Path, programs: Path | None, request: pytest.FixtureRequest) -> Store:
    if store.is_sqlite:
        return open_store(f"sqlite:///{copy}")
    assert programs is not None
    server: Any = request.getfixturevalue("postgresql")
    server.admin("DROP DATABASE IF EXISTS restored WITH (FORCE)")
    server.admin("CREATE DATABASE restored")
    target = server.uri("restored")
    subprocess.run([programs / "pg_restore", "--no-owner", f"--dbname={target}", copy], check=True)
    again = open_store(target)
    assert schema_differences(again) == []
    # The triggers came along.
    with again.read() as session:
        names = session.execute(sa.text("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal")).scalars()
        assert "label_history_immutable" in set(names)
    return again


@pytest.mark.usefixtures("programs")
def test_an_existing_file_is_not_overwritten(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("keep me")
    with pytest.raises(BackupFailed, match="which exists: choose another"):
        backup(store, target)
    assert target.read_text() == "keep me"


@pytest.mark.usefixtures("programs")
def test_a_failed_copy_leaves_nothing(store: Store, tmp_path: Path) -> None:
    if store.is_sqlite:
        store.close()
        (tmp_path / "store.db").write_bytes(b"SQLite format 3\x00" + b"\x01" * 5000)
    else:
        store.url = store.url.set(database="no_such_database")
    with pytest.raises(BackupFailed):
        backup(store, tmp_path / "copies" / "a.copy")
    assert list((tmp_path / "copies").iterdir()) == []


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("kind")
def test_nothing_to_copy_is_said(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 'none.db'}") as store, pytest.raises(BackupFailed, match="got no file"):
        backup(store, tmp_path / "copy")


@pytest.mark.parametrize("kind", ["postgresql"], indirect=True)
def test_without_pg_dump_the_command_to_run_is_named(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackupFailed, match=r"pg_dump --format=custom --file=a\.dump 'postgresql://") as caught:
        backup(store, tmp_path / "a.dump")
    assert "***" not in str(caught.value)


@pytest.mark.usefixtures("programs")
def test_the_command_copies(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURESPAN_DATABASE_URL", url)
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    named = runner.invoke(main, ["db", "backup", "mine"])
    assert named.exit_code == 0, named.output
    assert "copied to" in named.output
    assert (tmp_path / "mine").stat().st_size > 1000
    timed = runner.invoke(main, ["db", "backup"])
    assert timed.exit_code == 0, timed.output
    assert len(list(tmp_path.glob("surespan-2*"))) == 1
    again = runner.invoke(main, ["db", "backup", "mine"])
    assert again.exit_code == 1
    assert "which exists" in again.output
