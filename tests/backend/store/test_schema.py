from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from backend.cli import main
from backend.domain.records import ThresholdRow
from backend.errors import InvalidSetting, SchemaMismatch, StoreBusy, StoreError
from backend.settings import database_url
from backend.store import Store, open_store
from backend.store.columns import Base
from backend.store.events import store_event
from backend.store.projects import ensure_model, ensure_project
from backend.store.schema import downgrade, ensure_schema, head_revision, schema_differences, schema_state, upgrade
from backend.store.thresholds import active_version, write_version


def fill(store: Store) -> int:
    with store.write() as session:
        project = ensure_project(session, "1.17", title="Träume 🙂")
        model = ensure_model(session, "m", "ab" * 32, classes=["PER"])
        write_version(
            session,
            project.id,
            model_id=model.id,
            alpha="0.05",
            method="nc1",
            evidence="blind",
            guarantee="own",
            input_revision=0,
            content=b"\x00thresholds",
            thresholds=[ThresholdRow("pool", "en", 100, 1, float("inf"))],
        )
    return store_event(store, {"action": "X", "project": {"id": 1}})


# Tables that came after 0002.
LATER = {
    "project_state",
    "sampling_periods",
    "training_tasks",
    "judgements",
    "coverage_counts",
    "monitor_rows",
    "actions",
    "queue",
    "second_looks",
    "scoring_attempts",
    "span_errors",
    "acceptances",
    "accepted_tasks",
    "shadow_acceptances",
    "project_models",
    "model_files",
    "model_chunks",
}


def counts(store: Store) -> dict[str, int]:
    with store.read() as session:
        names = sa.inspect(session.connection()).get_table_names()
        return {name: session.execute(sa.text(f"SELECT count(*) FROM {name}")).scalar_one() for name in names}


def test_every_step_up_and_down_works_with_data_in_the_tables(empty_url: str) -> None:
    with Store(empty_url) as store:
        assert schema_state(store).empty
        upgrade(store)
        assert schema_state(store).ready
        assert schema_differences(store) == []
        fill(store)
        before = counts(store)
        assert before["threshold_versions"] == before["events"] == before["projects"] == 1
        downgrade(store, "0002")
        assert counts(store) == {name: n for name, n in before.items() if name not in LATER}
        assert schema_state(store).current == "0002"
        upgrade(store)
        assert counts(store) == before
        with store.read() as session:
            version = active_version(session, 1, model_id=1)
        assert version is not None
        assert version.content == b"\x00thresholds"
        downgrade(store, "0001")
        kept = counts(store)
        assert kept["events"] == 1
        assert "thresholds" not in kept
        upgrade(store)
        assert schema_differences(store) == []
        downgrade(store, "base")
        assert set(counts(store)) <= {"alembic_version"}
        upgrade(store)
        assert schema_differences(store) == []


def test_migrated_tables_are_those_of_the_code(store: Store) -> None:
    with store.read() as session:
        assert set(Base.metadata.tables) | {"alembic_version"} == set(
            sa.inspect(session.connection()).get_table_names()
        )


def test_a_difference_is_found(store: Store) -> None:
    with store.write() as session:
        session.execute(sa.text("DROP INDEX ix_served_sets_age"))
    assert any("ix_served_sets_age" in each for each in schema_differences(store))


def test_a_schema_behind_is_refused_with_the_command(store: Store) -> None:
    downgrade(store, "0002")
    with pytest.raises(SchemaMismatch, match=r"expected schema \d{4}, got 0002: run `surespan db upgrade`"):
        ensure_schema(store)
    assert schema_state(store).current == "0002"


def test_a_schema_ahead_is_refused_and_left_alone(store: Store) -> None:
    with store.write() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    for attempt in (ensure_schema, upgrade):
        with pytest.raises(SchemaMismatch, match=r"got 9999, which a newer Surespan wrote"):
            attempt(store)
    with pytest.raises(SchemaMismatch):
        open_store(store.url.render_as_string(hide_password=False))


def test_tables_of_something_else_are_refused(empty_url: str) -> None:
    with Store(empty_url) as store:
        with store.write() as session:
            session.execute(sa.text("CREATE TABLE recipes (id INTEGER)"))
        with pytest.raises(SchemaMismatch, match="holds tables of something else"):
            ensure_schema(store)


def test_only_an_empty_sqlite_file_is_migrated_on_first_use(kind: str, empty_url: str) -> None:
    if kind == "sqlite":
        with open_store(empty_url) as store:
            assert schema_state(store).ready
        with open_store(empty_url) as store:
            assert schema_differences(store) == []
    else:
        with pytest.raises(SchemaMismatch, match="run `surespan db upgrade`"):
            open_store(empty_url)


def test_missing_directories_are_made(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'a' / 'b' / 'store.db'}") as store:
        assert schema_state(store).ready


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_several_processes_may_open_a_new_file_at_once(empty_url: str) -> None:
    code = "import sys; from backend.store import open_store; open_store(sys.argv[1]).close(); print('ready')"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, empty_url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, "ready\n"), err
    with Store(empty_url) as store:
        assert schema_differences(store) == []


@pytest.mark.parametrize("kind", ["postgresql"], indirect=True)
def test_a_migration_does_not_wait_for_ever_behind_a_lock(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.store.schema._LOCK_TIMEOUT", "100ms")
    with store.write() as session:
        session.execute(sa.text("LOCK TABLE threshold_versions IN ACCESS SHARE MODE"))
        with pytest.raises(StoreBusy, match="held a lock"):
            downgrade(store, "0001")
    assert schema_state(store).ready


def test_readers_may_not_write_and_see_one_moment(store: Store) -> None:
    with store.read() as reader:
        assert reader.execute(sa.text("SELECT count(*) FROM projects")).scalar_one() == 0
        with store.write() as writer:
            ensure_project(writer, "1.1")
        assert reader.execute(sa.text("SELECT count(*) FROM projects")).scalar_one() == 0
    with pytest.raises(StoreError, match=r"allowed to write"), store.read() as reader:
        ensure_project(reader, "2.2")
    with store.write() as writer:
        ensure_project(writer, "3.3")
    with store.read() as reader:
        assert reader.execute(sa.text("SELECT count(*) FROM projects")).scalar_one() == 2


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("postgres://a:b@h/d", "postgresql+psycopg://a:***@h/d"),
        ("postgresql://h/d", "postgresql+psycopg://h/d"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg://h/d"),
        ("sqlite:///x.db", "sqlite:///x.db"),
    ],
)
def test_urls_are_normalised(raw: str, expected: str) -> None:
    assert str(database_url(raw)) == expected


@pytest.mark.parametrize(
    "raw", ["", "nonsense", "mysql://h/d", "sqlite://", "sqlite:///:memory:", "postgresql+asyncpg://h/d"]
)
def test_other_urls_are_refused(raw: str) -> None:
    with pytest.raises(InvalidSetting, match="SURESPAN_DATABASE_URL: expected"):
        database_url(raw)


def test_durability_settings(store: Store) -> None:
    with store.write() as session:
        if store.is_sqlite:
            pragmas = {
                name: session.execute(sa.text(f"PRAGMA {name}")).scalar_one()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            }
            assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30000}
        else:
            assert session.execute(sa.text("SHOW synchronous_commit")).scalar_one() == "on"


@pytest.mark.parametrize("kind", ["postgresql"], indirect=True)
def test_a_server_that_does_not_wait_for_the_disk_is_overruled(store: Store) -> None:
    name = store.url.database
    with store.write() as session:
        session.execute(sa.text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    with Store(store.url) as other, other.read() as session:
        assert session.execute(sa.text("SHOW synchronous_commit")).scalar_one() == "on"


def test_the_command_upgrades_and_checks(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURESPAN_DATABASE_URL", empty_url)
    runner = CliRunner()
    behind = runner.invoke(main, ["db", "check"])
    assert behind.exit_code == 1
    assert "run `surespan db upgrade`" in behind.output
    up = runner.invoke(main, ["db", "upgrade"])
    assert up.exit_code == 0, up.output
    assert f"none -> {head_revision()}" in up.output
    assert "up to date" in runner.invoke(main, ["db", "upgrade"]).output
    fine = runner.invoke(main, ["db", "check"])
    assert fine.exit_code == 0, fine.output
    with Store(empty_url) as store, store.write() as session:
        session.execute(sa.text("DROP INDEX ix_served_sets_age"))
    broken = runner.invoke(main, ["db", "check", "--json"])
    assert broken.exit_code == 1
    assert "ix_served_sets_age" in broken.output


def test_the_command_explains_a_bad_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURESPAN_DATABASE_URL", "mysql://ann:hunter2@h/d")
    result = CliRunner().invoke(main, ["db", "check"])
    assert result.exit_code == 1
    assert "SURESPAN_DATABASE_URL: expected" in result.output
    assert "hunter2" not in result.output


def test_an_unreachable_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURESPAN_DATABASE_URL", "postgresql://127.0.0.1:1/nothing")
    result = CliRunner().invoke(main, ["db", "check"])
    assert result.exit_code == 1
    assert "check that the database is running" in result.output
