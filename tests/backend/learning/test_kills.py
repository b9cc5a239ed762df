"""kill -9 at every stage of a training, on both databases: one serving model, one that loads, and nothing lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from backend.domain.project_model import State
from backend.models.stored import StoredModels
from backend.store import Store
from backend.store.project_models import list_models
from backend.tagger.loading import load_tagger
from tests.backend.learning.test_training import Desk, purposes
from tests.support.paths import ROOT
from tests.support.training_kills import STAGES
from tests.support.workers import MakeWorker

pytestmark = [pytest.mark.crash, pytest.mark.heavy]
SOME = ("training", "registered", "committed")


def work(url: str, model: Path, stage: str = "") -> subprocess.Popen[bytes]:
    """Start a worker on the database, which dies at a stage if one is named."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SURESPAN_")}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.training_kills", url, str(model), stage],
        cwd=ROOT,
        env=kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )


def let_jobs_rest(store: Store) -> None:
    """Move the ends of leases back in time, as waiting would."""
    with store.write() as session:
        session.execute(sa.text("UPDATE jobs SET lease_until = '2026-01-01 00:00:00' WHERE state = 'running'"))


@pytest.mark.parametrize("stages", [SOME, pytest.param(STAGES, marks=pytest.mark.slow)], ids=["some", "every"])
def test_a_training_killed_at_its_stages_comes_to_one_model_that_serves(
    stages: tuple[str, ...], url: str, store: Store, make_worker: MakeWorker, served_model: Path, tmp_path: Path
) -> None:
    desk = Desk(make_worker(learn="off"))
    desk.label(20)  # the labels are there; who works from now on learns from them
    labels = count(store, "labels")
    for stage in stages:
        let_jobs_rest(store)
        dying = work(url, served_model, stage)
        assert dying.wait(timeout=300) == -signal.SIGKILL, stage
        for model in desk.models:
            assert model.state is not State.SERVING or stage == "committed"
    let_jobs_rest(store)
    both = [work(url, served_model) for _ in range(2)]  # two workers at once
    assert [each.wait(timeout=300) for each in both] == [0, 0]
    (only,) = desk.models
    assert only.state is State.SERVING
    assert load_tagger(StoredModels(store, tmp_path / "models").fetch(only.model_hash)).hash == only.model_hash
    assert set(purposes(store)) == {only.model_hash}
    assert count(store, "labels") == labels
    with store.read() as session:
        assert list_models(session, desk.project.id) == [only]
        states = dict(
            session.execute(sa.text("SELECT state, count(*) FROM jobs WHERE kind = 'train' GROUP BY 1")).all()
        )
    assert states == {"done": 1}


@pytest.mark.slow
def test_two_workers_killed_in_the_next_training_leave_the_old_model_or_the_next(
    url: str, store: Store, make_worker: MakeWorker, served_model: Path, tmp_path: Path
) -> None:
    desk = Desk(make_worker(learn="off"))
    desk.label(20)
    assert work(url, served_model).wait(timeout=300) == 0
    first = desk.serving
    assert first is not None
    desk.label(20)
    labels = count(store, "labels")

    def check() -> str:
        """Return the hash of the one model that serves, which loads; no label is lost."""
        (serving,) = [model for model in desk.models if model.state is State.SERVING]
        fetched = StoredModels(store, tmp_path / "models").fetch(serving.model_hash)
        assert load_tagger(fetched).hash == serving.model_hash
        assert count(store, "labels") == labels
        return serving.model_hash

    for stage in STAGES:
        let_jobs_rest(store)
        both = [work(url, served_model, stage) for _ in range(2)]
        ended = [each.wait(timeout=300) for each in both]
        assert set(ended) <= {0, -signal.SIGKILL}
        assert -signal.SIGKILL in ended, stage  # whoever has the job; the other may find nothing to do
        assert check() == first.model_hash or stage == "committed"
    let_jobs_rest(store)
    both = [work(url, served_model) for _ in range(2)]
    assert [each.wait(timeout=300) for each in both] == [0, 0]
    newest = check()
    assert newest != first.model_hash
    assert set(purposes(store)) == {first.model_hash, newest}


def count(store: Store, table: str) -> int:
    with store.read() as session:
        return int(session.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one())
