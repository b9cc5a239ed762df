"""`surespan queue` over a store, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from backend.cli import main
from backend.domain.priority import priority_of
from backend.models.loading import ModelLoader
from backend.settings import load_settings
from backend.store import open_store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.projects import ensure_model, ensure_project
from backend.store.served import record_served
from tests.backend.store.test_queue import served

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command over a project with four tasks, one of them blind."""
    monkeypatch.setenv("SURESPAN_DATABASE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    settings = load_settings()
    header = ModelLoader(settings).header()
    with open_store(settings.database_url) as store, store.write() as session:
        ensure_project(session, "8.2")
        project = ensure_project(session, "7.1").id
        model = ensure_model(session, header.name, header.hash, classes=header.classes).id
        kept = ensure_tasks(session, project, [NewTask(f"4{i}", f"text {i}") for i in range(4)])
        sets = [served(task.id, model, 0.2 + i / 10) for i, task in enumerate(kept[:3])]
        place = priority_of(1.4, first=False)  # between the first and the second
        record_served(session, [*sets, served(kept[3].id, model, 1e-9, shadow=True, priority=place)])
    return lambda *arguments: CliRunner().invoke(main, ["queue", *arguments])


def test_it_prints_what_to_look_at_next(run: Run) -> None:
    lines = run("--project", "7").output.splitlines()
    assert [line.split()[0] for line in lines] == ["task", "40", "43", "41", "42"]
    assert "0.200" in lines[1]
    assert lines[2].strip() == "43       audit, shown blank"
    found = json.loads(run("--project", "7.1", "--limit", "2", "--json").output)
    assert found["project"] == "7.1"
    first, blind = found["tasks"]
    assert (first["task"], first["blind"], first["set_size"]) == ("40", False, 1)
    assert {name for name, value in blind.items() if value is not None} == {"task", "blind"}
    assert "Nothing is waiting" in run("--project", "8").output


def test_it_leases_tasks_and_gives_them_back(run: Run) -> None:
    refused = run("--project", "7", "--claim", "ann")
    assert refused.exit_code == 1
    assert "--review-order" in refused.output
    lease = ("--project", "7", "--json", "--limit", "2", "--claim")
    first = json.loads(run(*lease, "ann", "--review-order").output)["tasks"]
    assert [(each["task"], each["claimed_by"]) for each in first] == [("40", "ann"), ("43", "ann")]
    second = json.loads(run(*lease, "bob", "--minutes", "5").output)["tasks"]
    assert [each["task"] for each in second] == ["41", "42"]
    assert run("--project", "7", "--release", "ann").output == "2 released.\n"
    assert [line.split()[0] for line in run("--project", "7").output.splitlines()] == ["task", "40", "43"]


def test_what_cannot_be_done_is_said(run: Run) -> None:
    missing = run("--project", "99")
    assert missing.exit_code == 1
    assert "known: 8.2, 7.1" in missing.output
    assert "Traceback" not in missing.output
    assert run("--project", "7", "--claim", "a", "--release", "b").exit_code == 2
