"""A full disk, a locked database, a dropped connection: a clear error, a retry where it is safe, nothing half done."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from backend.errors import StoreBusy, StoreConflict, StoreFull, StoreUnavailable
from backend.store import Store, open_store
from backend.store.events import EventOutcome, load_event, process_events, store_event
from backend.store.projects import ensure_project, find_project
from backend.store.schema import upgrade
from backend.store.tables import Event, Project

NOW = datetime(2026, 1, 1, tzinfo=UTC)

only_sqlite = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
only_postgresql = pytest.mark.parametrize("kind", ["postgresql"], indirect=True)


def count(store: Store, table: Any = Event) -> int:
    with store.read() as session:
        return session.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def fill_up(store: Store) -> int:
    """Deliver until the disk is full; returns how many were acknowledged."""
    acknowledged: list[int] = []

    def deliver_for_ever() -> None:
        while True:
            payload = {"action": "X", "project": {"id": 1}, "filling": os.urandom(60_000).hex()}
            acknowledged.append(store_event(store, payload))

    with pytest.raises(StoreFull, match=r"expected room to write, .* nothing was kept: free disk space"):
        deliver_for_ever()
    return len(acknowledged)


@only_sqlite
def test_a_full_database_keeps_what_was_acknowledged(store: Store) -> None:
    limit = [10**6]
    sa.event.listen(
        store.engine, "begin", lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {limit[0]}")
    )
    with store.read() as session:
        limit[0] = session.execute(sa.text("PRAGMA page_count")).scalar_one() + 50
    acknowledged = fill_up(store)
    assert 0 < acknowledged == count(store)
    limit[0] = 10**6
    store_event(store, {"action": "X"})
    assert count(store) == acknowledged + 1


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of a few megabytes, where mounting one is allowed."""
    # Its path is short and open to the server's own user, who must reach a table space on it.
    directory = Path(f"/tmp/ssdisk{os.getpid()}")  # noqa: S108
    directory.mkdir(mode=0o777)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=777", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        directory.rmdir()
        pytest.skip("mounting a small file system is not allowed here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
        directory.rmdir()


@only_sqlite
@pytest.mark.usefixtures("kind")
def test_a_full_disk_under_sqlite(small_disk: Path) -> None:
    with open_store(f"sqlite:///{small_disk / 'store.db'}") as store:
        acknowledged = fill_up(store)
        with pytest.raises(StoreFull), store.write() as session:
            ensure_project(session, "1.1", label_config="x" * 4_000_000)
        assert count(store) == acknowledged > 0
        assert count(store, Project) == 0
        with store.read() as session:
            assert session.execute(sa.text("PRAGMA integrity_check")).scalar_one() == "ok"
        subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
        store_event(store, {"action": "X"})
        assert count(store) == acknowledged + 1


@only_postgresql
@pytest.mark.usefixtures("kind")
def test_a_full_disk_under_postgresql(small_disk: Path, postgresql: Any) -> None:
    space = small_disk / "space"
    space.mkdir()
    if os.geteuid() == 0:
        shutil.chown(space, "pgserver")  # the embedded server does not run as root
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    postgresql.admin(f"CREATE TABLESPACE small LOCATION '{space}'")
    try:
        postgresql.admin("CREATE DATABASE small TABLESPACE small")
        with Store(postgresql.uri("small")) as store:
            upgrade(store)
            acknowledged = fill_up(store)
            assert count(store) == acknowledged > 0
            with store.write() as session:
                session.execute(sa.text("SELECT 1"))
            subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
            store_event(store, {"action": "X"})
            assert count(store) == acknowledged + 1
    finally:
        postgresql.admin("DROP DATABASE IF EXISTS small WITH (FORCE)")
        postgresql.admin("DROP TABLESPACE small")


def lock(holder: Store, session: Any) -> None:
    # On SQLite a writing transaction holds the one lock there is from its first statement on.
    session.execute(sa.text("SELECT 1" if holder.is_sqlite else "LOCK TABLE events IN ACCESS EXCLUSIVE MODE"))


def test_a_lock_held_too_long_is_said_and_nothing_is_kept(url: str, store: Store) -> None:
    with Store(url, wait=0.2) as hurried:
        with store.write() as session:
            lock(store, session)
            with pytest.raises(StoreBusy, match=r"held a lock for more than 0.2 s; nothing was kept"):
                store_event(hurried, {"action": "X"})
        assert count(store) == 0
        store_event(hurried, {"action": "X"})
        assert count(store) == 1


def test_a_short_lock_is_waited_for(url: str, store: Store) -> None:
    with Store(url) as other:
        waiting = threading.Thread(target=store_event, args=(other, {"action": "X"}))
        with store.write() as session:
            lock(store, session)
            waiting.start()
            waiting.join(0.3)
            assert waiting.is_alive()
        waiting.join()
    assert count(store) == 1


def test_trouble_with_the_database_is_not_the_events_fault(store: Store) -> None:
    event_id = store_event(store, {"action": "X"})

    def process(_session: Any, _event: Any) -> EventOutcome:
        raise StoreBusy("another process held a lock")

    with pytest.raises(StoreBusy):
        process_events(store, process, worker="w")
    with store.read() as session:
        event = load_event(session, event_id)
    assert event is not None
    assert (event.state, event.attempts) == ("pending", 0)


def test_errors_do_not_repeat_what_was_written(store: Store) -> None:
    def twice(session: Any) -> None:
        for _ in range(2):
            session.execute(
                sa.insert(Project).values(uid="1.1", key="1", title="a private text", created_at=NOW, updated_at=NOW)
            )

    with pytest.raises(StoreConflict, match="a rule of the database refused the write") as caught:
        store.run(twice)
    trace = "".join(traceback.format_exception(caught.value))
    assert "UNIQUE" in trace.upper()
    assert "private" not in trace


def terminate_others(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@only_postgresql
def test_a_connection_dropped_within_a_transaction(url: str, store: Store) -> None:
    def cut_off(session: Any) -> None:
        ensure_project(session, "1.1")
        terminate_others(url)
        ensure_project(session, "2.2")

    with pytest.raises(StoreUnavailable, match="expected a connection that stays up"):
        store.run(cut_off, attempts=1)
    with store.read() as session:
        assert find_project(session, "1") is None


@only_postgresql
def test_work_that_may_be_repeated_is_repeated(url: str, store: Store) -> None:
    runs = []

    def work(session: Any) -> int:
        runs.append(1)
        project = ensure_project(session, "1.1")
        if len(runs) == 1:
            terminate_others(url)
        ensure_project(session, "2.2")
        return project.id

    store.run(work)
    assert len(runs) == 2
    assert count(store, Project) == 2


@only_postgresql
def test_connections_that_died_in_the_pool_are_replaced(url: str, store: Store) -> None:
    store_event(store, {"action": "X"})
    terminate_others(url)
    with store.write() as session:
        ensure_project(session, "1.1")
    assert count(store, Project) == 1


class CutAtCommit:
    """Stands between client and server; lets the first COMMIT through and hangs up before its answer."""

    def __init__(self, directory: Path, server: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(directory / ".s.PGSQL.5432"))
        self.listener.listen()
        self.server = server
        self.cuts = 0
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(self.server)
            armed = threading.Event()
            for pair in ((client, upstream, True), (upstream, client, False)):
                thread = threading.Thread(target=self.pump, args=(*pair, armed), daemon=True)
                self.threads.append(thread)
                thread.start()

    def pump(self, source: socket.socket, sink: socket.socket, is_client: bool, armed: threading.Event) -> None:
        with source, sink:
            while True:
                try:
                    data = source.recv(65536)
                    if not data:
                        return
                    if is_client and b"COMMIT" in data and self.cuts == 0:
                        self.cuts += 1
                        armed.set()
                    elif armed.is_set():
                        # The server has answered the commit: it is done, and the client will never hear of it.
                        sink.shutdown(socket.SHUT_RDWR)
                        return
                    sink.sendall(data)
                except OSError:
                    return

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join(5)


@only_postgresql
def test_a_commit_whose_answer_is_lost_is_not_stored_twice(store: Store, tmp_path: Path) -> None:
    server = store.url.query["host"]
    proxy = CutAtCommit(tmp_path, f"{server}/.s.PGSQL.5432")
    try:
        with Store(store.url.set(query={"host": str(tmp_path)})) as through:
            event_id = store_event(through, {"action": "X"})
        assert proxy.cuts == 1
        with store.read() as session:
            assert session.execute(sa.select(Event.id)).scalars().all() == [event_id]
    finally:
        proxy.close()


def test_a_read_only_file_is_said(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such"
    missing.parent.mkdir()
    missing.write_text("a file, not a directory")
    with pytest.raises((OSError, StoreUnavailable)):
        open_store(f"sqlite:///{missing / 'store.db'}")
