"""Killed at every step of store, register, promote and roll back: one model serves, and it loads."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
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


class Lives:
    """A process that forks lives to be killed; `begin` does not wait for the end of one, `end` does."""

    def __init__(self, order: dict[str, str]) -> None:
        self._order = order
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.own_model_life"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def begin(self, kill_at: int | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self._order | {"kill_at": kill_at}) + "\n")
        self._process.stdin.flush()

    def end(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def live(self, kill_at: int | None) -> int:
        self.begin(kill_at)
        return self.end()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@dataclass(frozen=True)
class World:
    """Two trained models, the database that knows neither, and where files lie."""

    store: Store
    order: dict[str, str]
    first: str
    later: str

    @property
    def directory(self) -> Path:
        return load_settings(database_url=self.order["url"], model_dir=self.order["models"]).models_directory

    def forget(self) -> None:
        """Begin again: no model, no file, no job."""
        with self.store.write() as session:
            for table in ("project_models", "model_files", "jobs"):
                session.execute(sa.text(f"DELETE FROM {table}"))
        shutil.rmtree(self.order["models"], ignore_errors=True)


@pytest.fixture
def world(url: str, store: Store, tmp_path: Path) -> World:
    first, later = learn_own(tmp_path / "first"), learn_own(tmp_path / "later", seed=2)
    order = {name: str(tmp_path / name) for name in ("models", "first", "later")}
    return World(store, {"url": url} | order, first, later)


def test_killed_at_any_step_one_model_serves_and_it_loads(world: World) -> None:
    served: set[str] = set()
    with closing(Lives(world.order)) as lives:
        for step in range(1, MOST):
            world.forget()
            ended = lives.live(step)
            assert ended in {0, -signal.SIGKILL}
            served.add(check(world.store, world.directory))
            if ended == 0:
                break
            assert lives.live(None) == 0  # whoever goes on comes to the end
            assert check(world.store, world.directory) == world.first
        else:
            raise AssertionError("the life did not end")
    assert served == {"", world.first, world.later}  # it was killed in every state
    assert step > 30


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "every"])
def test_two_at_once_of_which_one_is_killed_leave_one_model_that_loads(world: World, every: int) -> None:
    """Both store, register, promote and go back; one dies on its way, the other does not."""
    killed = 0
    with closing(Lives(world.order)) as dying, closing(Lives(world.order)) as living:
        for step in range(1, MOST, every):
            world.forget()
            dying.begin(step)
            living.begin(None)
            ended, other = dying.end(), living.end()
            assert ended in {0, -signal.SIGKILL}
            assert other == 0
            assert check(world.store, world.directory) in {world.first, world.later}
            if ended == 0:
                break
            killed += 1
        else:
            raise AssertionError("the life did not end")
    assert killed * every > 30


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
