"""Killed at every step of store, register, promote and roll back: one model serves, and it loads."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from backend.models.stored import StoredModels
from backend.settings import load_settings
from backend.store import Store
from backend.store.project_models import find_file, list_models, serving_model
from backend.store.projects import find_project
from backend.store.tables import Job
from backend.tagger.loading import load_tagger
from tests.support.own_model_life import UID
from tests.support.own_models import learn_own
from tests.support.paths import ROOT

pytestmark = pytest.mark.crash

MOST = 500  # steps that a life certainly does not have


def test_killed_at_any_step_one_model_serves_and_it_loads(url: str, store: Store, tmp_path: Path) -> None:
    first, later = learn_own(tmp_path / "first"), learn_own(tmp_path / "later", seed=2)
    settings = load_settings(database_url=url, model_dir=str(tmp_path / "models"))
    order = {
        "url": url,
        "models": str(tmp_path / "models"),
        "first": str(tmp_path / "first"),
        "later": str(tmp_path / "later"),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.own_model_life"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def live(kill_at: int | None) -> int:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(order | {"kill_at": kill_at}) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    served: set[str] = set()
    try:
        for step in range(1, MOST):
            with store.write() as session:
                for table in ("project_models", "model_files", "jobs"):
                    session.execute(sa.text(f"DELETE FROM {table}"))
            shutil.rmtree(tmp_path / "models", ignore_errors=True)
            ended = live(step)
            assert ended in {0, -signal.SIGKILL}
            served.add(check(store, settings.models_directory))
            if ended == 0:
                break
            assert live(None) == 0  # whoever goes on comes to the end
            assert check(store, settings.models_directory) == first
        else:
            raise AssertionError("the life did not end")
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()
    assert served == {"", first, later}  # it was killed in every state
    assert step > 30


def check(store: Store, directory: Path) -> str:
    """Return the hash of the serving model, which must load; empty when there is none."""
    with store.read() as session:
        project = find_project(session, UID)
        if project is None:
            return ""
        models = list_models(session, project.id)
        own = serving_model(session, project.id)  # more than one would be refused
        assert all(find_file(session, each.model_hash) is not None for each in models)
        jobs = set(session.execute(sa.select(Job.kind).where(Job.state == "queued")).scalars())
    assert [each.state for each in models].count("serving") == (own is not None)
    if own is None:
        return ""
    assert {"rescore", "publish"} <= jobs  # asked for by the same transaction
    assert load_tagger(StoredModels(store, directory).fetch(own.model_hash)).hash == own.model_hash
    return own.model_hash
