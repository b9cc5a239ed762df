"""The models of a project listed, promoted and gone back to: by a program, by the command, by the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from flask import Flask

from backend.app import service_of
from backend.cli import main
from backend.models.report import LICENCE
from backend.settings import Settings
from backend.store import Store
from backend.store.actions import list_actions
from backend.store.projects import ensure_project
from backend.store.tables import ModelFile
from backend.store.tables import ProjectModel as Row
from tests.support.own_models import add_own, config_of, learn_own, promote_own

CONFIG = config_of("Drug", "Symptom")
UID = "7.1"
ROUTE = f"/api/v1/projects/{UID}/models"
ORIGIN = {"Origin": "http://localhost"}


@pytest.fixture
def hashes(settings: Settings, tmp_path: Path) -> list[str]:
    """Two models, of which the later one serves."""
    with Store(settings.database_url) as store:
        made = []
        for seed in (1, 2):
            made.append(learn_own(tmp_path / str(seed), seed=seed))
            add_own(store, settings, UID, tmp_path / str(seed), config=CONFIG)
            promote_own(store, settings, UID, made[-1])
    return made


def states(app: Flask) -> dict[str, str]:
    answer = app.test_client().get(ROUTE)
    assert answer.status_code == 200
    return {each["hash"]: each["state"] for each in answer.json["models"]}


def test_a_program_lists_and_promotes(idle_app: Flask, hashes: list[str]) -> None:
    client = idle_app.test_client()
    report: dict[str, Any] = client.get(ROUTE).json
    assert (report["project"], report["serving"]) == (UID, f"own@{hashes[1][:8]}")
    newest = report["models"][0]
    assert (newest["classes"], newest["labels"], newest["base"], newest["licence"]) == (
        ["Drug", "Symptom"],
        20,
        "nothing",
        "",
    )
    assert (newest["asked_by"], newest["can_serve"], newest["retired_at"]) == ("ann", True, None)
    refused = client.post(f"{ROUTE}/{hashes[0]}/promote", headers={"Origin": "https://page.example"})
    assert refused.status_code == 403
    assert states(idle_app) == {hashes[1]: "serving", hashes[0]: "retired"}
    done = client.post(f"{ROUTE}/{hashes[0][:12]}/promote")
    assert (done.status_code, done.json["version"]) == (200, f"own@{hashes[0][:8]}")
    assert states(idle_app) == {hashes[1]: "retired", hashes[0]: "serving"}
    for wrong in ("ab" * 32, "%25", "no-hash", "%00"):
        assert client.post(f"{ROUTE}/{wrong}/promote").status_code == 404
    assert client.get("/api/v1/projects/99/models").status_code == 404
    service = service_of(idle_app)
    with service.reads.read() as session:
        project = ensure_project(session, UID)
        (last, *_) = list_actions(session, project.id)
    assert (last.who, last.action, last.details["model"]) == ("a program", "promote", f"own@{hashes[0][:8]}")


def test_the_licence_of_the_bundled_weights_is_said(idle_app: Flask, settings: Settings, tmp_path: Path) -> None:
    learn_own(tmp_path / "own")
    with Store(settings.database_url) as store:
        first = add_own(store, settings, UID, tmp_path / "own", config=CONFIG)
        with store.write() as session:
            session.get_one(Row, first.id).base = "bundled"
        learn_own(tmp_path / "next", seed=2)
        later = add_own(store, settings, UID, tmp_path / "next", config=CONFIG)
        with store.write() as session:
            session.get_one(Row, later.id).base = first.model_hash
    report = idle_app.test_client().get(ROUTE).json
    assert [each["licence"] for each in report["models"]] == [LICENCE, LICENCE]  # also by way of another
    assert "non-commercial" in idle_app.test_client().get(f"/dashboard/projects/{UID}?tab=running").text


def test_the_command_lists_and_promotes(settings: Settings, hashes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURESPAN_DATABASE_URL", settings.database_url)
    run = CliRunner().invoke
    lines = run(main, ["models", "--project", "7"]).output.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("own@")] == [
        [f"own@{hashes[1][:8]}", "serving"],
        [f"own@{hashes[0][:8]}", "retired"],
    ]
    done = run(main, ["models", "--project", "7", "--promote", hashes[0][:8], "--json"])
    assert json.loads(done.output)["serving"] == f"own@{hashes[0][:8]}"
    with Store(settings.database_url) as store, store.write() as session:
        ensure_project(session, "8.1")
        session.query(ModelFile).filter_by(model_hash=hashes[1]).delete()
    assert "its file is gone: train again" in run(main, ["models", "--project", "7"]).output
    missing = run(main, ["models", "--project", "7", "--promote", hashes[1]])
    assert (missing.exit_code, "expected the file of model" in missing.output) == (1, True)
    none = run(main, ["models", "--project", "8"]).output
    assert "no model of its own: bundled serves it" in none
    assert "non-commercial" in none
    assert run(main, ["models", "--project", "99"]).exit_code == 1


def test_the_page_shows_them_and_goes_back(idle_app: Flask, hashes: list[str]) -> None:
    client = idle_app.test_client()
    page = client.get(f"/dashboard/projects/{UID}?tab=running").text
    assert 'id="section-models"' in page
    assert f"own@{hashes[0][:8]}" in page
    question = client.get(f"/dashboard/projects/{UID}/actions/promote?model={hashes[0]}")
    assert "trained on 20 labels" in question.text
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', question.text))
    without = client.post(f"/dashboard/projects/{UID}/actions/promote", data={"model": hashes[0]}, headers=ORIGIN)
    assert without.status_code == 403  # the page's own token is asked for
    done = client.post(f"/dashboard/projects/{UID}/actions/promote", data=fields, headers=ORIGIN)
    assert done.status_code == 303
    assert "project&#39;s own from now on" in client.get(done.headers["Location"]).text
    assert states(idle_app) == {hashes[1]: "retired", hashes[0]: "serving"}
    assert client.get(f"/dashboard/projects/{UID}/actions/promote?model=zz").status_code == 404
    assert client.get(f"/dashboard/projects/{UID}/figures/models.csv").text.startswith("model,state,classes,labels")
