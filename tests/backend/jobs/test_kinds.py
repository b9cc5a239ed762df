"""Each kind of job is asked for by one function, under one key, and somebody does it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from backend.domain.records import ProjectRecord
from backend.jobs import kinds
from backend.jobs.kinds import Kind, is_pending, is_running
from backend.store import Store
from backend.store.jobs import acquire_job, finish_job, list_jobs
from backend.store.projects import ensure_project
from backend.store.schema import upgrade
from backend.worker.worker import HANDLERS

ASK: dict[Kind, Callable[[Session, ProjectRecord], int]] = {
    Kind.REFIT: partial(kinds.queue_refit, reason="asked for"),
    Kind.PUBLISH: kinds.queue_publish,
    Kind.RESCORE: partial(kinds.queue_rescore, model="ab"),
    Kind.SECOND_LOOKS: kinds.queue_second_looks,
    Kind.SYNC: kinds.queue_sync,
    Kind.RECONSIDER: kinds.queue_reconsider,
}


def test_every_kind_has_a_handler_and_a_way_to_ask_for_it() -> None:
    assert set(Kind) == set(HANDLERS) == set(ASK)


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
def test_a_kind_waits_once_for_a_project_and_runs_once(kind: Kind, tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/store.db") as store:
        upgrade(store)
        with store.write() as session:
            project, other = ensure_project(session, "7.1"), ensure_project(session, "8.1")
            first = ASK[kind](session, project)
            assert ASK[kind](session, project) == first
            assert is_pending(session, kind, project)
            assert not is_running(session, kind, project)
            assert not is_pending(session, kind, other)
            assert not any(is_pending(session, each, project) for each in Kind if each is not kind)
        with store.write() as session:
            job = acquire_job(session, holder="w", kinds=[kind.value])
            assert job is not None
            assert (job.kind, job.key, job.project_id) == (kind, f"{kind}:7.1", project.id)
            assert is_running(session, kind, project)
            assert ASK[kind](session, project) != first  # it may have read its inputs before this request
            finish_job(session, job)
            assert not is_running(session, kind, project)
            assert is_pending(session, kind, project)
            payloads = [each.payload for each in list_jobs(session)]
        expected = {Kind.REFIT: {"reason": "asked for"}, Kind.RESCORE: {"model": "ab"}}.get(kind, {})
        assert payloads == [expected, expected]
